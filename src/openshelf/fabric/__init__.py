"""The hardware as data: places, links, compute, networks; measured by a probe, priced by one cost model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from openshelf.fabric.cost import Cost, Leg
from openshelf.fabric.fabric import Fabric
from openshelf.fabric.fields import nearest
from openshelf.fabric.files import local_path, presets
from openshelf.fabric.model import (
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
    from openshelf.fabric.compare_wires import SIZES, USUAL, Priced, Wires, same_wires
    from openshelf.fabric.derive import Derived, derived
    from openshelf.fabric.fitting import Calibration, compare, fit, fitted, report
    from openshelf.fabric.nccl import Series, read_measured
    from openshelf.fabric.summaries import differences, summary, used_figures
    from openshelf.fabric.wiring.topology import Topology, generators

_LATER = {
    "billing": ("Bill", "Item", "bill"),
    "derive": ("Derived", "derived"),
    "fitting": ("Calibration", "compare", "fit", "fitted", "report"),
    "nccl": ("Series", "read_measured"),
    "compare_wires": ("SIZES", "USUAL", "Priced", "Wires", "same_wires"),
    "summaries": ("differences", "summary", "used_figures"),
    "wiring.topology": ("Topology", "generators"),
}
"""What is imported when it is asked for: most processes want places and costs, and start sooner."""

__all__ = [
    "FULL",
    "QUICK",
    "SIZES",
    "USUAL",
    "Bill",
    "Calibration",
    "Compute",
    "Cost",
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
    "Link",
    "LinkClass",
    "LoadPoint",
    "LoadedLatency",
    "Medium",
    "MemoryProtocol",
    "MessageProtocol",
    "Network",
    "PageFigures",
    "Place",
    "Priced",
    "Protocols",
    "Semantics",
    "Series",
    "Leg",
    "Switch",
    "SwitchClass",
    "Topology",
    "Values",
    "Wire",
    "Wires",
    "bill",
    "compare",
    "derived",
    "differences",
    "fit",
    "fitted",
    "generators",
    "local_path",
    "media",
    "nearest",
    "presets",
    "probe",
    "protocols",
    "read_measured",
    "report",
    "same_wires",
    "semantics",
    "summary",
    "switches",
    "used_figures",
    "weakest",
]


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"openshelf.fabric.{module}"), name)
    raise AttributeError(f"module 'openshelf.fabric' has no attribute {name!r}")
