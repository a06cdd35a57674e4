"""Small spaces with a flash tier, words that say whose they are, and what pushes others out of memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from openshelf import Array, Space
from tests.processes import PATIENCE

KIB, MIB = 1 << 10, 1 << 20
UNIT = 64 * KIB
DRAM, FLASH = 32 * MIB, 256 * MIB
WAIT = 60.0 * PATIENCE

Words = np.ndarray[Any, np.dtype[np.uint64]]


def words(label: int, version: int, nbytes: int) -> Words:
    """Every word tells the label, the version and its place; none is zero."""
    return np.arange(nbytes // 8, dtype=np.uint64) | np.uint64((label + 1) << 48 | (version & 0xFFFF) << 32)


def make(tmp_path: Path, name: str = "shelf", dram: int = DRAM, flash: int = FLASH, files: int = 1) -> Space:
    paths = [f"{tmp_path}/{name}-{number}.flash:{flash // files}" for number in range(files)]
    return Space.create(name, dram, flash=paths)


def tiers(space: Space) -> dict[str, Any]:
    found: dict[str, Any] = space.describe()["tiers"]
    return found


def keeper(space: Space) -> int:
    """The process number of its keeper, of the next one if it has just died."""
    wait_until(lambda: _alive(tiers(space)["keeper"]))
    return int(tiers(space)["keeper"])


def _alive(pid: int) -> bool:
    try:
        return pid > 0 and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_keeper(space: Space) -> int:
    pid = keeper(space)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not _alive(pid))
    return pid


def wait_until(there: Callable[[], bool], seconds: float = WAIT) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline, f"not in {seconds} s"
        time.sleep(0.002)


def demoted(array: Array) -> Array:
    assert array.demote().wait(WAIT)
    assert array.tier == "flash"
    return array


def push(space: Space, nbytes: int) -> None:
    """So many bytes are written elsewhere in the space, and forgotten again."""
    piece = words(99, 1, 4 * MIB)
    count = -(-nbytes // piece.nbytes)
    for number in range(count):
        space.put(f"pushed-{number}", piece)
    for number in range(count):
        space.delete(f"pushed-{number}")
