"""Laws of few constants: how many times as long as at the rates as sold each part of an operator takes.

seconds = launch + slowness of computing * its ideal seconds + slowness of memory * its ideal seconds (+ ...)

They are fitted to a table where there is one, and then near rows say how far it is off. laws.yaml has those that come
with the package, for each accelerator, kind and dtype, with the table that they are from, how many rows made them, and
the median error on shapes that were left out. An accelerator without constants has the medians of others with the same
dtype; a dtype that none has, the medians of all. What memory costs it has from those with memory of its kind: GDDR
reaches what it is sold with, HBM 7 to 20 % less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml

from openshelf.errors import BadInput
from openshelf.twin.ops.accelerators import memory_of
from openshelf.twin.ops.kinds import Floats, Kind, Rates, kind_of

LAWS = Path(__file__).parent / "laws.yaml"
_ROUNDS = 30
_ASSUMED_ERROR = 0.5


@dataclass(frozen=True)
class Law:
    """`slower` by part; `launch` in microseconds. `error` is the median of absolute relative errors."""

    slower: Mapping[str, float] = field(hash=False)
    error: float
    rows: int = 0
    source: str = ""

    def seconds(self, kind: Kind, sizes: Mapping[str, Floats], device: Rates, words: Mapping[str, str]) -> Floats:
        parts = kind.parts(sizes, words, device)
        made = np.full(len(next(iter(sizes.values()))), 1e-6 * self.slower["launch"])
        for name, part in parts.items():
            made += self.slower[name] * part
        return made


def law_of(kind: Kind, device: str, words: Mapping[str, str], laws: Path = LAWS) -> Law:
    """The law of a file, of the package's own if none is named, or, where that has none for it, what is usual."""
    return laws_of(laws).get(kind.name, {}).get(device, {}).get(name_of(words)) or _usual(
        kind, name_of(words), laws, memory_of(device)
    )


def slower(op: str, device: str, **words: str) -> Mapping[str, float]:
    """How many times as long as at the rates as sold each part of an operator takes, by the package's laws."""
    return law_of(kind_of(op), device, words).slower


def name_of(words: Mapping[str, str]) -> str:
    """The name of a law among those of an accelerator and kind."""
    return "/".join(words.values()) or "bfloat16"


@cache
def laws_of(path: Path = LAWS) -> dict[str, dict[str, dict[str, Law]]]:
    """Every law of a file, by kind, accelerator and words."""
    try:
        found: dict[str, dict[str, dict[str, dict[str, Any]]]] = yaml.safe_load(path.read_text()) or {}
        return {
            kind: {device: {name: Law(**law) for name, law in of.items()} for device, of in devices.items()}
            for kind, devices in found.items()
        }
    except (OSError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise BadInput(f"{str(path)!r} is no file of laws, as `openshelf twin ops fit` writes them: {error}") from None


@cache
def _usual(kind: Kind, name: str, laws: Path, memory: str) -> Law:
    devices = laws_of(laws).get(kind.name, {})
    every = [of[name] for of in devices.values() if name in of] or [
        law for of in devices.values() for law in of.values()
    ]
    if not every:
        return Law(_Assumed(), _ASSUMED_ERROR, source="assumed")
    slower = {part: median(law.slower[part] for law in every) for part in every[0].slower}
    alike = [of[name] for device, of in devices.items() if name in of and memory_of(device) == memory]
    if alike and "memory" in slower:
        slower["memory"] = median(law.slower["memory"] for law in alike)
    return Law(slower, max(law.error for law in every), source=f"medians of {len(every)} others")


class _Assumed(dict[str, float]):
    """Slowness where nothing is known: 5 us to launch, and two thirds of what is sold."""

    def __missing__(self, name: str) -> float:
        return 5.0 if name == "launch" else 1.5


def fit_law(
    kind: Kind, sizes: Mapping[str, Floats], seconds: Floats, device: Rates, words: Mapping[str, str], source: str = ""
) -> Law:  # fmt: skip
    """The constants with about the least sum of absolute relative errors, none below 0: least squares, reweighted."""
    parts = {"launch": np.full(len(seconds), 1e-6)} | kind.parts(sizes, words, device)
    shares = np.stack(list(parts.values()), axis=1) / seconds[:, None]
    found = fit_slowness(shares)
    off = np.abs(shares @ found - 1)
    return Law(dict(zip(parts, found.tolist(), strict=True)), float(np.median(off)), len(seconds), source)


def fit_slowness(shares: Floats) -> Floats:
    """Factors of columns, none below 0, whose rows add up to about 1 each, by the least sum of absolute errors."""
    root = np.ones(len(shares))
    for _ in range(_ROUNDS):
        found = _above_zero(shares, root, shares.max(axis=0) > 0)
        root = 1 / np.sqrt(np.maximum(np.abs(shares @ found - 1), 1e-2))
    return found


def _above_zero(shares: Floats, root: Floats, used: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Floats:
    """Least squares with what would be below 0 left out, until nothing is."""
    used = used.copy()
    found = np.zeros(len(used))
    while used.any():
        solved, *_ = np.linalg.lstsq(shares[:, used] * root[:, None], root, rcond=None)
        found[:] = 0
        found[used] = solved
        if (solved >= 0).all():
            break
        used &= found >= 0
        used[found < 0] = False
    return found
