"""What a part is asked for, and what parts share: one core, the worst of some cases."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kit.side_by_side import Row

CASES = {f"{dtype}/{dim}": (dtype, dim) for dtype in ("float32", "float16", "int8") for dim in (128, 64)}


@dataclass(frozen=True)
class Asked:
    quick: bool
    cases: tuple[str, ...]
    """Of the part `bags`: names of CASES."""


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """The last one, for this process and those that it begins."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def with_worst(cases: list[Row], bar: str, *, most: bool = False) -> Iterator[Row]:
    """The worst of these rows under their id, then each under one of its own. With `most`, the largest is the worst."""
    worst = (max if most else min)(cases, key=lambda row: row.value or 0)
    yield replace(worst, case=f"the worst case: {worst.case}", bar=bar)
    for row in cases:
        short = row.case.replace("ids ", "").replace(", ", "_").replace(" ", "")
        yield replace(row, id=f"{row.id}.{short}", bar="")
