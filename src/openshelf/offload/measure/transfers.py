"""Rates as they are here now: some megabytes to flash and to host memory and back, and a matrix product beside it.

Takes about a second. A fabric that `openshelf probe` wrote has the same figures; these are for machines that were not
probed, and for comparing a prediction with a run of the same minute.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from openshelf._core import DeviceArena
from openshelf.errors import FlashFailed, NoRoom, UnknownName
from openshelf.fabric import Fabric
from openshelf.offload.cache import cache_folder, load_plain, save_plain
from openshelf.offload.move.homes import Homes
from openshelf.offload.move.mover import Mover
from openshelf.offload.program.progress import shown
from openshelf.offload.program.rates import TIERS, Lane, Rates
from openshelf.offload.program.torch import torch

PIECE, PIECES = 2 << 20, 48
CALIBRATING = 2 * PIECE * PIECES  # bytes of memory that it takes
LATENCY_S = 1e-4  # to begin a transfer and hear of its end; assumed
ROUNDS = 3
MOST_LOST = 0.5  # of the time in which bytes move; more is a disturbance


def rates_of(fabric: str | Fabric | Rates) -> Rates:
    """The rates of what plan() calls a fabric."""
    if isinstance(fabric, Rates):
        return fabric
    if isinstance(fabric, Fabric):
        return Rates.of(fabric)
    if not (isinstance(fabric, str) and fabric == "local"):
        return Rates.of(Fabric.load(fabric))
    try:
        return Rates.of(Fabric.load("local"))
    except UnknownName:
        return _measured_rates()


def _measured_rates() -> Rates:
    """Measured once a day, and kept: plans are found again by the rates that they were made for."""
    asked = {"rates": platform.node(), "threads": torch.get_num_threads(), "day": int(time.time() // 86400)}
    found = load_plain(asked, Rates.from_plain)
    if found is None:
        try:
            found = calibrate()
        except (NoRoom, FlashFailed) as error:
            raise type(error)(
                f"transfers cannot be measured in {cache_folder()}: {error}. Set OPENSHELF_CACHE to a folder on the "
                "disk that is to be used, or give plan() a fabric"
            ) from error
        save_plain(asked, found.to_plain())
    return found


@shown("measuring transfers on this machine")
def calibrate(folder: Path | str | None = None) -> Rates:
    """Measured rates of the disk that `folder` (by default the cache's) is on, and of this machine's memory."""
    arena = DeviceArena(PIECE * PIECES)
    lanes: list[Lane] = []
    slowdown, call_s = 1.0, 0.0
    for tier in TIERS:
        homes = Homes(folder, PIECE * PIECES if tier == "dram" else 0)
        for number in range(PIECES):
            homes.room(number, f"piece {number}", PIECE, tier)
        with Mover(homes, arena, verify="never") as mover:
            writes = [_seconds(partial(_write, mover)) for _ in range(ROUNDS)]
            reads = [_seconds(partial(_read, mover)) for _ in range(ROUNDS)]
            if tier == "flash":
                slowdown, call_s = _disturbance(mover)
        lanes += [Lane(PIECE * PIECES / min(reads), LATENCY_S), Lane(PIECE * PIECES / min(writes), LATENCY_S)]
    return Rates(lanes[0], lanes[1], lanes[2], lanes[3], slowdown, call_s)


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


def _disturbance(mover: Mover) -> tuple[float, float]:
    """How many times longer matrix products take while bytes move, and the seconds of a call that begins a transfer."""
    matrix = torch.ones((512, 512))

    def begin(number: int) -> None:
        (mover.begin_write if number % 2 else mover.begin_read)(number, number * PIECE)

    def end() -> None:
        for number in range(PIECES):
            (mover.wait_written if number % 2 else mover.wait)(number)

    def compute(times: int = 1) -> None:
        for _ in range(times):
            matrix @ matrix

    def both() -> None:
        for number in range(PIECES):
            begin(number)
        end()

    compute()
    moving = min(_seconds(both) for _ in range(ROUNDS))
    each = max(1, round(2 * moving / PIECES / min(_seconds(compute) for _ in range(10))))  # more of it than transfers
    alone, calls, beside = [], [], []
    for _ in range(ROUNDS):
        alone.append(_seconds(partial(compute, each * PIECES)))
        parts = [(_seconds(partial(begin, number)), _seconds(partial(compute, each))) for number in range(PIECES)]
        calls += [call for call, _ in parts]
        beside.append(sum(computing for _, computing in parts) + _seconds(end))
    lost = (min(beside) - min(alone)) / moving
    return 1 / (1 - min(max(lost, 0.0), MOST_LOST)), statistics.median(calls)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
