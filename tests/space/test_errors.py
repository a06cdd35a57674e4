"""Bad input: each kind its own exception, with a message that says what to do."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space, errors
from openshelf.errors import (
    BadAddress,
    BadInput,
    Closed,
    Mismatch,
    NameTaken,
    NoRoom,
    NotPermitted,
    OpenshelfError,
    OutOfRange,
    TooManyMembers,
    UnknownName,
)
from openshelf.space.create import registry
from tests.processes import Failed, Peer, State
from tests.space import shelf


def test_every_error_is_an_openshelf_error_and_what_python_calls_it() -> None:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert all(issubclass(kind, OpenshelfError) for kind in classes)
    assert issubclass(UnknownName, KeyError)
    assert issubclass(NoRoom, MemoryError)
    assert issubclass(NotPermitted, PermissionError)
    assert str(UnknownName("plain")) == "plain"


def test_taken_name_says_how_to_go_on(space: Space) -> None:
    space.put("a", np.zeros(3))
    with pytest.raises(NameTaken, match=r"'a' exists already; delete it, choose another name, or put\(\)"):
        space.new("a", 3)
    with pytest.raises(NameTaken, match="'a' exists already in the space 'shelf'"):
        space.put("a", np.zeros(3), replace=False)


def test_full_space_says_how_much_is_free(space: Space) -> None:
    space.zeros("a", 40 << 20, "uint8")
    free = shelf.free_bytes(space)
    with pytest.raises(NoRoom, match=f"{free} of {64 << 20} bytes are free.*delete arrays.*or grow") as error:
        space.zeros("b", 40 << 20, "uint8")
    assert str(40 << 20) in str(error.value)
    assert shelf.free_bytes(space) == free
    assert shelf.problems(space) == shelf.SOUND


@pytest.mark.parametrize("nbytes", [1, 1000, 8192])
def test_space_full_of_small_arrays_refuses_the_next_and_serves_again_after_delete(home: Path, nbytes: int) -> None:
    with Space.create("shelf", "1MiB") as space:
        count = _fill(space, nbytes)
        assert count >= (1 << 20) // max(nbytes, 64) * 3 // 4
        space.delete("n5")
        space.put("again", np.zeros(nbytes, np.uint8))
        assert shelf.problems(space) == shelf.SOUND


def _fill(space: Space, nbytes: int) -> int:
    for number in range(1 << 20):
        try:
            space.put(f"n{number}", np.zeros(nbytes, np.uint8))
        except NoRoom:
            return number
    raise AssertionError("the space never filled up")


def test_unknown_name_lists_the_nearest(space: Space) -> None:
    space.put("weights", np.zeros(3))
    space.put("biases", np.zeros(3))
    for call in (
        lambda: space["weigths"],
        lambda: space.delete("weigths"),
        lambda: space.rename("weigths", "x"),
    ):
        with pytest.raises(UnknownName, match="there is no array 'weigths'; did you mean 'weights'"):
            call()
    with pytest.raises(UnknownName, match=r"there is no space 'shelv'.*did you mean 'shelf'"):
        Space.open("shelv")
    with pytest.raises(UnknownName):
        Space.remove("nothing")


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((2, -1), "int8", "negative"),
        ((1 << 40, 1 << 40), "int64", "more bytes"),
        (3, "no such", "not a dtype"),
    ],
)
def test_impossible_shape_or_dtype_is_a_mismatch(space: Space, shape: Any, dtype: str, expected: str) -> None:
    with pytest.raises(Mismatch, match=expected):
        space.zeros("a", shape, dtype)
    assert len(space) == 0


def test_array_without_dimensions_has_no_length_and_no_parts(space: Space) -> None:
    array = space.put("a", 5)
    with pytest.raises(Mismatch, match="no length"):
        len(array)
    with pytest.raises(OutOfRange, match="no rows"):
        array[0]


def test_too_many_dimensions_are_refused(space: Space) -> None:
    with pytest.raises(BadInput, match="at most 64 dimensions"):
        space._native.make(1, 3, 0, [1] * 65, "", "a", True)


@pytest.mark.parametrize("place", ["below", "above", "metadata", "hole", "tail"])
def test_address_where_no_array_is_says_so(space: Space, place: str) -> None:
    array = space.put("a", np.zeros(100_000, np.uint8))
    stats = space.describe()
    address = {
        "below": 0x1000,
        "above": stats["base"] + stats["reserve"] + 1,
        "metadata": stats["base"] + 64,
        "hole": array.address + (10 << 20),
        "tail": stats["data_address"] + stats["bytes"],
    }[place]
    with pytest.raises(BadAddress, match=f"address {address:#x} is .* of the space 'shelf'"):
        space.at(address, 1, "uint8")
    if place == "hole":
        assert space.where(address).array is None
    else:
        with pytest.raises(BadAddress):
            space.where(address)


@pytest.mark.parametrize("address", [-1, 1 << 64])
def test_number_that_is_no_address_says_so(space: Space, address: int) -> None:
    for call in (lambda: space.at(address, 1, "uint8"), lambda: space.where(address)):
        with pytest.raises(BadAddress):
            call()


def test_range_beyond_the_end_of_an_array_says_where_it_ends(space: Space) -> None:
    array = space.put("a", np.zeros(100, np.uint8))
    with pytest.raises(BadAddress, match=f"ends at {array.address + 100:#x}"):
        space.at(array.address + 50, 51, "uint8")
    with pytest.raises(Mismatch, match="negative"):
        space.at(array.address, -1, "uint8")


@pytest.mark.parametrize("name", ["", "\x01hidden", "\n", "x" * 1025, "é" * 513])
def test_impossible_array_names_are_refused(space: Space, name: str) -> None:
    for call in (
        lambda: space.put(name, np.zeros(1)),
        lambda: space.new(name, 1),
        lambda: space.rename("a", name),
    ):
        space.put("a", np.zeros(1))
        with pytest.raises(BadInput, match="name"):
            call()
    with pytest.raises(BadInput, match="name"):
        space.lock(name)
    assert list(space) == ["a"]


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "-x", ".hidden", "x" * 65, "ключ"])
def test_impossible_space_names_are_refused(home: Path, name: str) -> None:
    with pytest.raises(BadInput, match="not a name for a space"):
        Space.create(name, "16MiB")


@pytest.mark.parametrize("size", ["", "lots", "-1", "1 XiB", 0, -5, "0MiB", True])
def test_impossible_sizes_are_refused(home: Path, size: Any) -> None:
    with pytest.raises(BadInput, match="size"):
        Space.create("shelf", size)
    assert not (home / "shelf").exists()


def test_space_without_its_files_can_be_removed(home: Path) -> None:
    Space.create("shelf", "16MiB").close()
    (home / "shelf" / "control").unlink()
    with pytest.raises(OpenshelfError):
        Space.open("shelf")
    Space.remove("shelf")
    assert registry.names() == []


def test_unknown_mode_and_group_are_refused(space: Space, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="mode is 'r' or 'rw'"):
        Space.open("shelf", "w")
    with pytest.raises(BadInput, match="no group 'no-such-group'"):
        Space.create("other", "16MiB", group="no-such-group", backing=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert registry.names() == ["shelf"]


def test_use_after_close_says_so(space: Space) -> None:
    again = Space.open("shelf")
    folder = again.folder("f")
    again.close()
    for call in (
        lambda: again["a"],
        lambda: again.put("a", np.zeros(1)),
        lambda: list(again),
        lambda: "a" in again,
        lambda: again.delete("a"),
        lambda: again.check(),
        lambda: again.lock("l"),
        lambda: again.at(1, 1, "int8"),
    ):
        with pytest.raises(Closed, match="open it again"):
            call()
    folder.put("b", np.zeros(1))  # a folder is a handle of its own
    assert list(space) == ["f/b"]


def test_use_after_remove_says_so(space: Space, peer: Peer) -> None:
    space.put("a", np.zeros(1))
    peer.call(shelf.open_space)
    Space.remove("shelf")
    for call in (
        lambda: space["a"],
        lambda: space.get("a"),
        lambda: space.put("a", np.zeros(1)),
        lambda: list(space),
        lambda: space.delete("a"),
        lambda: space.rename("a", "b"),
        lambda: space.check(),
        lambda: space.describe(),
        lambda: space.at(1, 1, "int8"),
        lambda: space.grow(1 << 20),
    ):
        with pytest.raises(Closed, match="'shelf' was removed"):
            call()
    with pytest.raises(Failed, match="Closed: the space 'shelf' was removed"):
        peer.call(shelf.read, "a")


def test_all_member_slots_taken_says_so(space: Space) -> None:
    with Peer() as peer:
        path = str(registry.find("shelf"))
        peer.call(_occupy_slots, f"{path}/members")
        with Peer() as late, pytest.raises(Failed, match="TooManyMembers: all 1024 member slots are taken"):
            late.call(shelf.open_space)
    assert issubclass(TooManyMembers, OpenshelfError)
    with Peer() as later:
        later.call(shelf.open_space)


def _occupy_slots(state: State, path: str) -> None:
    """Holds the record locks of all slots but those in use, as a thousand processes would."""
    state["file"] = open(path, "r+b")  # noqa: SIM115
    for slot in range(1, 1024):
        fcntl.lockf(state["file"], fcntl.LOCK_EX, 1, slot)
