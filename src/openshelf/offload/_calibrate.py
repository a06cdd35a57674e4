"""Rates as they are here now: some megabytes to flash and to host memory and back, and a matrix product beside it.

Takes about a second. A fabric that `openshelf probe` wrote has the same figures; these are for machines that were not
probed, and for comparing a prediction with a run of the same minute.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from openshelf._core import DeviceArena
from openshelf.offload._homes import Homes, Tier
from openshelf.offload._mover import Mover
from openshelf.offload._rates import Lane, Rates

PIECE, PIECES = 8 << 20, 12
LATENCY_S = 1e-4  # to begin a transfer and hear of its end; assumed
ROUNDS = 3


def calibrate(folder: Path | str | None = None) -> Rates:
    """Measured rates of the disk that `folder` (by default the cache's) is on, and of this machine's memory."""
    arena = DeviceArena(PIECE * PIECES)
    lanes: list[Lane] = []
    slowdown = 1.0
    tiers: tuple[Tier, ...] = ("flash", "dram")
    for tier in tiers:
        homes = Homes(folder, PIECE * PIECES if tier == "dram" else 0)
        for number in range(PIECES):
            homes.room(number, f"piece {number}", PIECE, tier)
        with Mover(homes, arena, verify="never") as mover:
            writes = [_seconds(partial(_write, mover)) for _ in range(ROUNDS)]
            reads = [_seconds(partial(_read, mover)) for _ in range(ROUNDS)]
            if tier == "flash":
                slowdown = _slowdown(mover)
        lanes += [Lane(PIECE * PIECES / min(reads), LATENCY_S), Lane(PIECE * PIECES / min(writes), LATENCY_S)]
    return Rates(lanes[0], lanes[1], lanes[2], lanes[3], slowdown)


def _write(mover: Mover) -> None:
    for number in range(PIECES):
        mover.begin_write(number, number * PIECE)
    for number in range(PIECES):
        mover.wait_written(number)


def _read(mover: Mover) -> None:
    _begin(mover)
    for number in range(PIECES):
        mover.wait(number)


def _begin(mover: Mover) -> None:
    for number in range(PIECES):
        mover.begin_read(number, number * PIECE)


def _slowdown(mover: Mover) -> float:
    """How many times longer a matrix product takes while reads are under way."""
    matrix = np.ones((512, 512), np.float32)

    def compute() -> object:
        return matrix @ matrix

    compute()
    alone = statistics.median(_seconds(compute) for _ in range(20))
    beside = []
    for _ in range(ROUNDS):
        _begin(mover)
        beside += [_seconds(compute) for _ in range(4)]
        for number in range(PIECES):
            mover.wait(number)
    return max(1.0, statistics.median(beside) / alone)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
