"""What another user changes between a look and a use, and what a member of a group names for others to open."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from openshelf import Space, _files
from openshelf.errors import Closed, NotPermitted, OpenshelfError
from tests.security.attacker import SECRET, another_group, another_user, as_member, needs_another_user, run_as_other
from tests.security.forging import CHECK, TIERS, checked
from tests.security.test_files import state_of

pytestmark = needs_another_user


# The directory of spaces, below one that others can change


@pytest.fixture
def loose(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of spaces that is ours, in one that anybody can change."""
    home.chmod(0o777)
    path = home / "spaces"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("OPENSHELF_DIR", str(path))
    return path


def prepared_by_them(theirs: Path, name: str, target: Path) -> None:
    """A directory with a link in it."""

    def prepare() -> None:
        theirs.mkdir(mode=0o755)
        (theirs / name).symlink_to(target)

    assert run_as_other(prepare) == "None"


def swapped_after_the_look(monkeypatch: pytest.MonkeyPatch, path: Path, theirs: Path) -> None:
    """Their directory takes the place of ours as soon as ours was found good."""
    looked = _files.open_folder

    def look(folder: str | os.PathLike[str]) -> int:
        handle = looked(folder)
        if Path(folder) == path and not theirs.with_name("ours").exists():
            path.rename(theirs.with_name("ours"))
            theirs.rename(path)
        return handle

    monkeypatch.setattr(_files, "open_folder", look)


@pytest.mark.parametrize("name", [".gone-1-x", ".new-1-x"])
def test_a_directory_of_spaces_that_is_swapped_leads_no_removal_to_our_files(
    loose: Path, precious: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What a killed process left is cleared away by name: `data` and `control` are names of anybody's files."""
    ours = precious.parent / "ours"
    ours.mkdir(mode=0o700)
    for file in ("control", "data", "backing", "units"):
        (ours / file).write_bytes(SECRET)
    theirs = loose.with_name("theirs")
    prepared_by_them(theirs, name, ours)
    swapped_after_the_look(monkeypatch, loose, theirs)
    with pytest.raises(NotPermitted, match="is a symbolic link"):
        Space.create("shelf", "1MiB")
    assert sorted(file.name for file in ours.iterdir()) == ["backing", "control", "data", "units"]


def test_a_directory_of_spaces_that_is_swapped_names_no_backing_to_remove(
    loose: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = loose.with_name("theirs")
    prepared_by_them(theirs, ".backing-old", precious)
    swapped_after_the_look(monkeypatch, loose, theirs)
    with pytest.raises(NotPermitted, match=f"belongs to user {another_user().pw_uid}"):
        Space.create("shelf", "1MiB")
    assert precious.read_bytes() == SECRET


# A file that is a link every other moment


@contextmanager
def flickering(path: Path, precious: Path) -> Iterator[None]:
    """`path` is a good file, then a link to another, then nothing, over and over."""
    good, link = path.with_name(".good"), path.with_name(".link")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            good.write_bytes(b"good")
            good.chmod(0o600)
            good.rename(path)
            link.symlink_to(precious)
            link.rename(path)
            path.unlink()

    attacker = threading.Thread(target=swap)
    attacker.start()
    try:
        yield
    finally:
        stop.set()
        attacker.join()


def often(work: Callable[[], None]) -> None:
    """400 times, and on until it went well and was refused."""
    counts, deadline = {"done": 0, "refused": 0}, time.monotonic() + 60
    while sum(counts.values()) < 400 or not min(counts.values()):
        assert time.monotonic() < deadline, counts
        try:
            work()
            counts["done"] += 1
        except OSError:  # the system's, if what it was is gone when we look
            counts["refused"] += 1
        except OpenshelfError:
            counts["refused"] += 1


def test_a_file_that_flickers_is_never_written_through(precious: Path) -> None:
    path = precious.parent / "flickers"
    before = state_of(precious)[3:]

    def write() -> None:
        handle = _files.open_own(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.write(handle, b"ours")
        os.close(handle)

    with flickering(path, precious):
        often(write)
    assert state_of(precious)[3:] == before


def test_a_file_of_a_space_that_flickers_is_never_written_through(home: Path, precious: Path) -> None:
    with Space.create("shelf", "1MiB") as space:
        space.put("x", np.arange(10))
    data = home / "shelf" / "data"
    real = home / "real"
    data.rename(real)
    stop = threading.Event()

    def swap() -> None:
        link = home / "link"
        while not stop.is_set():
            real.rename(data)
            link.symlink_to(precious)
            data.rename(real)
            link.rename(data)
            data.unlink()

    def use() -> None:
        with Space.open("shelf") as opened:
            opened.put("y", np.full(1000, 7))

    attacker = threading.Thread(target=swap)
    attacker.start()
    try:
        often(use)
    finally:
        stop.set()
        attacker.join()
    assert precious.read_bytes() == SECRET


# What the owner of a shared space names for its members


@pytest.fixture
def shared_by_them(home: Path) -> Iterator[Path]:
    """A space of another user's, shared with a group that this process is in."""
    theirs = home.with_name(home.name + "-theirs")
    theirs.mkdir(mode=0o711)
    os.chown(theirs, another_user().pw_uid, -1)
    group = another_group()

    def make() -> None:
        os.environ["OPENSHELF_DIR"] = str(theirs)
        Space.create("bait", "1MiB", group=group.gr_name).close()

    assert run_as_other(make, [group.gr_gid]) == "None"
    groups = os.getgroups()
    os.setgroups([*groups, group.gr_gid])
    yield theirs / "bait"
    os.setgroups(groups)
    for file in (theirs / "bait").iterdir():
        file.unlink()
    (theirs / "bait").rmdir()
    (theirs / ".lock").unlink()
    theirs.rmdir()


def test_what_somebody_shares_with_us_is_opened(shared_by_them: Path) -> None:
    """Without this the refusals below would say nothing."""
    with Space.open(str(shared_by_them)) as space:
        assert space.put("x", np.ones(3)).numpy().sum() == 3


def test_the_owner_of_a_shared_space_cannot_name_a_file_of_roots_for_its_data(
    shared_by_them: Path, precious: Path
) -> None:
    """Root in the group would write arrays into any file of its own."""
    backing = shared_by_them / "backing"
    assert run_as_other(lambda: backing.write_text(str(precious))) == str(len(str(precious)))
    backing.chmod(0o640)
    with pytest.raises(NotPermitted, match=f"belongs to user 0, expected {another_user().pw_uid}"):
        Space.open(str(shared_by_them))
    assert precious.read_bytes() == SECRET


@pytest.mark.parametrize("name", ["control", "data", "members"])
def test_a_file_of_roots_is_no_part_of_somebody_elses_space(shared_by_them: Path, name: str) -> None:
    os.chown(shared_by_them / name, 0, -1)
    with pytest.raises(NotPermitted, match=f"belongs to user 0, expected {another_user().pw_uid}"):
        Space.open(str(shared_by_them))


def test_the_owner_of_a_shared_space_cannot_name_a_device_for_its_data(shared_by_them: Path) -> None:
    """What a device does when it is opened is not theirs to start."""
    backing = shared_by_them / "backing"
    assert run_as_other(lambda: backing.write_text("/dev/zero")) == "9"
    with pytest.raises(NotPermitted, match="/dev/zero is a device, expected a regular file"):
        Space.open(str(shared_by_them))


def test_our_keeper_does_not_serve_a_flash_tier_that_somebody_shares(shared_by_them: Path) -> None:
    """It would open, as us, the files that they name."""

    def claim() -> str:
        with (shared_by_them / "control").open("r+b") as file:
            header = bytearray(file.read(CHECK))
            header[TIERS : TIERS + 8] = struct.pack("<Q", 1)
            file.seek(0)
            file.write(checked(bytes(header)))
        return "done"

    assert run_as_other(claim) == "done"
    with pytest.raises(NotPermitted, match="only its owner, not user 0, can open it"):
        Space.open(str(shared_by_them))
    assert not [file.name for file in shared_by_them.iterdir() if "keeper" in file.name]


def test_a_second_name_that_a_member_gives_a_file_does_not_keep_the_space(home: Path, sticky: Path) -> None:
    with Space.create("shared", "1MiB", group=another_group().gr_name) as space:
        control, second = home / "shared" / "control", sticky / "second"
        assert as_member(lambda: os.link(control, second)) == "None"
        Space.remove("shared")
        with pytest.raises(Closed, match="was removed"):
            space.put("x", np.ones(3))
    assert not (home / "shared").exists()


def test_a_control_file_that_is_a_name_of_another_file_is_not_marked(home: Path, precious: Path) -> None:
    Space.create("shelf", "1MiB").close()
    (home / "shelf" / "control").unlink()
    os.link(precious, home / "shelf" / "control")
    Space.remove("shelf")
    assert not (home / "shelf").exists()
    assert precious.read_bytes() == SECRET


def test_a_directory_in_the_place_of_a_file_is_kept_and_said(home: Path) -> None:
    with Space.create("shelf", "1MiB") as space:
        (home / "shelf" / "backing").mkdir()
        with pytest.raises(NotPermitted, match=r"files that are not the space.s \(backing\)"):
            Space.remove("shelf")
        space.put("still", np.ones(3))
