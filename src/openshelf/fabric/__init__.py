"""The hardware as data: places, links, compute; measured by a probe, priced by one cost model."""

from openshelf.fabric._cost import Cost, Step
from openshelf.fabric._fabric import Fabric
from openshelf.fabric._files import local_path, presets
from openshelf.fabric._model import (
    Compute,
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

__all__ = [
    "FULL",
    "QUICK",
    "Compute",
    "Cost",
    "Effort",
    "Fabric",
    "Figure",
    "Gemm",
    "Link",
    "LinkClass",
    "LoadPoint",
    "LoadedLatency",
    "Network",
    "PageFigures",
    "Place",
    "Semantics",
    "Step",
    "SwitchClass",
    "local_path",
    "presets",
    "probe",
]
