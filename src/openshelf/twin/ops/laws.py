"""The laws that come with the package: a roofline with fitted shares, for accelerators without a table.

seconds = launch + operations / (share of the peak) + bytes / (share of the memory's rate)

Three constants for each accelerator, kind and dtype, in laws.yaml, with where they are from, how many rows made them,
and the median error on shapes that were left out. An accelerator or dtype without constants has the medians of all
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml

from openshelf.twin.ops.accelerators import Accelerator
from openshelf.twin.ops.kinds import Floats, Kind

_FILE = Path(__file__).parent / "laws.yaml"
_ROUNDS = 40


@dataclass(frozen=True)
class Law:
    """Launch seconds, reached shares of peak and memory rate, the median error, and where all that is from."""

    launch_s: float
    compute_share: float
    memory_share: float
    error: float
    source: str = ""

    def seconds(self, kind: Kind, sizes: Mapping[str, Floats], device: Accelerator, words: Mapping[str, str]) -> Floats:
        flop, moved = kind.work(sizes, words)
        computing = flop / (device.peak(words.get("dtype", "bfloat16")) * self.compute_share)
        made: Floats = self.launch_s + computing + moved / (device.memory_bytes_per_s * self.memory_share)
        return made


def law_of(kind: Kind, device: Accelerator, words: Mapping[str, str]) -> Law:
    """The law of an accelerator, or, where it has none, what is usual."""
    every = _laws().get(kind.name, {})
    dtype = words.get("dtype", "bfloat16")
    return every.get(device.name, {}).get(dtype) or _usual(kind.name)


@cache
def _laws() -> dict[str, dict[str, dict[str, Law]]]:
    found: dict[str, dict[str, dict[str, dict[str, Any]]]] = yaml.safe_load(_FILE.read_text()) or {}
    return {
        kind: {device: {dtype: Law(**law) for dtype, law in of.items()} for device, of in devices.items()}
        for kind, devices in found.items()
    }


@cache
def _usual(kind: str) -> Law:
    every = [law for of in _laws().get(kind, {}).values() for law in of.values()]
    if not every:
        return Law(5e-6, 0.6, 0.7, 0.5, "assumed")
    shares = median(law.compute_share for law in every), median(law.memory_share for law in every)
    return Law(median(law.launch_s for law in every), *shares, max(law.error for law in every), "medians of others")


def fit_law(kind: Kind, sizes: Mapping[str, Floats], seconds: Floats, device: Accelerator, words: Mapping[str, str],
            source: str = "") -> Law:  # fmt: skip
    """The three constants with the least sum of absolute relative errors, by reweighted least squares."""
    flop, moved = kind.work(sizes, words)
    peak = device.peak(words.get("dtype", "bfloat16"))
    parts = np.stack([np.full(len(seconds), 1e-6), flop / peak, moved / device.memory_bytes_per_s], axis=1)
    scaled = parts / seconds[:, None]
    weights = np.ones(len(seconds))
    found = np.array([5.0, 1.5, 1.3])
    least = np.array([0.1, 1.0, 1.0])  # nothing is faster than as sold
    for _ in range(_ROUNDS):
        free = found > least
        target = 1 - scaled[:, ~free] @ least[~free]
        root = np.sqrt(weights)[:, None]
        solved, *_ = np.linalg.lstsq(scaled[:, free] * root, target * root[:, 0], rcond=None)
        found = found.copy()
        found[free] = np.maximum(solved, least[free])
        off = np.abs(scaled @ found - 1)
        weights = 1 / np.maximum(off, 1e-3)
    return Law(float(found[0]) * 1e-6, 1 / float(found[1]), 1 / float(found[2]), float(np.median(off)), source)
