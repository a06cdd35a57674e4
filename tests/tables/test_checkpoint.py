"""Checkpoints: training goes on from one as if it had not stopped; one that is damaged makes no table, and one that
cannot be written leaves nothing.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space, Table
from openshelf.errors import BadInput, OpenshelfError, UnknownName
from openshelf.tables import Adam, DynamicIds, Uniform, restore_table, save_table
from openshelf.tables.checkpoint import _sum_of_list

FULL = """
import sys
from pathlib import Path
from openshelf import Space, Table
from openshelf.errors import BadInput
from openshelf.tables import SGD, Uniform, export_table, save_table

small = Path(sys.argv[1])
with Space.temporary("16MiB") as space:
    table = Table.create(space, "t", rows=20_000, dim=32, init=Uniform(-1, 1), optimizer=SGD(0.1))
    for write in (export_table, save_table):
        for ending in (".npy", ".safetensors", ".pt"):
            try:
                write(table, small / f"rows{ending}")
            except BadInput as error:
                assert "cannot be written: " in str(error), error
            else:
                raise AssertionError(f"{ending} was written")
            assert not list(small.iterdir()), list(small.iterdir())
"""


@pytest.mark.parametrize("keys", [None, DynamicIds(admit_after=1)])
def test_adam_goes_on_where_it_was(space: Space, tmp_path: Path, keys: DynamicIds | None) -> None:
    table = Table.create(space, "t", rows=64, dim=8, init=Uniform(-1, 1, 1), optimizer=Adam(0.1), keys=keys)
    chance = np.random.default_rng(0)
    for _ in range(5):
        table.update(np.arange(32), chance.normal(size=(32, 8)))
    save_table(table, tmp_path / "saved")
    back = restore_table(space, "back", tmp_path / "saved")
    assert back.stat()["steps"] == table.stat()["steps"] == 5
    gradients = chance.normal(size=(32, 8))
    for one in (table, back):
        one.update(np.arange(32), gradients)
    assert np.array_equal(back.lookup(np.arange(32)), table.lookup(np.arange(32)))


def test_files_damaged_at_random_make_no_table_or_the_same(space: Space, tmp_path: Path) -> None:
    table = Table.create(space, "t", rows=40, dim=4, init=Uniform(-1, 1, 1), optimizer=Adam(0.1))
    save_table(table, tmp_path / "saved", part_rows=16)
    files, chance, refused = sorted((tmp_path / "saved").iterdir()), random.Random(1), 0
    for _ in range(150):
        file = chance.choice(files)
        whole = file.read_bytes()
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(min(len(damaged), 400))] = chance.randrange(256)
        file.write_bytes(damaged[: chance.choice([len(damaged), chance.randrange(len(damaged))])])
        try:
            restore_table(space, "back", tmp_path / "saved")
        except OpenshelfError:
            refused += 1
        else:
            space.delete("back")
        finally:
            file.write_bytes(whole)
        with pytest.raises(UnknownName):
            Table.open(space, "back")
    assert refused > 75
    assert np.array_equal(restore_table(space, "back", tmp_path / "saved").lookup(range(40)), table.lookup(range(40)))


def test_a_checkpoint_that_somebody_else_has_prepared_makes_no_table(space: Space, tmp_path: Path) -> None:
    """Its sums are right, and what they are of is not."""
    table = Table.create(space, "t", rows=40, dim=4, init=Uniform(-1, 1, 1), optimizer=Adam(0.1))
    save_table(table, tmp_path / "saved", part_rows=16)
    file = tmp_path / "saved" / "table.json"
    good = json.loads(file.read_text())

    def refused(said: bytes) -> None:
        file.write_bytes(said)
        with pytest.raises(OpenshelfError):
            restore_table(space, "back", tmp_path / "saved")
        with pytest.raises(UnknownName):
            Table.open(space, "back")

    def summed(said: dict[str, Any]) -> bytes:
        return json.dumps({**said, "crc32": _sum_of_list(said)}).encode()

    inf, nan = float("inf"), float("nan")
    odd: tuple[Any, ...] = (True, -1, 1.5, 1 << 70, "7", [1], {})
    for name in ("rows", "dim", "steps", "keys", "parts", "optimizer", "dtype"):
        for value in (*odd, inf, nan, None):
            if (name, value) not in (("optimizer", None), ("keys", True)):
                refused(summed({**good, name: value}))
    first, others = good["parts"][0], good["parts"][1:]
    for name, part in first.items():
        refused(summed({**good, "parts": [{one: kept for one, kept in first.items() if one != name}, *others]}))
        for field in part if isinstance(part, dict) else ():
            for value in (*odd, inf, None, "..", "", "\ud800", "/dev/zero"):
                refused(summed({**good, "parts": [{**first, name: {**part, field: value}}, *others]}))
    rows = np.load(tmp_path / "saved" / "rows-00000.npy")
    for other in (rows[:0], rows[:-1], rows.ravel(), rows.astype("S8"), np.float32(3), rows[:, :0]):
        np.save(tmp_path / "saved" / "rows-00000.npy", other)
        fresh = {"file": "rows-00000.npy", "crc32": zlib.crc32(np.ascontiguousarray(other).tobytes())}
        refused(summed({**good, "parts": [{**first, "rows": fresh}, *others]}))
    refused(b"[" * 200_000)
    file.unlink()
    os.mkfifo(file)  # it would be waited for
    with pytest.raises(BadInput, match="no file"):
        restore_table(space, "back", tmp_path / "saved")


def test_a_part_has_at_least_one_row(space: Space, tmp_path: Path) -> None:
    table = Table.create(space, "t", rows=4, dim=4)
    with pytest.raises(BadInput, match=r"part_rows is how many rows a file has, at least 1, got 0"):
        save_table(table, tmp_path / "saved", part_rows=0)
    assert not (tmp_path / "saved").exists()


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    inside = f'mount -t tmpfs -o size=1m none "{small}" || exit 77; exec "{sys.executable}" - "{small}"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inside], input=FULL, capture_output=True, text=True, check=False
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("a file system of its own is not permitted here")
    assert done.returncode == 0, done.stderr
