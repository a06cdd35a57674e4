"""What other processes do in tests of tables. A row holds one number in all columns, so that half a change shows."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import numpy as np

from openshelf import Space, Table
from openshelf.tables import SGD
from tests.processes import State

ROWS, DIM = 64, 96


def open_table(state: State, space: str, name: str, mode: str = "rw") -> int:
    state["space"] = Space.open(space, mode)
    state["table"] = Table.open(state["space"], name)
    return int(state["table"].rows)


def lookup(state: State, ids: list[int]) -> Any:
    return state["table"].lookup(ids)


def grow(state: State, more: int) -> None:
    state["table"].grow(more)


def update(state: State, ids: list[int], by: float) -> None:
    state["table"].update(ids, np.full((len(ids), state["table"].dim), by, np.float32), SGD(1.0))


def write_for(state: State, seconds: float, seed: int) -> int:
    """Fills rows with other numbers until the time is over; how many batches that were."""
    table, chance, end, count = state["table"], random.Random(seed), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        ids = [chance.randrange(ROWS) for _ in range(16)]
        table.write(ids, np.repeat(np.arange(count, count + 16, dtype=np.float32)[:, None], DIM, 1))
        count += 16
    return count


def train(home: str, seed: int) -> None:
    """For ever: the same gradient to some rows, by Adagrad."""
    os.environ["OPENSHELF_DIR"] = home
    chance = random.Random(seed)
    with Space.open("crash") as space:
        table = Table.open(space, "t")
        while True:
            ids = chance.sample(range(ROWS), 32)
            table.update(ids, np.ones((32, DIM), np.float32), threads=2)
