"""Wrong arguments: an error that says what came and what to do, and nothing changed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from openshelf import Space, Table, tables
from openshelf.errors import BadInput, Closed, Mismatch, NameTaken, NoRoom, NotPermitted, OutOfRange, UnknownName
from openshelf.tables import SGD, Adam, RowwiseAdagrad, Uniform


@pytest.fixture
def table(space: Space) -> Table:
    return Table.create(space, "users", rows=10, dim=4, init=Uniform(-1, 1, 1), optimizer=SGD(0.1))


@pytest.mark.parametrize("bad", [10, -1, 1 << 31, (1 << 63) - 1, -(1 << 63)])
def test_an_id_out_of_range_is_named_and_nothing_is_written(table: Table, bad: int) -> None:
    ids, out = np.array([3, bad, 2]), np.full((3, 4), 7, np.float32)
    expected = rf"id {bad}, at position 1 of 3, is out of range for the table 'users' \(10 rows\)"
    before = table.lookup(range(10))
    for call in (
        lambda: table.lookup(ids, out=out),
        lambda: table.bag(ids, [0, 1, 2], out=out),
        lambda: table.update(ids, np.ones((3, 4))),
        lambda: table.write(ids, np.ones((3, 4))),
        lambda: table.prefetch(ids),
    ):
        with pytest.raises(OutOfRange, match=expected):
            call()
    assert np.array_equal(out, np.full((3, 4), 7))
    assert np.array_equal(table.lookup(range(10)), before)


def test_a_table_in_a_folder_is_named_as_table_open_takes_it(space: Space) -> None:
    Table.create(space, "a/users", rows=1, dim=1)
    folder = space.folder("a")
    calls: list[Callable[[], Any]] = [lambda: folder["users"], lambda: folder.get("users")]
    for call in calls:
        with pytest.raises(Mismatch, match=r"of kind table, not array; Table.open\(space, 'a/users'\) opens it"):
            call()


def test_numbers_of_another_byte_order_are_converted_and_no_room(table: Table) -> None:
    rows = np.arange(8, dtype=">f4").reshape(2, 4)
    table.write(np.array([1, 2], ">i8"), rows, raw=True)
    assert np.array_equal(table.lookup([1, 2]), rows)
    with pytest.raises(Mismatch, match=r"another order than this machine's, >f4"):
        table.lookup([1, 2], out=np.empty((2, 4), ">f4"))


@pytest.mark.parametrize("bad", [10, -1, (1 << 31) - 1, -(1 << 31)])
def test_so_is_one_of_32_bits(table: Table, bad: int) -> None:
    with pytest.raises(OutOfRange, match=f"id {bad}, at position 2 of 3"):
        table.lookup(np.array([0, 9, bad], np.int32))


def test_of_many_tables_the_one_is_named_and_nothing_is_written(space: Space, table: Table) -> None:
    other = Table.create(space, "items", rows=5, dim=4)
    out = [np.full((2, 4), 7, np.float32) for _ in range(2)]
    with pytest.raises(OutOfRange, match=r"id 5, at position 1 of 2, is out of range for the table 'items' \(5 rows\)"):
        tables.lookup_many([table, other], [[0, 9], [4, 5]], out=out)
    assert all((part == 7).all() for part in out)
    with pytest.raises(BadInput, match="2 tables need as many entries"):
        tables.lookup_many([table, other], [[0]])


@pytest.mark.parametrize("offsets", [[1, 2], [0, 3, 2], [0, 5], [0, -1], []])
def test_offsets_that_are_no_bags_are_refused(table: Table, offsets: list[int]) -> None:
    out = np.full((len(offsets), 4), 7, np.float32)
    starts = np.array(offsets, np.int64)
    for call in (
        lambda: table.bag([1, 2, 3, 4], starts, out=out),
        lambda: table.update_bags([1, 2, 3, 4], starts, np.ones((len(offsets), 4))),
    ):
        with pytest.raises(BadInput, match="offsets"):
            call()
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda t: t.lookup([0.5]), Mismatch, "ids are integers, got float64"),
        (lambda t: t.lookup(torch.tensor([0.5])), Mismatch, "ids are integers"),
        (lambda t: t.lookup(np.array([1 << 63], np.uint64)), BadInput, "below 2\\^63"),
        (lambda t: t.lookup([1], out=np.empty((1, 5), np.float32)), Mismatch, "expected \\(1, 4\\) of float32"),
        (lambda t: t.lookup([1], out=np.empty((1, 4))), Mismatch, "of float64, expected"),
        (lambda t: t.lookup([1], out=[0]), Mismatch, "got list"),
        (lambda t: t.lookup([1, 2], out=np.empty((4, 2), np.float32).T), Mismatch, "contiguous"),
        (lambda t: t.lookup([1], out=_read_only()), NotPermitted, "cannot be written"),
        (lambda t: t.lookup([1], threads=1000), BadInput, "threads"),
        (lambda t: t.bag([1]), BadInput, "need offsets"),
        (lambda t: t.bag([[1]], [0]), BadInput, "leave offsets out"),
        (lambda t: t.bag([[[1]]]), Mismatch, "one dimension"),
        (lambda t: t.bag([1], [0], "median"), BadInput, "'sum', 'mean' or 'max'"),
        (lambda t: t.bag([1], [0], "mean", [0.5]), BadInput, "weights go with mode='sum'"),
        (lambda t: t.bag([1], [0], "sum", [0.5, 1]), Mismatch, "weights have the shape"),
        (lambda t: t.bag([1], [0, 5], include_last_offset=True), BadInput, "number of ids, 1"),
        (
            lambda t: t.update([1], np.ones((1, 5))),
            Mismatch,
            "gradients have the shape \\(1, 5\\), expected \\(1, 4\\)",
        ),
        (lambda t: t.update([1], np.ones((1, 4)), RowwiseAdagrad(0.1)), Mismatch, "states of SGD"),
        (lambda t: t.update([1], [["a"] * 4]), Mismatch, "are numbers"),
        (lambda t: t.write([1], np.ones(4)), Mismatch, "rows have the shape"),
        (lambda t: t.write([1], np.ones((1, 4)), states=np.ones((1, 4))), BadInput, "no state"),
        (lambda t: t.states([1]), BadInput, "no state"),
        (lambda t: t.grow(0), BadInput, "at least one row"),
        (lambda t: t.grow(1 << 61), NoRoom, "cannot grow"),
    ],
)
def test_a_wrong_argument_is_named(table: Table, call: Any, error: type[Exception], says: str) -> None:
    before = table.lookup(range(10))
    with pytest.raises(error, match=says):
        call(table)
    assert np.array_equal(table.lookup(range(10)), before)


def _read_only() -> Any:
    array = np.empty((1, 4), np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"rows": 0}, BadInput, "at least one row"),
        ({"dim": 0}, BadInput, "at least one row"),
        ({"dim": 1 << 21}, BadInput, "1 to 1048576"),
        ({"rows": 2.5}, Mismatch, "rows must be an integer"),
        ({"dtype": "float64"}, Mismatch, "float32, float16, bfloat16, int8, int4"),
        ({"dtype": "int4", "dim": 3}, BadInput, "even number"),
        ({"rows": 1 << 60}, BadInput, "more bytes than there are addresses"),
        ({"rows": 1 << 30}, NoRoom, "no room"),
        ({"init": "ones"}, BadInput, "expected 'zeros'"),
        ({"init": np.ones((3, 3))}, Mismatch, "init= has the shape \\(3, 3\\)"),
        ({"init": Uniform(0, float("nan"))}, BadInput, "finite"),
        ({"optimizer": "adam"}, Mismatch, "SGD, Adagrad, RowwiseAdagrad, Adam"),
    ],
)
def test_a_table_that_cannot_be_is_not_made(space: Space, given: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Table.create(space, "t", **({"rows": 8, "dim": 4} | given))
    assert "t" not in space
    assert space._native.list("\x03") == []  # nor any part of it


def test_optimizers_check_their_numbers() -> None:
    with pytest.raises(BadInput, match="learning rate"):
        SGD(0)
    with pytest.raises(BadInput, match="betas"):
        Adam(0.1, (0.9, 1.0))
    with pytest.raises(BadInput, match="eps"):
        RowwiseAdagrad(0.1, -1)


@pytest.mark.parametrize(
    ("kind", "settings", "error"),
    [
        (SGD, (1e60,), BadInput),
        (SGD, (10**400,), BadInput),
        (SGD, (1e-60,), BadInput),
        (RowwiseAdagrad, (0.1, 1e-60), BadInput),
        (Adam, (0.1, (0.9, 1 - 1e-12)), BadInput),
        (Adam, (0.1, (0.9,)), Mismatch),
        (Adam, (0.1, 0.9), Mismatch),
        (Adam, (0.1, ("0.9", 0.9)), Mismatch),
        (SGD, ("0.1",), Mismatch),
        (SGD, (None,), Mismatch),
    ],
)
def test_settings_are_numbers_that_float32_has(kind: Any, settings: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="float32" if error is BadInput else "number"):
        kind(*settings)


def test_settings_of_numpy_are_numbers(space: Space) -> None:
    given: Any = np.float32(0.5), (np.float16(0.5), 0), np.int64(1)
    table = Table.create(space, "t", rows=1, dim=1, optimizer=Adam(*given))
    assert table.optimizer == Adam(0.5, (0.5, 0.0), 1.0)


def test_a_name_is_taken_once(space: Space, table: Table) -> None:
    space.zeros("array", 3)
    for name in ("users", "array"):
        with pytest.raises(NameTaken, match=name):
            Table.create(space, name, rows=1, dim=1)
    with pytest.raises(NameTaken, match="KV pool or table"):
        space.put("users", np.ones(3))
    with pytest.raises(NameTaken, match="something else"):
        Table.open(space, "array")
    with pytest.raises(UnknownName, match=r"no table 'usres' in the space 'shelf'; there is: \['users'\]"):
        Table.open(space, "usres")


def test_a_deleted_table_is_closed_and_its_memory_free(space: Space, table: Table) -> None:
    table.grow(1000)
    before = space.describe()["free"]
    assert [entry.name for entry in space.list()] == ["users"]
    space.delete("users")
    with pytest.raises(Closed, match="was deleted"):
        table.lookup([1])
    assert repr(table) == "Table('users', deleted)"
    with pytest.raises(UnknownName):
        Table.open(space, "users")
    table.close()
    assert space.describe()["free"] > before
    assert space._native.list("") == []


def test_a_renamed_table_is_found_with_its_rows(space: Space, table: Table) -> None:
    rows = table.lookup(range(10))
    space.rename("users", "people")
    assert np.array_equal(Table.open(space, "people").lookup(range(10)), rows)
    table.grow(2)
    assert Table.open(space, "people").rows == 12


def test_a_reader_cannot_change_a_table(home: Any) -> None:
    with Space.create("shelf", "8MiB") as space:
        Table.create(space, "t", rows=4, dim=4, init=Uniform(0, 1, 1))
    with Space.open("shelf", "r") as space:
        table = Table.open(space, "t")
        assert table.lookup([1]).any()
        calls: list[Callable[[], object]] = [
            lambda: table.update([1], np.ones((1, 4)), SGD(1)),
            lambda: table.write([1], np.ones((1, 4))),
            lambda: table.grow(1),
        ]
        for call in calls:
            with pytest.raises(NotPermitted, match="read-only"):
                call()


def test_a_closed_table_says_so(table: Table) -> None:
    table.close()
    with pytest.raises(Closed, match="open it again"):
        table.lookup([1])
    assert repr(table) == "Table(closed)"


def test_a_pickled_table_is_the_same_rows(table: Table) -> None:
    other = pickle.loads(pickle.dumps(table))
    table.write([3], np.full((1, 4), 9.0))
    assert np.array_equal(other.lookup([3]), np.full((1, 4), 9.0))


def test_a_name_that_was_taken_while_the_rows_were_written_is_said_by_its_name(space: Space) -> None:
    class Rows:
        shape = (4, 4)

        def __getitem__(self, some: slice) -> Any:
            Table.create(space, "users", rows=1, dim=1)
            return np.zeros(self.shape)

    with pytest.raises(NameTaken, match=r"^'users' exists already"):
        Table.create(space, "users", rows=4, dim=4, init=Rows())
    assert Table.open(space, "users").rows == 1
