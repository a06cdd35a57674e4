"""Dynamic ids: keys get rows when they come often, lose them to others, and always have their own."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from openshelf import Space, Table, _core
from openshelf.errors import BadInput, Closed, NoRoom, UnknownName
from openshelf.tables import (
    SGD,
    Adagrad,
    DynamicIds,
    KeyedTable,
    Normal,
    bag_many,
    export_table,
    restore_table,
    save_table,
)

DIM = 16


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    monkeypatch.setenv("OPENSHELF_DIR", str(tmp_path))
    with Space.create("keys", dram="32MiB") as made:
        yield made


def _table(space: Space, rows: int, after: int = 2, half_life: int = 0, **more: object) -> KeyedTable:
    ids = DynamicIds(admit_after=after, half_life=half_life)
    made = Table.create(space, "t", rows=rows, dim=DIM, keys=ids, **{"optimizer": Adagrad(0.1), **more})  # type: ignore[arg-type]
    assert isinstance(made, KeyedTable)
    return made


def test_a_key_gets_a_row_when_it_came_often_enough(space: Space) -> None:
    table = _table(space, 1000, after=3, init=Normal(seed=1))
    keys = np.array([5, -7, 1 << 62, 0])
    for _ in range(2):
        table.update(keys, np.ones((4, DIM)))
        assert not table.lookup(keys).any()
        assert table.stat()["keys"] == 0
    table.update(keys, np.zeros((4, DIM)))
    first = table.lookup(keys)
    assert len(np.unique(first[:, 0])) == 4  # each as its key says
    table.update([5], np.ones((1, DIM)))
    assert (table.lookup([5]) < first[0]).all()
    np.testing.assert_array_equal(table.states([5, 12345])[:, 0], [1.0, 0.0])
    found, rows = table.keys()
    assert sorted(found) == sorted(keys)
    assert len(set(rows)) == 4
    other = Table.open(space, "t")
    np.testing.assert_array_equal(other.lookup(keys), table.lookup(keys))
    sums = table.bag(np.array([5, 6, -7]), [0, 2], "sum")  # 6 has no row: zeros
    np.testing.assert_array_equal(sums, table.lookup([5, -7]))


@pytest.mark.parametrize("kernels", _core.table_kernels())
def test_look_ups_of_many_keys_find_what_a_dict_finds(space: Space, kernels: str) -> None:
    """More keys than are looked for at a time, some twice, a part of them without rows, in bags of any size."""
    _core.choose_table_kernels(kernels)
    try:
        table, chance = _table(space, 3000, after=1), np.random.default_rng(1)
        known = chance.choice(1 << 30, 2600, replace=False).astype(np.int64)
        table.write(known, chance.normal(size=(2600, DIM)))
        rows = {int(key): row for key, row in zip(known, table.lookup(known), strict=True)}
        assert sum(row.any() for row in rows.values()) == table.stat()["keys"] > 2500
        keys = np.concatenate([chance.choice(known, 3000), chance.integers(1 << 30, size=1500)])
        chance.shuffle(keys)
        expected = np.array([rows.get(int(key), np.zeros(DIM)) for key in keys], np.float32)
        offsets = np.sort(np.append(chance.choice(len(keys), 300), 0))
        offsets[100:104] = offsets[100]  # empty ones
        plain = Table.create(space, "plain", rows=len(keys), dim=DIM, init=expected)
        sums = plain.bag(np.arange(len(keys)), offsets)
        for given in (keys, keys.astype(np.int32)):
            for consistent in (False, True):
                assert np.array_equal(table.lookup(given, consistent=consistent), expected)
                assert np.array_equal(table.bag(given, offsets, consistent=consistent), sums)
        both = bag_many([plain, table], [np.arange(len(keys)), keys], [offsets, offsets])
        assert np.array_equal(both[0], both[1])
        assert table.lookup(keys[:0]).shape == (0, DIM)
    finally:
        _core.choose_table_kernels("")


def test_bad_keys_and_calls_are_refused(space: Space) -> None:
    table = _table(space, 64)
    with pytest.raises(BadInput, match=r"the key -2\^63, at position 1"):
        table.lookup([1, -(1 << 63)])
    with pytest.raises(BadInput, match="never too full"):
        table.grow(1)
    with pytest.raises(BadInput, match=r"gradient 0 .* has nan"):
        table.update([1], np.full((1, DIM), np.nan))
    with pytest.raises(BadInput, match="admit_after is from 1 to 255"):
        _table(space, 64, after=0)


def test_a_full_table_takes_drifting_keys_for_ever(space: Space) -> None:
    table = _table(space, 512, after=2)
    chance, served = np.random.default_rng(0), []
    for hour in range(24):  # what is wanted drifts: of each hour's keys a quarter is new
        for _ in range(20):
            keys = np.minimum(chance.zipf(1.3, 512), 400) + 100 * hour
            table.update(keys, np.ones((512, DIM)))
        served.append(float((table.lookup(keys) != 0).any(axis=1).mean()))
    facts = table.stat()
    assert facts["keys"] <= facts["room"] == 512
    assert facts["admitted"] - facts["evicted"] == facts["keys"]
    assert facts["evicted"] > 1000
    assert facts["parts"] == 1  # it has not grown
    assert min(served[4:]) > 0.6  # and serves what is wanted now


def test_a_checkpoint_has_the_keys(space: Space, tmp_path: Path) -> None:
    table = _table(space, 200, after=1)
    keys = np.arange(150) * 1_000_003
    table.update(keys, np.random.default_rng(0).normal(size=(150, DIM)))
    save_table(table, tmp_path / "saved", part_rows=64)
    back = restore_table(space, "back", tmp_path / "saved")
    np.testing.assert_array_equal(back.lookup(keys), table.lookup(keys))
    np.testing.assert_array_equal(back.states(keys), table.states(keys))


def test_a_full_table_says_what_it_cannot_take_and_is_restored_whole(space: Space, tmp_path: Path) -> None:
    table = _table(space, 2048, after=1)
    keys = np.arange(1, 8192) * 1_000_003
    written = table.write(keys, np.repeat(np.arange(1, 8192)[:, None], DIM, 1))
    held = table.lookup(keys).any(axis=1)
    assert written == held.sum() == table.stat()["keys"] == 2048
    save_table(table, tmp_path / "saved", part_rows=500)
    back = restore_table(space, "back", tmp_path / "saved")
    np.testing.assert_array_equal(back.lookup(keys), table.lookup(keys))
    assert back.stat()["keys"] == 2048
    said = tmp_path / "saved" / "table.json"
    for_old = json.loads(said.read_text())
    for part in for_old["parts"]:
        del part["places"]
    del for_old["crc32"]
    said.write_text(json.dumps(for_old))
    with pytest.raises(NoRoom, match=r"of the 2048 keys of the checkpoint .* find no row"):
        restore_table(space, "old", tmp_path / "saved")
    with pytest.raises(UnknownName):
        Table.open(space, "old")


def test_a_file_without_keys_is_not_written(space: Space, tmp_path: Path) -> None:
    table = _table(space, 64, after=1)
    table.write([1 << 40], np.ones((1, DIM)))
    with pytest.raises(BadInput, match=r"the table 't' has dynamic ids.*save_table"):
        export_table(table, tmp_path / "rows.npy")
    assert not list(tmp_path.glob("*rows.npy*"))


def _train(home: str, seed: int) -> None:
    """Each update adds the key to its row, and one to its state's square: pairs of another key show."""
    os.environ["OPENSHELF_DIR"] = home
    chance = np.random.default_rng(seed)
    with Space.open("keys") as space:
        table = Table.open(space, "t")
        while True:
            keys = chance.integers(1, 200, 16)
            table.write(keys, np.repeat(keys[:, None], DIM, 1), states=np.repeat(keys[:, None], DIM, 1))


@pytest.mark.parametrize("turns", [24, pytest.param(500, marks=pytest.mark.soak)])
def test_keys_rows_and_states_belong_together_whoever_is_killed(space: Space, tmp_path: Path, turns: int) -> None:
    table = _table(space, 64, after=1)
    context, chance = multiprocessing.get_context("fork"), random.Random(1)
    for turn in range(turns):
        processes = [context.Process(target=_train, args=(str(tmp_path), 2 * turn + one)) for one in range(2)]
        for process in processes:
            process.start()
        time.sleep(0.03 + 0.05 * chance.random())
        for process in processes:
            process.kill()
            process.join()
        keys, _ = table.keys()
        assert len(set(keys)) == len(keys)
        rows, states = table.lookup(keys, consistent=True), table.states(keys)
        fine = (rows == keys[:, None]).all(axis=1) & (states == keys[:, None]).all(axis=1)
        fresh = ~rows.any(axis=1) & ~states.any(axis=1)  # it got its place, and was killed before it wrote
        assert (fine | fresh).all()
    assert table.stat()["evicted"] > 0
    table.update([1], np.zeros((1, DIM)))


def test_readers_never_get_the_row_of_another_key(space: Space, tmp_path: Path) -> None:
    table = _table(space, 64, after=1)
    process = multiprocessing.get_context("fork").Process(target=_train, args=(str(tmp_path), 3))
    process.start()
    try:
        chance, end, seen = np.random.default_rng(4), time.monotonic() + 0.5, 0
        while time.monotonic() < end or seen == 0:
            keys = chance.integers(1, 200, 32)
            rows = table.lookup(keys, consistent=True)
            assert ((rows == keys[:, None]).all(axis=1) | ~rows.any(axis=1)).all()
            seen += int(rows.any())
    finally:
        process.kill()
        process.join()


def test_plain_sgd_has_no_states(space: Space) -> None:
    table = _table(space, 64, after=1, optimizer=SGD(1.0))
    table.update([9], -np.ones((1, DIM)))
    assert (table.lookup([9]) == 1).all()
    with pytest.raises(BadInput, match="have no state"):
        table.states([9])


def test_a_closed_handle_keeps_nothing_of_the_space(space: Space, tmp_path: Path) -> None:
    table = _table(space, 64)
    table.close()
    table.close()
    for call in (table.keys, table.stat, lambda: table.lookup([1]), lambda: table.update([1], np.ones((1, DIM)))):
        with pytest.raises(Closed):
            call()
    space.close()
    assert f"{tmp_path / 'keys'}/" not in Path("/proc/self/maps").read_text()
