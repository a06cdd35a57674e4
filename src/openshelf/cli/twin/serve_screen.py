"""How `openshelf twin serve` looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from openshelf.cli._screen import console
from openshelf.show import format_time
from openshelf.space import format_size

if TYPE_CHECKING:
    from openshelf.twin.serve import Outcome, Scenario


def print_curve(scenario: Scenario, rows: Sequence[dict[str, Any]], notes: Sequence[str]) -> None:
    """A line for each pool size; changes are against the first."""
    from openshelf.twin.serve import shipped

    where = f"{scenario.model} on {scenario.fabric}, {scenario.engine}, {scenario.tensor} a replica"
    title = f"{where}: a pool's size (simulated)"
    table = Table(
        "pool",
        "hit rate",
        "TTFT",
        "",
        "TPOT",
        "tokens/s",
        "",
        "dram read",
        "flash read",
        title=title,
        title_justify="left",
    )
    base = rows[0]
    for row in rows:
        if not row["served"]:
            table.add_row(format_size(row["pool_bytes"]), "nothing was served")
            continue
        table.add_row(
            format_size(row["pool_bytes"]) if row["pool_bytes"] else "none",
            f"{row['hit_rate']:.1%}",
            format_time(row["ttft_s"]),
            _change("ttft_s", base, row),
            format_time(row["tpot_s"]),
            f"{row['output_tokens_per_s']:,.0f}",
            _change("output_tokens_per_s", base, row),
            format_size(row["tiers"]["dram"]["read_bytes"]),
            format_size(row["tiers"]["flash"]["read_bytes"]),
        )
    screen = console()
    screen.print(table)
    _print_notes(notes, shipped().errors)


def print_outcomes(outcomes: Sequence[Outcome], swept: Sequence[str], notes: Sequence[str]) -> None:
    """A line for each setting; changes are against the first that can be served."""
    from openshelf.twin.serve import shipped

    good = [each for each in outcomes if not each.problem and each.figures.get("served")]
    slo = any("goodput_per_s" in each.figures for each in good)
    table = Table(
        *swept,
        "TTFT",
        "",
        "TPOT",
        "",
        "tokens/s",
        "",
        *(["goodput/s"] if slo else []),
        title="served (simulated)",
        title_justify="left",
    )
    for each in outcomes:
        names = [str(getattr(each.scenario, name)) for name in swept]
        if each not in good:
            table.add_row(*names, each.problem or "nothing was served")
            continue
        row, base = each.figures, good[0].figures
        cells = [
            format_time(row["ttft_s"]),
            _change("ttft_s", base, row),
            format_time(row["tpot_s"]),
            _change("tpot_s", base, row),
            f"{row['output_tokens_per_s']:,.0f}",
            _change("output_tokens_per_s", base, row),
        ]
        table.add_row(*names, *cells, *([f"{row['goodput_per_s']:.3g}"] if slo else []))
    console().print(table)
    more = (
        [
            *notes,
            "nothing meets the SLO: goodput is 0 everywhere; the least means are "
            f"{min(each.figures['ttft_s'] for each in good):.3g} s to the first token and "
            f"{min(each.figures['tpot_s'] for each in good):.3g} s for each one after it",
        ]
        if slo and not any(each.figures["goodput_per_s"] for each in good)
        else list(notes)
    )
    _print_notes(more, shipped().errors)


def _change(figure: str, base: dict[str, Any], row: dict[str, Any]) -> str:
    from openshelf.twin.serve import difference

    return "" if row is base else difference(figure, base[figure], row[figure])


def _print_notes(notes: Sequence[str], errors: dict[str, float]) -> None:
    screen = console()
    for each in notes:
        screen.print(each, markup=False, highlight=False)
    told = f"TPOT and throughput {errors['tpot']:.0%}, TTFT {errors['ttft']:.0%}"
    text = f"median error of settings that were not fitted: {told}; smaller differences are not shown"
    screen.print(text, markup=False, highlight=False)
