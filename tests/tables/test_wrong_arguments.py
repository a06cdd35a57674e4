"""Whatever is given for an argument of a table: no other library's exception."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space, Table
from openshelf.errors import BadInput, Mismatch, UnknownName
from openshelf.tables import (
    SGD,
    Adagrad,
    Adam,
    DynamicIds,
    HostsTable,
    Normal,
    RowwiseAdagrad,
    TableBag,
    Uniform,
    bag_many,
    export_table,
    import_table,
    lookup_many,
    restore_table,
    save_table,
)
from tests.junk import raw_errors, raw_errors_of_methods

CREATE = {"name": "t", "rows": 4, "dim": 2, "dtype": "float32", "init": "zeros", "optimizer": None, "keys": None}
FIELDS: dict[Any, dict[str, Any]] = {
    Uniform: {"low": 0.0, "high": 1.0, "seed": 1},
    Normal: {"mean": 0.0, "std": 1.0, "seed": 1},
    DynamicIds: {"admit_after": 1, "half_life": 0},
    SGD: {"lr": 0.1},
    Adagrad: {"lr": 0.1, "eps": 1e-6},
    RowwiseAdagrad: {"lr": 0.1, "eps": 1e-6},
    Adam: {"lr": 0.1, "betas": (0.9, 0.9), "eps": 1e-6},
}


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where a name that is taken for a path makes a file


def _create(space: Space, **given: Any) -> None:
    Table.create(space, **{**CREATE, **given})
    space.delete(given.get("name", "t"))


@pytest.mark.parametrize("argument", CREATE)
def test_making(space: Space, argument: str) -> None:
    assert raw_errors(lambda junk: _create(space, **{argument: junk})) == []


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_what_rows_and_states_are_made_with(space: Space, kind: Any) -> None:
    where = "init" if kind in (Uniform, Normal) else "keys" if kind is DynamicIds else "optimizer"
    for field in FIELDS[kind]:

        def make(junk: Any, field: str = field) -> None:
            _create(space, **{where: kind(**{**FIELDS[kind], field: junk})})

        assert raw_errors(make) == [], field


@pytest.mark.parametrize("keys", [None, DynamicIds(admit_after=1)], ids=["ids", "keys"])
def test_methods(space: Space, keys: Any) -> None:
    table = Table.create(space, "t", rows=8, dim=2, optimizer=SGD(0.1), keys=keys)
    good = {
        "ids": [1, 2], "offsets": [0, 1], "mode": "sum", "weights": None, "out": None, "gradients": np.ones((2, 2)),
        "optimizer": SGD(0.1), "rows": np.ones((2, 2)), "states": None, "raw": False, "threads": 1, "consistent": False,
        "finite": True, "more": 1, "keys": [1, 2], "nbytes": "64KiB",
    }  # fmt: skip
    assert raw_errors_of_methods(table, good, ("close", "settle")) == []  # settle: for files of checkpoints


def test_methods_of_a_table_over_hosts(url: str) -> None:
    with Space.open(url, contribute="16MiB") as space:
        table = Table.create(space, "t", rows=8, dim=2, optimizer=SGD(0.1), hosts=[0])
        good = {
            "ids": [1, 2], "offsets": [0, 1], "gradients": np.ones((2, 2)), "optimizer": SGD(0.1),
            "rows": np.ones((2, 2)), "more": 1, "nbytes": "64KiB", "hosts": [0], "steps": 1,
        }  # fmt: skip
        assert raw_errors_of_methods(table, good, ("close", "set_steps")) == []  # set_steps: for files of checkpoints
        assert isinstance(table, HostsTable)
        assert raw_errors(lambda junk: table.keep_copies(1, fresh_s=junk)) == []
        with pytest.raises(BadInput, match="'t' are all in memory, on several hosts: keep_copies"):
            table.keep_hot("1MiB")


def test_several_files_and_bags(space: Space, tmp_path: Path) -> None:
    table = Table.create(space, "t", rows=8, dim=2, optimizer=SGD(0.1))
    export_table(table, tmp_path / "t.npy")
    save_table(table, tmp_path / "saved")
    for call in (lambda junk: lookup_many(junk, [[1]]), lambda junk: lookup_many([table], junk)):
        assert raw_errors(call) == []
    assert raw_errors(lambda junk: lookup_many([table], [junk])) == []
    assert raw_errors(lambda junk: bag_many([table], [[1]], junk)) == []
    assert raw_errors(lambda junk: bag_many([table], [[1]], [[0]], junk)) == []
    assert raw_errors(lambda junk: export_table(table, tmp_path / "x.safetensors", key=junk)) == []
    assert raw_errors(lambda junk: export_table(table, junk)) == []
    assert raw_errors(lambda junk: export_table(junk, tmp_path / "x.npy")) == []
    assert raw_errors(lambda junk: save_table(table, junk)) == []
    assert raw_errors(lambda junk: import_table(space, "new", junk)) == []
    assert raw_errors(lambda junk: restore_table(space, "new", junk)) == []
    for argument in ("key", "dtype", "optimizer"):

        def take(junk: Any, argument: str = argument) -> None:
            import_table(space, "new", tmp_path / "t.npy", **{argument: junk})
            space.delete("new")

        assert raw_errors(take) == [], argument
    assert raw_errors(lambda junk: TableBag(table, mode=junk)) == []
    assert raw_errors(TableBag) == []
    bag = TableBag(table)
    assert raw_errors(lambda junk: bag(junk)) == []
    assert raw_errors(lambda junk: bag(junk, junk)) == []
    assert raw_errors(lambda junk: Table.open(space, junk)) == []
    assert raw_errors(lambda junk: Table.open(junk, "t")) == []


def test_what_is_wrong_is_named(space: Space, tmp_path: Path) -> None:
    wrong: list[tuple[Any, type[Exception], str]] = [
        (Uniform(1, 0), BadInput, "low is below high, got 1 and 0"),
        (Uniform(1, 1), BadInput, "low is below high, got 1 and 1"),
        (Normal(0, -1), BadInput, "std is not negative, got -1"),
        (Uniform("a", "b"), Mismatch, "low is a number, got 'a'"),  # type: ignore[arg-type]
        (Uniform(0, 1, "x"), Mismatch, "a seed must be an integer, got 'x'"),  # type: ignore[arg-type]
    ]
    for init, kind, said in wrong:
        with pytest.raises(kind, match=said):
            Table.create(space, "t", rows=2, dim=2, init=init)
    rows: Any = [[1, 2], [3, 4]]
    assert Table.create(space, "listed", rows=2, dim=2, init=rows).lookup([1]).tolist() == [[3, 4]]
    np.save(tmp_path / "row.npy", np.ones(5, "float32"))
    with pytest.raises(UnknownName, match=r"row.npy has no tensor of two dimensions, which the rows of a table are"):
        import_table(space, "t", tmp_path / "row.npy")
