"""A space and its folders where people are used to dictionaries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openshelf import Folder, KVPool, Layout, Space, Table
from openshelf.errors import BadInput, Closed, Mismatch, NoRoom, UnknownName
from tests.space import shelf


@pytest.fixture(params=["space", "folder"])
def place(request: pytest.FixtureRequest, space: Space) -> Folder:
    return space if request.param == "space" else space.folder("f")


def test_it_is_used_like_a_dictionary(place: Folder) -> None:
    place["a"] = np.arange(3)
    place["b"] = torch.ones(2)
    place["c"] = [1.5, 2.5]
    assert len(place) == 3
    assert list(place) == list(place.keys()) == ["a", "b", "c"]
    assert "a" in place
    assert "z" not in place.keys()  # noqa: SIM118
    assert {name: array.numpy().tolist() for name, array in place.items()} == {
        "a": [0, 1, 2],
        "b": [1, 1],
        "c": [1.5, 2.5],
    }
    assert [array.name for array in place.values()] == [f"{place._prefix}{name}" for name in "abc"]
    assert dict(place)["c"][1] == 2.5
    assert place.get("z", 5) == 5
    assert place.get("z") is None
    del place["a"]
    assert list(place) == ["b", "c"]
    with pytest.raises(KeyError, match="did you mean"):
        del place["bb"]
    with pytest.raises(UnknownName):
        place["a"]


def test_only_arrays_are_given_as_arrays(place: Folder) -> None:
    """The bytes of a lock are nobody's to write."""
    place["a"] = [1]
    made = (place.lock("lock"), place.barrier("barrier", 2), place.channel("channel"), place.counter("counter"))
    for kind in (type(one).__name__.lower() for one in made):
        for find in (place.__getitem__, place.get):
            with pytest.raises(Mismatch, match=rf"is of kind {kind}, not array; \.{kind}\('{kind}'.*\) opens it"):
                find(kind)
        assert kind in place
    assert len(place.list()) == 5
    assert [name for name, _ in place.items()] == ["a"]
    assert len(list(place.values())) == 1


def test_a_pool_and_a_table_are_not_given_as_arrays(space: Space) -> None:
    KVPool(space, Layout("m", layers=1, heads=1, head_dim=8, dtype="float32"), capacity="1MiB").close()
    Table.create(space, "rows", rows=4, dim=2)
    with pytest.raises(Mismatch, match=r"is of kind pool, not array; KVPool\(space, layout, name='kv'\) opens it"):
        space["kv"]
    with pytest.raises(Mismatch, match=r"is of kind table, not array; Table.open\(space, 'rows'\) opens it"):
        space["rows"]


def test_an_assignment_publishes_a_copy_and_replaces(place: Folder) -> None:
    value = np.zeros(3)
    place["a"] = value
    value[:] = 9
    assert place["a"].numpy().tolist() == [0, 0, 0]
    old = place["a"]
    place["a"] = np.ones((2, 2), np.int8)
    assert old.numpy().tolist() == [0, 0, 0]
    assert place["a"].numpy().tolist() == [[1, 1], [1, 1]]
    place["b"] = place["a"]
    place["b"][0, 0] = 7
    assert place["a"][0, 0] == 1
    place["a"] = place["a"][1]
    assert place["a"].shape == (2,), "a part is not the array itself"


def test_an_assignment_in_place_changes_the_array_that_is_there(place: Folder) -> None:
    place["a"] = np.zeros(3)
    before = place["a"].address
    place["a"] += 1
    assert place["a"].address == before
    assert place["a"].numpy().tolist() == [1, 1, 1]


def test_what_is_deleted_during_an_iteration_is_left_out(space: Space) -> None:
    for name in "abc":
        space[name] = np.zeros(1)
    seen = []
    for name, _ in space.items():
        seen.append(name)
        if "b" in space:
            space.delete("b")
    assert seen == ["a", "c"]
    assert len(space.items()) == len(space.values()) == 2


@pytest.mark.parametrize("key", [None, 5, b"a", ("a",), "", "\x01hidden"])
def test_a_key_that_is_no_name_is_refused(space: Space, key: Any) -> None:
    calls: list[Any] = [lambda: space.__setitem__(key, np.zeros(1)), lambda: space.__delitem__(key)]
    for call in calls:
        with pytest.raises((BadInput, Mismatch), match="name"):
            call()
    assert len(space) == 0


def test_a_closed_space_refuses(space: Space) -> None:
    again = Space.open("shelf")
    again.close()
    calls: list[Any] = [
        lambda: again.__setitem__("a", np.zeros(1)),
        lambda: again.__delitem__("a"),
        lambda: list(again.keys()),
        lambda: list(again.items()),
        lambda: list(again.values()),
        lambda: len(again),
    ]
    for call in calls:
        with pytest.raises(Closed, match="open it again"):
            call()


def test_a_replacement_without_room_says_that_it_needs_room_for_both(home: Path) -> None:
    with Space.create("shelf", "16MiB") as space:
        space["a"] = np.zeros(10 << 20, np.uint8)
        with pytest.raises(NoRoom, match="Replacing 'a' needs room for the new array of 9 MiB while the old one"):
            space["a"] = np.zeros(9 << 20, np.uint8)
        with pytest.raises(NoRoom) as plain:
            space["b"] = np.zeros(9 << 20, np.uint8)
        assert "Replacing" not in str(plain.value)
        assert space["a"].shape == (10 << 20,)
        assert shelf.problems(space) == shelf.SOUND
