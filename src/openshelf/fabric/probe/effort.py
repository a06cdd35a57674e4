"""How much work each measurement is, and how many timings become one figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openshelf.fabric.model import Figure

MIB = 1 << 20

Progress = Callable[[str, float], None]
"""Called before each step with what it does and the share of all work that is done."""


@dataclass(frozen=True)
class Effort:
    """Sizes and repetitions; buffers well above the last-level cache, or the cache is what is measured."""

    name: str
    buffer_bytes: int
    passes: int
    loads: int
    chases: int
    duties: tuple[float, ...]
    disk_bytes: int
    disk_passes: int
    disk_reads: int
    gemm_side: int
    gemm_repetitions: int
    round_trips: int
    stream_bytes: int


FULL = Effort(
    name="full",
    buffer_bytes=512 * MIB,
    passes=9,
    loads=2_000_000,
    chases=5,
    duties=(0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0),
    disk_bytes=512 * MIB,
    disk_passes=3,
    disk_reads=2000,
    gemm_side=2048,
    gemm_repetitions=7,
    round_trips=20_000,
    stream_bytes=1024 * MIB,
)
QUICK = Effort(
    name="quick",
    buffer_bytes=128 * MIB,
    passes=5,
    loads=500_000,
    chases=3,
    duties=(0.0, 0.25, 0.5, 1.0),
    disk_bytes=128 * MIB,
    disk_passes=3,
    disk_reads=500,
    gemm_side=1024,
    gemm_repetitions=5,
    round_trips=4000,
    stream_bytes=256 * MIB,
)


def measured(values: Sequence[float], note: str) -> Figure:
    """The median as a measured figure."""
    return Figure(rounded(statistics.median(values)), "measured", note)


def rounded(value: float) -> float:
    return float(f"{value:.4g}")
