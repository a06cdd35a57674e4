"""Rows on flash, read by themselves: right ones, new ones, and hot ones from memory."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space, Table
from openshelf.errors import BadInput
from openshelf.tables import Adagrad, Uniform

DEMOTE = 4  # native Want
ROWS = 60_000


@pytest.fixture
def space(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    monkeypatch.setenv("OPENSHELF_LINGER", "0.5")
    space = Space.create("cold", "32MiB", flash=f"{tmp_path / 'file'}:64MiB")
    yield space
    space.close()
    Space.remove("cold")


def demote(space: Space, table: Table) -> None:
    """All rows leave memory."""
    native: Any = space._native
    address = table._core.parts()[0][1]
    nbytes = table.rows * table._row_bytes
    native.tiers.wait(native.tiers.ask(DEMOTE, address, nbytes, 0), -1.0)


@pytest.mark.parametrize(("dtype", "dim"), [("float32", 64), ("int8", 90)])  # of 98 bytes, in one sector or two
def test_rows_come_from_flash_without_their_units(space: Space, dtype: str, dim: int) -> None:
    table = Table.create(space, "t", rows=ROWS, dim=dim, dtype=dtype, init=Uniform(1, 2, 3))
    ids = np.random.default_rng(1).integers(0, ROWS, 5000)
    expected = table.bag(ids, np.arange(0, 5000, 10), threads=1)
    demote(space, table)
    before = space.describe()["tiers"]["dram_bytes"], table.stat()["flash_reads"]
    assert np.array_equal(table.bag(ids, np.arange(0, 5000, 10), threads=1), expected)
    read = table.stat()["flash_reads"] - before[1]
    assert 0.9 * len(np.unique(ids)) <= read <= len(ids)
    assert space.describe()["tiers"]["dram_bytes"] - before[0] <= 4 << 20  # those of rows in two units
    assert np.array_equal(table.lookup(ids, threads=2), table.lookup(ids, consistent=True))


def test_a_row_that_changed_is_read_anew(space: Space) -> None:
    table = Table.create(space, "t", rows=ROWS, dim=64)
    table.keep_hot("1MiB")
    demote(space, table)
    for value in (1, 2, 3):
        table.write([5, 6], np.full((2, 64), value))
        assert (table.lookup([5, 6]) == value).all()
        demote(space, table)
        for _ in range(3):
            assert (table.lookup([6, 5]) == value).all()


def test_hot_rows_stay_in_memory(space: Space) -> None:
    table = Table.create(space, "t", rows=ROWS, dim=64, init=Uniform(1, 2, 3))
    hot = np.arange(0, ROWS, 600)
    expected = table.lookup(hot)
    demote(space, table)
    table.keep_hot("64KiB")
    for seed in range(5):
        assert np.array_equal(table.lookup(hot), expected)
        table.lookup(np.random.default_rng(seed).integers(0, ROWS, 50))
    stat = table.stat()
    assert stat["hot_reads"] > 300
    table.keep_hot(0)
    assert np.array_equal(table.lookup(hot), expected)
    assert table.stat()["hot_reads"] == 0


def _write_for_ever(seed: int) -> None:
    chance = np.random.default_rng(seed)
    with Space.open("cold") as space:
        table = Table.open(space, "t")
        table.keep_hot("1MiB")
        while True:
            ids, values = chance.integers(0, 2000, 16), chance.integers(1, 1000, 16)[:, None]
            table.write(ids, np.repeat(values, 64, 1), states=np.repeat(values, 64, 1))
            table.lookup(chance.integers(0, ROWS, 500))


@pytest.mark.parametrize("turns", [14, pytest.param(250, marks=pytest.mark.soak)])
def test_rows_on_flash_and_their_states_stay_whole_whoever_is_killed(space: Space, turns: int) -> None:
    table = Table.create(space, "t", rows=ROWS, dim=64, optimizer=Adagrad(0.1))
    context, chance = multiprocessing.get_context("fork"), random.Random(5)
    everything, seen = np.arange(2000), 0
    for turn in range(turns):
        demote(space, table)
        processes = [context.Process(target=_write_for_ever, args=(2 * turn + one,)) for one in range(2)]
        for process in processes:
            process.start()
        time.sleep(0.03 + 0.08 * chance.random())
        for process in processes:
            process.kill()
            process.join()
        rows = table.lookup(everything, consistent=True)
        assert (rows == rows[:, :1]).all()
        assert np.array_equal(rows, table.states(everything))
        demote(space, table)
        assert np.array_equal(rows, table.lookup(everything))  # the same from flash
        seen += int((rows[:, 0] > 0).sum())
    assert seen > 0
    table.update([1], np.zeros((1, 64)))  # nobody's lock is left


def test_a_table_in_memory_has_no_flash_to_keep_rows_of() -> None:
    with Space.temporary("16MiB") as space:
        table = Table.create(space, "t", rows=10, dim=4)
        with pytest.raises(BadInput, match="are all in memory"):
            table.keep_hot("1MiB")
