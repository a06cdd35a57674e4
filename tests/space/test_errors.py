"""Bad input and bad surroundings: each its own exception, with a message that says what to do."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space, _core, errors
from openshelf.errors import (
    AddressOccupied,
    BadAddress,
    BadInput,
    Closed,
    Corrupt,
    Mismatch,
    NameTaken,
    NoRoom,
    NotPermitted,
    OpenshelfError,
    TooManyMembers,
    UnknownName,
    WrongVersion,
)
from openshelf.space.create import registry
from tests.conftest import needs_root
from tests.processes import Died, Failed, Peer, State, in_fresh_process
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
    with pytest.raises(Mismatch, match="no parts"):
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


# The directory and its files


def test_space_of_another_version_is_refused(home: Path) -> None:
    Space.create("shelf", "16MiB").close()
    with (home / "shelf" / "control").open("r+b") as file:
        file.seek(16)
        (version,) = struct.unpack("<I", file.read(4))
        assert version == _core.VERSION
        file.seek(16)
        file.write(struct.pack("<I", version + 1))
    with pytest.raises(WrongVersion, match=f"layout version {version + 1}, this Openshelf reads {version}"):
        Space.open("shelf")
    Space.remove("shelf")


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_directory_that_others_can_write_is_refused(home: Path, mode: int) -> None:
    Space.create("shelf", "16MiB").close()
    home.chmod(mode)
    for call in (
        lambda: Space.open("shelf"),
        lambda: Space.create("new", "16MiB"),
        lambda: Space.remove("shelf"),
    ):
        with pytest.raises(NotPermitted, match=f"mode {mode:o}.*set OPENSHELF_DIR"):
            call()
    home.chmod(0o700)
    Space.open("shelf").close()


@needs_root
def test_directory_of_another_user_is_refused(home: Path) -> None:
    os.chown(home, 12345, -1)
    with pytest.raises(NotPermitted, match="belongs to user 12345, expected 0"):
        Space.create("shelf", "16MiB")
    os.chown(home, 0, -1)


def test_directory_that_is_a_link_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "real").mkdir(mode=0o700)
    (home / "link").symlink_to(home / "real")
    monkeypatch.setenv("OPENSHELF_DIR", str(home / "link"))
    with pytest.raises(NotPermitted):
        Space.create("shelf", "16MiB")


@needs_root
def test_other_user_may_not_open_a_private_space(space: Space) -> None:
    path = str(registry.find("shelf"))
    with Peer() as peer, pytest.raises(Failed, match="NotPermitted: user 12345 may not"):
        peer.call(_open_as, 12345, path)


def _open_as(state: State, user: int, path: str) -> None:
    os.setuid(user)
    Space.open(path)


def test_occupied_base_address_names_what_is_there(space: Space) -> None:
    base = int(space.describe()["base"])
    with Peer() as peer:
        peer.call(_occupy, base + (1 << 30))
        with pytest.raises(
            Failed, match=r"AddressOccupied: cannot map the space 'shelf'.*anonymous memory is mapped at"
        ):
            peer.call(shelf.open_space)
        with pytest.raises(Failed, match="AddressOccupied"):
            peer.call(_create_at, base)
    assert issubclass(AddressOccupied, OpenshelfError)


def test_new_space_avoids_addresses_that_are_occupied(home: Path) -> None:
    with Peer() as peer:
        peer.call(_occupy, registry.FIRST_BASE)
        assert peer.call(_create_at, None) >= registry.FIRST_BASE + registry.GRAIN


def _occupy(state: State, address: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    private_anonymous_fixed_noreplace = 0x02 | 0x20 | 0x100000
    got = libc.mmap(ctypes.c_void_p(address), 4096, 0, private_anonymous_fixed_noreplace, -1, 0)
    assert got == address


def _create_at(state: State, base: int | None) -> int:
    with Space.create("another", "16MiB", base=base) as space:
        return int(space.describe()["base"])


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tmpfs of 24 MiB as the directory of all spaces, as in a container with a small /dev/shm."""
    point = tmp_path / "small"
    point.mkdir(mode=0o700)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs", str(point)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    monkeypatch.setenv("OPENSHELF_DIR", str(point))
    yield point
    subprocess.run(["umount", "-l", str(point)], check=False)


@needs_root
def test_more_memory_than_the_file_system_has_is_refused_at_creation(small: Path) -> None:
    with pytest.raises(NoRoom, match=r"free, the space wants 64 MiB.*--shm-size"):
        Space.create("shelf", "60MiB")
    assert [path.name for path in small.iterdir()] == [".lock"]
    with Space.create("shelf", "8MiB") as space, pytest.raises(NoRoom, match="--ipc=host"):
        space.grow("1GiB")


@needs_root
@pytest.mark.parametrize("nbytes", [100, 8000, 100_000, 3 << 20])
def test_file_system_that_fills_up_later_is_an_error_and_not_a_crash(small: Path, nbytes: int) -> None:
    Space.create("shelf", "16MiB").close()
    room = os.statvfs(small)
    (small / "ballast").write_bytes(bytes(room.f_bavail * room.f_frsize - (5 << 20)))
    count = in_fresh_process(_fill_until_refused, nbytes)
    assert count * nbytes < 6 << 20
    (small / "ballast").unlink()
    with Space.open("shelf") as space:
        assert len(space) == count
        assert shelf.problems(space) == shelf.SOUND
        space.put("now", np.zeros(nbytes, np.uint8))


def _fill_until_refused(nbytes: int) -> int:
    with Space.open("shelf") as space:
        for number in range(1 << 20):
            try:
                space.put(f"n{number}", np.ones(nbytes, np.uint8))
            except NoRoom as error:
                if "bytes are free" not in str(error):
                    raise
                for done in range(number):
                    assert space[f"n{done}"].numpy().all()
                return number
    raise AssertionError("never full")


def test_files_that_are_missing_or_cut_are_errors(home: Path) -> None:
    Space.create("shelf", "16MiB").close()
    for name in ("control", "members", "data"):
        shutil.move(home / "shelf" / name, home / "aside")
        with pytest.raises(OpenshelfError):
            Space.open("shelf")
        size = (home / "aside").stat().st_size
        for wanted in (0, 100, size - 4096):
            with (home / "shelf" / name).open("wb") as file:
                file.truncate(wanted)
            with pytest.raises(Corrupt, match=f"{name}|control|truncated|bytes"):
                Space.open("shelf")
        shutil.move(home / "aside", home / "shelf" / name)
        Space.open("shelf").close()


def test_header_that_was_changed_fails_its_checksum(home: Path) -> None:
    Space.create("shelf", "16MiB").close()
    with (home / "shelf" / "control").open("r+b") as file:
        file.seek(40)
        byte = file.read(1)[0]
        file.seek(40)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(Corrupt, match="header fails its checksum"):
        Space.open("shelf")


def test_space_of_an_earlier_boot_is_refused(home: Path) -> None:
    with Space.create("pattern", "16MiB") as space:
        base, reserve = space.describe()["base"] + (256 << 30), space.describe()["reserve"]
    (home / "shelf").mkdir(mode=0o700)
    _core.Core.create(str(home / "shelf"), "shelf", "an-earlier-boot", "", 16 << 20, base, reserve, 4096, 0o600)
    with pytest.raises(Corrupt, match=r"earlier boot of this machine.*an-earlier-boot.*remove it"):
        Space.open("shelf")
    Space.remove("shelf")


def _work_until_killed(state: State, number: int) -> None:
    space: Space = state["space"]
    for turn in range(1 << 30):
        space.put(f"{number}/{turn % 50}", np.full(2000 * (turn % 5 + 1), turn))
        space.put(None, np.zeros(100_000))
        if turn % 3 == 0:
            space.rename(f"{number}/{turn % 50}", f"{number}/moved")
            space.delete(f"{number}/moved")


@pytest.mark.parametrize("turn", range(3))
def test_space_whose_processes_were_all_killed_is_repaired(home: Path, turn: int) -> None:
    with Space.create("shelf", "64MiB") as space:
        for number in range(100):
            space.put(f"kept/{number}", shelf.pattern(number, 100 * number + 1))
        space.rename("kept/7", "kept/seven")
    del space
    peers = [Peer() for _ in range(2)]
    for number, peer in enumerate(peers):
        peer.call(shelf.open_space)
        peer.call(shelf.hold, "kept/50")
        peer.start(_work_until_killed, number)
    with pytest.raises(Exception, match="no answer"):
        peers[0].finish(0.3 + 0.1 * turn)
    for peer in peers:
        peer.kill()
    for mode in ("r", "rw"):
        with Peer() as reader:
            reader.call(shelf.open_space, "shelf", mode)
            assert len([name for name in reader.call(shelf.names) if name.startswith("kept/")]) == 100
    with Space.open("shelf") as again:
        for number in range(100):
            name = "kept/seven" if number == 7 else f"kept/{number}"
            assert np.array_equal(again[name].numpy(), shelf.pattern(number, 100 * number + 1))
        for entry in again.list():
            if not entry.name.startswith("kept/"):
                view = again[entry.name].numpy()
                assert (view == view[0]).all()
        assert shelf.problems(again) == shelf.SOUND


def test_maker_that_was_killed_leaves_nothing_in_the_way(home: Path) -> None:
    (home / ".new-1-shelf").mkdir()
    (home / ".new-1-shelf" / "control").write_bytes(b"half")
    (home / ".gone-1-shelf").mkdir()
    with Space.create("shelf", "16MiB"):
        assert sorted(path.name for path in home.iterdir()) == [".lock", "shelf"]


def test_process_that_dies_in_a_test_is_noticed(peer: Peer) -> None:
    peer.start(_die)
    with pytest.raises(Died) as death:
        peer.finish()
    assert death.value.code == 7


def _die(state: State) -> None:
    os._exit(7)
