"""The hardware as data: places, links, compute, networks; measured by a probe, priced by one cost model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from openshelf.fabric.cost import Cost, Leg
from openshelf.fabric.fabric import Fabric
from openshelf.fabric.fields import nearest
from openshelf.fabric.files import local_path, presets
from openshelf.fabric.laws.regimes import PARTS, Law, Regime, typical
from openshelf.fabric.laws.shapes import Work, work
from openshelf.fabric.laws.squares import bounded
from openshelf.fabric.laws.tokens import Phase, Tokens
from openshelf.fabric.library import Crossing, Library, LibraryRegime, TokenPhase
from openshelf.fabric.model import (
    TRUST,
    Compute,
    Efficiency,
    EfficiencyPoint,
    Figure,
    Gemm,
    Link,
    LoadedLatency,
    LoadPoint,
    PageFigures,
    Place,
    Source,
    weakest,
)
from openshelf.fabric.probe.effort import FULL, QUICK, Effort
from openshelf.fabric.probe.run import probe
from openshelf.fabric.wiring.media import Medium, media
from openshelf.fabric.wiring.network import Ids, LinkClass, Network, Semantics, SwitchClass, Values
from openshelf.fabric.wiring.protocols import Framing, MemoryProtocol, MessageProtocol, Protocols, protocols, semantics
from openshelf.fabric.wiring.wires import Switch, Wire, switches

if TYPE_CHECKING:
    from openshelf.fabric.billing import Bill, Item, bill
    from openshelf.fabric.calibration.csv_tables import is_token_table, read_tokens
    from openshelf.fabric.calibration.fitting import Calibration, Wanted, compare, fit, ledger, left_out, report
    from openshelf.fabric.calibration.nccl import read_measured
    from openshelf.fabric.calibration.series import Series, TokenRow
    from openshelf.fabric.calibration.tokens import TokenCalibration, fit_tokens, report_tokens
    from openshelf.fabric.calibration.write import fitted
    from openshelf.fabric.compare_wires import SIZES, USUAL, Priced, Wires, same_wires
    from openshelf.fabric.derive import Derived, derived
    from openshelf.fabric.summaries import differences, summary, used_figures
    from openshelf.fabric.wiring.topology import Topology, generators

_LATER = {
    "billing": ("Bill", "Item", "bill"),
    "derive": ("Derived", "derived"),
    "calibration.csv_tables": ("is_token_table", "read_tokens"),
    "calibration.fitting": ("Calibration", "Wanted", "compare", "fit", "left_out", "ledger", "report"),
    "calibration.nccl": ("read_measured",),
    "calibration.series": ("Series", "TokenRow"),
    "calibration.tokens": ("TokenCalibration", "fit_tokens", "report_tokens"),
    "calibration.write": ("fitted",),
    "compare_wires": ("SIZES", "USUAL", "Priced", "Wires", "same_wires"),
    "summaries": ("differences", "summary", "used_figures"),
    "wiring.topology": ("Topology", "generators"),
}
"""What is imported when it is asked for: most processes want places and costs, and start sooner."""

__all__ = [
    "FULL",
    "PARTS",
    "QUICK",
    "SIZES",
    "TRUST",
    "USUAL",
    "Bill",
    "Calibration",
    "Compute",
    "Cost",
    "Crossing",
    "Derived",
    "Efficiency",
    "EfficiencyPoint",
    "Effort",
    "Fabric",
    "Figure",
    "Framing",
    "Gemm",
    "Ids",
    "Item",
    "Law",
    "Leg",
    "Library",
    "LibraryRegime",
    "Link",
    "LinkClass",
    "LoadPoint",
    "LoadedLatency",
    "Medium",
    "MemoryProtocol",
    "MessageProtocol",
    "Network",
    "PageFigures",
    "Phase",
    "Place",
    "Priced",
    "Protocols",
    "Regime",
    "Semantics",
    "Series",
    "Source",
    "Switch",
    "SwitchClass",
    "TokenCalibration",
    "TokenPhase",
    "TokenRow",
    "Tokens",
    "Topology",
    "Values",
    "Wanted",
    "Wire",
    "Wires",
    "Work",
    "bill",
    "bounded",
    "compare",
    "derived",
    "differences",
    "fit",
    "fit_tokens",
    "fitted",
    "generators",
    "is_token_table",
    "ledger",
    "left_out",
    "local_path",
    "media",
    "nearest",
    "presets",
    "probe",
    "protocols",
    "read_measured",
    "read_tokens",
    "report",
    "report_tokens",
    "same_wires",
    "semantics",
    "summary",
    "switches",
    "typical",
    "used_figures",
    "weakest",
    "work",
]


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"openshelf.fabric.{module}"), name)
    raise AttributeError(f"module 'openshelf.fabric' has no attribute {name!r}")
