"""What processes on several hosts do in tests of tables. Gradients are ones, so that lost updates can be counted."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from openshelf import Table
from openshelf.tables import SGD, HostsTable, Uniform, describe, restore_table, save_table, tables
from tests.processes import State
from tests.space.hosts.harness import worker

ROWS, DIM = 1000, 32


def enter(state: State, url: str) -> None:
    worker.enter(state, url)


def create(state: State, name: str, hosts: Any, optimizer: Any, rows: int = ROWS, dtype: str = "float32") -> None:
    """The rows of the table are those of a local one, `ref`, that is made with the same seed."""
    init = Uniform(-1, 1, seed=3)
    shape: dict[str, Any] = {"rows": rows, "dim": DIM, "dtype": dtype, "init": init, "optimizer": optimizer}
    state["table"] = Table.create(state["space"], name, hosts=hosts, sums_at_owner=False, **shape)
    state["ref"] = Table.create(state["space"], f"{name}-ref", **shape)


def open_it(state: State, name: str, sums_at_owner: bool = True) -> int:
    state["table"] = Table.open(state["space"], name, sums_at_owner=sums_at_owner)
    assert isinstance(state["table"], HostsTable)
    return state["table"].rows


def call(state: State, name: str, *given: Any) -> Any:
    return getattr(state["table"], name)(*given)


def ref(state: State, name: str, *given: Any) -> Any:
    return getattr(state["ref"], name)(*given)


def both(state: State, name: str, *given: Any) -> tuple[Any, Any]:
    return call(state, name, *given), ref(state, name, *given)


def keep_copies(state: State, rows: int, fresh_s: float) -> None:
    state["table"].keep_copies(rows, fresh_s=fresh_s)


def whole_rows(state: State, ids: Any) -> Any:
    return state["table"].lookup(ids, consistent=True)


def shown(state: State, name: str) -> tuple[list[str], int]:
    return tables(state["space"]), describe(state["space"], name)["rows"]


def delete(state: State, name: str) -> list[str]:
    state["space"].delete(name)
    return sorted(one for one, *_ in state["space"]._native.list("") if one.startswith(("\x03", "\x04")))


def add_ones(state: State, rounds: int, seed: int) -> Any:
    """How often each row was updated by this process: an update adds one to all numbers of a row."""
    chance, counts = np.random.default_rng(seed), np.zeros(ROWS, np.int64)
    for _ in range(rounds):
        ids = chance.choice(ROWS, 64, replace=False)
        state["table"].update(ids, np.full((64, DIM), -1.0, np.float32), SGD(1.0))
        counts[ids] += 1
    return counts


def add_for_ever(state: State, seed: int) -> None:
    add_ones(state, 1 << 30, seed)


def reshard_for_ever(state: State) -> None:
    while True:
        for hosts in ([0], [1], [0, 1]):
            state["table"].reshard(hosts)


def wait_for(state: State, row: int, number: float, seconds: float) -> float:
    """How long it takes until the row has this number."""
    begun = time.monotonic()
    while state["table"].lookup([row])[0, 0] != number:
        assert time.monotonic() - begun < seconds, "the row does not change"
        time.sleep(0.01)
    return time.monotonic() - begun


def save(state: State, path: str) -> None:
    save_table(state["table"], path, part_rows=300)


def restore(state: State, name: str, path: str, hosts: Any) -> None:
    state["table"] = restore_table(state["space"], name, path, hosts=hosts)
