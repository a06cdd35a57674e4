"""Ids that another thread of the caller changes in a call: an error, or some of the ids; nothing beyond the table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from openshelf import Space, Table
from openshelf.errors import BadInput, OutOfRange
from openshelf.tables import Adagrad, DynamicIds

ROWS, COUNT, FAR = 1000, 16_000, 1 << 44


@contextmanager
def flickering(numbers: np.ndarray) -> Iterator[None]:
    """The last of them is far beyond the table, and is not, and is again."""
    right, done = int(numbers[-1]), threading.Event()

    def flicker() -> None:
        while not done.is_set():
            numbers[-1] = FAR
            numbers[-1] = right

    thread = threading.Thread(target=flicker)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        numbers[-1] = right


@pytest.mark.parametrize("call", ["lookup", "consistent", "bag", "write", "update", "states"])
def test_ids_that_change_meanwhile_are_checked_again(space: Space, call: str) -> None:
    table = Table.create(space, "t", rows=ROWS, dim=4, optimizer=Adagrad(0.1))
    ids, numbers = np.arange(COUNT) % ROWS, np.zeros((COUNT, 4), np.float32)
    calls: dict[str, Callable[[], object]] = {
        "lookup": lambda: table.lookup(ids),
        "consistent": lambda: table.lookup(ids, consistent=True),
        "bag": lambda: table.bag(ids.reshape(-1, 16)),
        "write": lambda: table.write(ids, numbers),
        "update": lambda: table.update(ids, numbers),
        "states": lambda: table.states(ids),
    }
    with flickering(ids):
        for _ in range(80):
            with suppress(OutOfRange, BadInput):
                calls[call]()
    calls[call]()


@pytest.mark.parametrize("call", ["bag", "update_bags"])
def test_so_are_offsets(space: Space, call: str) -> None:
    table = Table.create(space, "t", rows=ROWS, dim=4, optimizer=Adagrad(0.1))
    ids, offsets = np.arange(COUNT) % ROWS, np.arange(0, COUNT, 4)
    numbers = np.zeros((len(offsets), 4), np.float32)
    calls: dict[str, Callable[[], object]] = {
        "bag": lambda: table.bag(ids, offsets),
        "update_bags": lambda: table.update_bags(ids, offsets, numbers),
    }
    with flickering(offsets):
        for _ in range(80):
            with suppress(OutOfRange, BadInput):
                calls[call]()
    calls[call]()


def test_keys_that_change_meanwhile_read_as_some_key(space: Space) -> None:
    table = Table.create(space, "k", rows=ROWS, dim=4, keys=DynamicIds(admit_after=1))
    keys = np.arange(COUNT) * 1_000_003
    table.write(keys[:900], np.repeat(np.arange(1, 901)[:, None], 4, 1))
    right = table.lookup(keys)
    with flickering(keys):
        for _ in range(80):
            assert np.array_equal(table.lookup(keys)[:-1], right[:-1])
