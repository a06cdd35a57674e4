"""What tests of several hosts ask processes on them to do; the first argument is what that process keeps."""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np

from openshelf import Space
from tests.processes import State

UNIT = 64 << 10
WORDS = UNIT // 8  # of 8 bytes in a unit
CONTRIBUTE = "64MiB"


def enter(state: State, where: str, contribute: str = CONTRIBUTE, unit: str | None = None) -> None:
    """Opens a space by URL; by name, one of this host only."""
    if "://" in where:
        state["space"] = Space.open(where, contribute=contribute, unit=unit)
    else:
        state["space"] = Space.open(where)


def leave(state: State) -> None:
    state.pop("space").close()


def make(state: State, name: str, units: int, dtype: str = "uint64") -> int:
    """An array that begins with a unit; it lives on this process's host."""
    space: Space = state["space"]
    count = units * UNIT // np.dtype(dtype).itemsize
    return int(space.zeros(name, count, dtype).address)


def view(state: State, name: str) -> Any:
    """The numpy view of an array, looked up once."""
    views = state.setdefault("views", {})
    if name not in views:
        views[name] = state["space"][name].numpy()
    return views[name]


def atomic(state: State, name: str, index: int) -> Any:
    words = state.setdefault("atomics", {})
    if (name, index) not in words:
        words[name, index] = state["space"][name].atomic(index)
    return words[name, index]


def quiet(state: State) -> None:
    """Before measured or racing work: no pauses of our own making."""
    gc.collect()
    gc.disable()


def wait_until(moment_ns: int) -> None:
    """Sleeps most of the time and spins the rest, so that processes begin together."""
    while (rest := moment_ns - time.monotonic_ns()) > 0:
        if rest > 2_000_000:
            time.sleep((rest - 1_000_000) / 1e9)
