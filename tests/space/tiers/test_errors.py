"""Flash that fails: operations say which file, and what was lost; nothing else is, and what cannot be written stays."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from openshelf import Array, Space
from openshelf.errors import Corrupt, FlashFailed, NoRoom, OpenshelfError
from tests.conftest import needs_root
from tests.space.tiers.conftest import with_faults
from tests.space.tiers.shelves import (
    DRAM,
    FLASH,
    KIB,
    MIB,
    UNIT,
    demoted,
    keeper,
    kill_keeper,
    make,
    push,
    tiers,
    wait_until,
    words,
)

FILE = "shelf-0.flash"
HEAD = 4 * KIB  # of a flash file


def place_of(space: Space, address: int) -> int:
    """Where a unit is in the one flash file of a space that is not durable."""
    return HEAD + (address - int(space.describe()["data_address"])) // UNIT * UNIT


def damage(path: Path, at: int, nbytes: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(nbytes)
        file.seek(at)
        file.write(bytes(byte ^ 0x40 for byte in old))
        file.flush()
        os.fsync(file.fileno())


def aligned(space: Space, name: str, units: int) -> Array:
    """An array whose rows are units, on flash."""
    array = space.put(name, words(len(name), 1, units * UNIT).reshape(units, -1))
    if array.address % UNIT:
        pytest.skip("the array does not begin with a unit")
    return demoted(array)


def row(name: str, number: int, units: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return words(len(name), 1, units * UNIT)[number * UNIT // 8 : (number + 1) * UNIT // 8]


TOUCH = """
import sys
from openshelf import Space
view = Space.open("shelf")[sys.argv[1]].numpy()
print(int(view.ravel()[int(sys.argv[2])]), flush=True)
"""


def touch(name: str, place: int) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    arguments = [sys.executable, "-c", TOUCH, name, str(place)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("keeper_is", ["running", "killed"])
def test_damaged_block_is_refused_and_nothing_else(shelf: Space, tmp_path: Path, keeper_is: str) -> None:
    array, other = aligned(shelf, "array", 24), aligned(shelf, "other-one", 24)
    damage(tmp_path / FILE, place_of(shelf, array.address + 5 * UNIT) + 777)
    if keeper_is == "killed":
        kill_keeper(shelf)
    for attempt in (array, array[5], array[4:6]):
        with pytest.raises(Corrupt, match=r"checksum.*'array'") as caught:
            attempt.prefetch().wait(60)
        assert "other-one" not in str(caught.value)
    with pytest.raises(Corrupt, match="'array'"):
        array[5].pin().wait(60)
    assert array[:5].prefetch().wait(60)
    assert array[6:].prefetch().wait(60)
    for number in (*range(5), *range(6, 24)):
        assert np.array_equal(array[number].numpy(), row("array", number, 24)), number
    assert np.array_equal(other.numpy().ravel(), words(9, 1, 24 * UNIT))
    assert tiers(shelf)["pinned_bytes"] == 0 or shelf.describe()["tiers"]["faults_how"] == "none"
    assert tiers(shelf)["errors"] >= 3
    shelf.delete("array")  # what is lost can be forgotten, and its memory used again
    del array, attempt
    fresh = shelf.zeros("fresh", (24, UNIT // 8), "uint64")
    assert not fresh.numpy().any()


@with_faults
def test_touch_of_a_damaged_block_ends_that_process_and_says_why(shelf: Space, tmp_path: Path) -> None:
    array = aligned(shelf, "array", 24)
    damage(tmp_path / FILE, place_of(shelf, array.address + 5 * UNIT))
    view = array.numpy()
    assert view[4, 0] == row("array", 4, 24)[0]  # and what follows is read ahead
    died = touch("array", 5 * UNIT // 8 + 3)
    assert died.returncode == -signal.SIGBUS
    for said in ("openshelf", "shelf", "checksum", "'array'", "prefetch"):
        assert said in died.stderr
    fine = touch("array", 6 * UNIT // 8)
    assert (fine.returncode, int(fine.stdout)) == (0, int(row("array", 6, 24)[0]))
    assert np.array_equal(view[6:].ravel(), words(5, 1, 24 * UNIT)[6 * UNIT // 8 :])
    assert touch("array", 5 * UNIT // 8).returncode == -signal.SIGBUS


@pytest.mark.parametrize("keeper_is", ["running", "killed"])
def test_truncated_file_loses_what_was_behind_its_end(shelf: Space, tmp_path: Path, keeper_is: str) -> None:
    array, other = aligned(shelf, "array", 24), aligned(shelf, "other-one", 24)
    first, second = sorted((array, other), key=lambda one: one.address)
    os.truncate(tmp_path / FILE, place_of(shelf, second.address + 2 * UNIT))
    if keeper_is == "killed":
        kill_keeper(shelf)
    with pytest.raises(FlashFailed, match=f"{FILE}.*truncated.*{second.name}"):
        second.prefetch().wait(60)
    name = str(first.name)
    assert np.array_equal(first.numpy().ravel(), words(len(name), 1, 24 * UNIT))
    for number in range(2):
        assert np.array_equal(second[number].numpy(), row(str(second.name), number, 24))
    # What is written now makes the file longer, and is there.
    shelf.put("new", words(3, 3, 4 * MIB))
    demoted(shelf["new"])
    assert np.array_equal(shelf["new"].numpy(), words(3, 3, 4 * MIB))


def test_vanished_file_is_told_by_the_next_keeper(shelf: Space, tmp_path: Path) -> None:
    """The one that has it open goes on."""
    array = aligned(shelf, "array", 24)
    here = shelf.put("here", words(4, 1, 2 * MIB))
    (tmp_path / FILE).rename(tmp_path / "elsewhere")
    assert array[0].prefetch().wait(60)
    kill_keeper(shelf)
    with pytest.raises(FlashFailed, match=f"{FILE} cannot be opened.*'array'"):
        array[1].prefetch().wait(60)
    with pytest.raises(FlashFailed, match=f"{FILE}.*'here'"):
        here.demote().wait(60)
    assert here.tier == "dram"
    assert np.array_equal(shelf["here"].numpy(), words(4, 1, 2 * MIB))
    assert np.array_equal(array[0].numpy(), row("array", 0, 24))
    (tmp_path / "elsewhere").rename(tmp_path / FILE)
    kill_keeper(shelf)
    assert array.prefetch().wait(60)
    assert np.array_equal(shelf["array"].numpy().ravel(), words(5, 1, 24 * UNIT))


def test_another_file_in_its_place_is_not_taken_for_it(shelf: Space, tmp_path: Path) -> None:
    array = aligned(shelf, "array", 24)
    (tmp_path / FILE).rename(tmp_path / "elsewhere")
    with (tmp_path / FILE).open("wb") as file:
        file.truncate(FLASH + HEAD)
    kill_keeper(shelf)
    with pytest.raises(FlashFailed, match="not the one that this space made"):
        array.prefetch().wait(60)
    (tmp_path / "elsewhere").rename(tmp_path / FILE)


@with_faults
def test_touch_of_what_is_in_no_file_ends_that_process_only(shelf: Space, tmp_path: Path) -> None:
    aligned(shelf, "array", 24)
    shelf.put("here", words(4, 1, MIB))
    (tmp_path / FILE).unlink()
    kill_keeper(shelf)
    keeper(shelf)
    died = touch("array", 0)
    assert died.returncode == -signal.SIGBUS
    assert FILE in died.stderr
    fine = touch("here", 9)
    assert (fine.returncode, int(fine.stdout)) == (0, int(words(4, 1, MIB)[9]))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 320 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=320M", "tmpfs", path], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(directory: Path) -> Path:
    """A file that takes all the room there is."""
    status, path = os.statvfs(directory), directory / "filler"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize)
    return path


@needs_root
def test_full_disk_keeps_dirty_bytes_in_memory(mode: str, small_disk: Path, tmp_path: Path) -> None:
    with make(small_disk) as space:
        array = aligned(space, "array", 24)
        here = space.put("here", words(4, 1, 2 * MIB))
        # Holes come into the file, and others take the room.
        os.truncate(small_disk / FILE, place_of(space, here.address))
        os.truncate(small_disk / FILE, FLASH + HEAD)
        filler = fill(small_disk)
        with pytest.raises(NoRoom, match=f"{FILE}.*No space.*still in dram: 'here'"):
            here.demote().wait(60)
        assert here.tier == "dram"
        assert np.array_equal(space["here"].numpy(), words(4, 1, 2 * MIB))
        assert np.array_equal(space["array"].numpy().ravel(), words(5, 1, 24 * UNIT))
        assert re.search("No space", tiers(space)["trouble"])
        demoted(array)  # clean: it needs no room
        filler.unlink()
        wait_until(lambda: _goes(here))
        assert np.array_equal(space["here"].numpy(), words(4, 1, 2 * MIB))
    Space.remove("shelf")


def _goes(array: Array) -> bool:
    try:
        return array.demote().wait(60) and array.tier == "flash"
    except OpenshelfError:
        return False


@needs_root
def test_full_disk_under_pressure_is_told_and_loses_nothing(mode: str, small_disk: Path) -> None:
    """More dirty bytes than memory is meant for: puts go on as long as they can, and all that was put is there."""
    with make(small_disk) as space:
        os.truncate(small_disk / FILE, HEAD)
        os.truncate(small_disk / FILE, FLASH + HEAD)
        filler = fill(small_disk)
        made = []
        with contextlib.suppress(NoRoom, FlashFailed):
            for number in range(12):
                space.put(f"a{number}", words(number, 1, 4 * MIB))
                made.append(number)
        assert len(made) >= 6
        for number in made:
            assert np.array_equal(space[f"a{number}"].numpy(), words(number, 1, 4 * MIB)), number
        assert tiers(space)["errors"] > 0
        filler.unlink()
        wait_until(lambda: _pushed(space))
        for number in made:
            assert np.array_equal(space[f"a{number}"].numpy(), words(number, 1, 4 * MIB)), number
        wait_until(lambda: tiers(space)["dram_bytes"] <= DRAM)
    Space.remove("shelf")


def _pushed(space: Space) -> bool:
    try:
        push(space, 8 * MIB)
        return True
    except OpenshelfError:
        return False
