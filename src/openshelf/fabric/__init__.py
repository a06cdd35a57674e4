"""The hardware as data: places, links, compute, networks; measured by a probe, priced by one cost model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from openshelf.fabric._cost import Cost, Step
from openshelf.fabric._fabric import Fabric
from openshelf.fabric._files import local_path, presets
from openshelf.fabric._media import Medium, media
from openshelf.fabric._model import (
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
)
from openshelf.fabric._network import LinkClass, Network, Semantics, SwitchClass
from openshelf.fabric._probe import probe
from openshelf.fabric._probe_effort import FULL, QUICK, Effort
from openshelf.fabric._protocols import Framing, MemoryProtocol, MessageProtocol, Protocols, protocols, semantics
from openshelf.fabric._wires import Switch, Wire, switches

if TYPE_CHECKING:
    from openshelf.fabric._bill import Bill, Item, bill
    from openshelf.fabric._derived import Derived, derived
    from openshelf.fabric._fit import Calibration, compare, fit, fitted, median_error, report
    from openshelf.fabric._nccl import Series, read_measured
    from openshelf.fabric._same_wires import SIZES, USUAL, Priced, Wires, same_wires
    from openshelf.fabric._summary import differences, summary, used_figures
    from openshelf.fabric._topology import Topology

_LATER = {
    "_bill": ("Bill", "Item", "bill"),
    "_derived": ("Derived", "derived"),
    "_fit": ("Calibration", "compare", "fit", "fitted", "median_error", "report"),
    "_nccl": ("Series", "read_measured"),
    "_same_wires": ("SIZES", "USUAL", "Priced", "Wires", "same_wires"),
    "_summary": ("differences", "summary", "used_figures"),
    "_topology": ("Topology",),
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
    "Step",
    "Switch",
    "SwitchClass",
    "Topology",
    "Wire",
    "Wires",
    "bill",
    "compare",
    "derived",
    "differences",
    "fit",
    "fitted",
    "local_path",
    "median_error",
    "media",
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
]


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"openshelf.fabric.{module}"), name)
    raise AttributeError(f"module 'openshelf.fabric' has no attribute {name!r}")
