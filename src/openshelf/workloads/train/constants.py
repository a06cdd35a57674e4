"""The constants of training steps: how many times as long as at the rates as sold each cause takes.

constants.yaml has them, with what they were fitted to and their error on rows that were left out. `megatron` is of
PyTorch with unfused attention on A100 (2022-23); `nemo` of H100, H200, B200 and GB200 with fp8 (MLPerf 4.1 to 5.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import yaml

from openshelf.errors import UnknownName
from openshelf.fabric import nearest
from openshelf.twin.ops import fit_slowness
from openshelf.workloads.train.cluster import Cluster
from openshelf.workloads.train.model import Model
from openshelf.workloads.train.plan import Plan
from openshelf.workloads.train.step import step_of

CAUSES = ("compute", "memory", "host", "gap", "inside", "between")
_FILE = Path(__file__).parent / "constants.yaml"
_ROUNDS = 8
Case = tuple[Model, Plan, Cluster, float]


@dataclass(frozen=True)
class Constants:
    """`slower` by cause; `error` is the median of absolute relative errors of steps that were not fitted."""

    name: str
    slower: Mapping[str, float] = field(hash=False)
    error: float
    source: str = ""
    fp4: float = 0.0
    """What computing in four bits adds to the slowness of `compute`."""
    measured: Mapping[str, Sequence[str]] = field(default_factory=dict, hash=False)
    """The accelerators whose steps were measured, with the dtypes of these steps."""

    def accuracy(self, cluster: Cluster, dtype: str) -> str:
        """How far off steps are: the error, and that it is larger where nothing was measured."""
        said = f"about {100 * self.error:.0f} % off"
        if dtype in self.measured.get(cluster.accelerator.name, ()):
            return f"{said}, by constants {self.name} ({self.source})"
        known = "; ".join(f"{each} in {' and '.join(dtypes)}" for each, dtypes in self.measured.items())
        return (
            f"on {cluster.accelerator.name} in {dtype} nothing was measured, and how far off this is, is not known: by "
            f"constants {self.name} ({self.source}), which are {said} where they were ({known})"
        )

    def of(self, plan: Plan) -> dict[str, float]:
        more = self.fp4 if plan.dtype == "nvfp4" else 0.0
        return dict(self.slower) | {"compute": self.slower["compute"] + more}


@cache
def every_constants() -> dict[str, Constants]:
    found = yaml.safe_load(_FILE.read_text())
    return {name: Constants(name, **each) for name, each in found["constants"].items()}


def constants_of(name: str, cluster: Cluster | None = None) -> Constants:
    """By name; `auto` is what was fitted to the cluster's accelerator, or to the nearest kind."""
    found = every_constants()
    if name == "auto":
        known: dict[str, str] = yaml.safe_load(_FILE.read_text())["accelerators"]
        return found[known.get(cluster.accelerator.name if cluster else "", known["others"])]
    if name not in found:
        raise UnknownName(f"there are no constants {name!r}; there is {', '.join(found)}{nearest(name, list(found))}")
    return found[name]


def fit_constants(
    cases: Sequence[Case], causes: Sequence[str], start: Mapping[str, float], times: Sequence[int] | None = None
) -> dict[str, float]:
    """The slowness of some causes, with about the least sum of absolute relative errors; others stay as they start.

    A case counts `times`.

    Which stages wait for the host depends on the constants, so it is fitted in rounds, and the best is kept.
    """
    slower, best, least = dict(start), dict(start), np.inf
    measured = np.array([seconds for *_, seconds in cases])
    for _ in range(_ROUNDS):
        parts = np.zeros((len(cases), len(causes)))
        fixed = np.zeros(len(cases))
        for row, (model, plan, cluster, _) in enumerate(cases):
            for name, value in step_of(model, plan, cluster, slower).by_cause.items():
                cause = name.rpartition(".")[2]
                if cause in causes:
                    parts[row, causes.index(cause)] += value / slower[cause]
                else:
                    fixed[row] += value
        off = np.abs((parts @ [slower[cause] for cause in causes] + fixed) / measured - 1)
        error = float(np.average(np.minimum(off, 0.5), weights=times))
        if error < least:
            best, least = dict(slower), error
        left = np.maximum(measured - fixed, 0.05 * measured)
        found = np.maximum(fit_slowness(np.repeat(parts / left[:, None], times or 1, axis=0)), 1e-3)
        slower |= {cause: (slower[cause] + float(value)) / 2 for cause, value in zip(causes, found, strict=True)}
    return best
