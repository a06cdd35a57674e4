"""What people look at: the tour, pictures, tables, traces and metrics."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from openshelf.show.times import format_time

if TYPE_CHECKING:
    from openshelf.show.exposition import figures, figures_text, troubles
    from openshelf.show.fabric import fabric_svg
    from openshelf.show.metrics import host_metrics, kv_metrics, space_metrics, table_metrics, tier_metrics
    from openshelf.show.plan import plan_svg
    from openshelf.show.same_wires import same_wires_svg
    from openshelf.show.serving import pool_curve_svg, write_serving_trace
    from openshelf.show.tiers import keeper_runs, rates, tier_lines, tier_view
    from openshelf.show.trace import write_trace
    from openshelf.show.twin_trace import write_run_trace

_LATER = {
    "exposition": ("figures", "figures_text", "troubles"),
    "fabric": ("fabric_svg",),
    "metrics": ("host_metrics", "kv_metrics", "space_metrics", "table_metrics", "tier_metrics"),
    "plan": ("plan_svg",),
    "same_wires": ("same_wires_svg",),
    "serving": ("pool_curve_svg", "write_serving_trace"),
    "tiers": ("keeper_runs", "rates", "tier_lines", "tier_view"),
    "trace": ("write_trace",),
    "twin_trace": ("write_run_trace",),
}
"""What is imported when it is asked for: a command shows one of these, and starts sooner without the others."""

__all__ = [
    "fabric_svg",
    "figures",
    "figures_text",
    "format_time",
    "host_metrics",
    "keeper_runs",
    "kv_metrics",
    "plan_svg",
    "pool_curve_svg",
    "rates",
    "same_wires_svg",
    "space_metrics",
    "table_metrics",
    "tier_lines",
    "tier_metrics",
    "tier_view",
    "troubles",
    "write_run_trace",
    "write_serving_trace",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"openshelf.show.{module}"), name)
    raise AttributeError(f"module 'openshelf.show' has no attribute {name!r}")
