"""Spaces among hostile users: what somebody prepared, replaced or shared is neither followed, restored nor written."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import Mismatch, NotPermitted, OpenshelfError, UnknownName
from openshelf.space.create import registry
from tests.security.attacker import (
    SECRET,
    TRAPS,
    Trap,
    another_group,
    another_user,
    as_member,
    fifo,
    foreign,
    needs_another_user,
    replaced,
    run_as_other,
    symlink,
)
from tests.security.forging import CHECK, with_backing
from tests.security.test_files import state_of
from tests.space.tiers.shelves import keeper, wait_until

pytestmark = needs_another_user


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
@pytest.mark.parametrize("name", ["control", "members", "data", "backing"])
def test_a_file_of_a_space_that_was_replaced_is_refused(home: Path, precious: Path, name: str, trap: Trap) -> None:
    Space.create("shelf", "1MiB").close()
    replaced(home / "shelf" / name, trap, precious)
    before = state_of(precious)[3:]
    with pytest.raises(NotPermitted, match="remove it if you did not put it there"):
        Space.open("shelf")
    assert state_of(precious)[3:] == before
    assert not (precious.parent / "made-by-mistake").exists()


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_a_backing_outside_that_was_replaced_is_refused_and_its_target_stays(
    home: Path, sticky: Path, precious: Path, trap: Trap
) -> None:
    Space.create("shelf", "1MiB", backing=sticky / "data").close()
    replaced(sticky / "data", trap, precious)
    with pytest.raises(NotPermitted):
        Space.open("shelf")
    assert precious.read_bytes() == SECRET
    if (sticky / "data").is_dir():
        (sticky / "data").rmdir()
    Space.remove("shelf")
    assert precious.read_bytes() == SECRET
    assert not home.joinpath(".backing-shelf").is_symlink()


def test_a_link_on_the_way_to_a_backing_is_not_followed(home: Path, sticky: Path, tmp_path: Path) -> None:
    """Whoever owns a directory above it can lead the path to another file of the victim's, of that name."""
    above, own = sticky / "above", tmp_path / "own"
    above.mkdir()
    own.mkdir()
    (own / "data").write_bytes(SECRET)
    (own / "data").chmod(0o600)
    Space.create("shelf", "1MiB", backing=above / "data").close()
    above.rename(sticky / "moved")
    above.symlink_to(own)
    with pytest.raises(NotPermitted, match="leads to"):
        Space.open("shelf")
    Space.remove("shelf")
    assert (own / "data").read_bytes() == SECRET


def durable(sticky: Path, name: str = "shelf") -> Space:
    return Space.create(name, "32MiB", flash=f"{sticky}/shelf.flash:256MiB", durable=True, exist_ok=True)


@pytest.fixture
def left(home: Path, sticky: Path) -> dict[str, Path]:
    """The files of a durable space after a restart of the machine: flash and journal."""
    with durable(sticky) as space:
        space.put("x", np.arange(100))
        assert space.flush().wait(60)
        pid = keeper(space)
    os.kill(pid, 9)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    shutil.rmtree(home / "shelf")
    (journal,) = sticky.glob("*.journal.*")
    return {"flash": sticky / "shelf.flash", "journal": journal}


def test_files_that_are_ours_are_restored(home: Path, sticky: Path, left: dict[str, Path]) -> None:
    flash = f"{sticky}/shelf.flash:256MiB"
    with pytest.raises(Mismatch, match=r"has its base at 0x[0-9a-f]+, not at 0x290000000000"):
        Space.create("shelf", "32MiB", flash=flash, durable=True, exist_ok=True, base=0x2900_0000_0000)
    with durable(sticky) as space:
        assert space["x"].numpy().sum() == 4950
    Space.remove("shelf")


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_a_journal_that_somebody_else_made_is_not_restored(
    home: Path, sticky: Path, left: dict[str, Path], precious: Path, trap: Trap
) -> None:
    ours = precious.with_name("copy")  # of the journal itself, so that nothing but its owner and kind tells
    shutil.move(left["journal"], ours)
    trap(left["journal"], ours)
    content, flash = ours.read_bytes(), state_of(left["flash"])
    with pytest.raises(OpenshelfError) as caught:
        durable(sticky)
    if trap.__name__ != "dangling":  # as good as none there: then the flash file is in the way
        assert isinstance(caught.value, NotPermitted)
    assert "journal" in str(caught.value) or "exists already" in str(caught.value)
    assert ours.read_bytes() == content
    assert state_of(left["flash"]) == flash
    assert not (home / "shelf").exists()


@pytest.mark.parametrize("trap", [foreign, symlink, fifo], ids=lambda trap: trap.__name__)
def test_a_flash_file_that_somebody_else_made_gets_no_byte_of_ours(
    home: Path, sticky: Path, left: dict[str, Path], precious: Path, trap: Trap
) -> None:
    ours = precious.with_name("copy")
    shutil.move(left["flash"], ours)
    trap(left["flash"], ours)
    before = state_of(ours)[3:], state_of(left["flash"])

    def use() -> None:
        with durable(sticky) as space:
            space.put("new", np.full(1 << 20, 7, np.uint8))
            space.flush().wait(60)

    with pytest.raises(OpenshelfError, match=r"shelf\.flash"):
        use()
    assert (state_of(ours)[3:], state_of(left["flash"])) == before
    with pytest.raises(UnknownName):  # nothing was made of it
        Space.remove("shelf")
    assert ours.exists()
    assert os.path.lexists(left["flash"])


def test_another_user_cannot_offer_a_durable_space(home: Path, sticky: Path, left: dict[str, Path]) -> None:
    """All of it is theirs, whole and right, at the path that the victim will use."""
    for path in left.values():
        os.chown(path, another_user().pw_uid, another_user().pw_gid)
    theirs = {path: state_of(path) for path in left.values()}
    with pytest.raises(NotPermitted, match=f"belongs to user {another_user().pw_uid}, expected 0"):
        durable(sticky)
    assert {path: state_of(path) for path in theirs} == theirs
    assert sorted(sticky.iterdir()) == sorted(theirs)


@pytest.mark.parametrize("trap", [symlink, foreign, fifo], ids=lambda trap: trap.__name__)
@pytest.mark.parametrize("name", ["tiers", "keeper.lock", "keeper.log", "keeper.start"])
def test_a_keeper_follows_nothing_that_was_prepared_for_it(
    home: Path, sticky: Path, precious: Path, name: str, trap: Trap
) -> None:
    with Space.create("shelf", "32MiB", flash=f"{sticky}/f:64MiB") as space:
        pid = keeper(space)
    os.kill(pid, 9)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    replaced(home / "shelf" / name, trap, precious)
    with pytest.raises(OpenshelfError, match="remove it if you did not put it there"):
        Space.open("shelf")
    assert precious.read_bytes() == SECRET


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_the_lock_of_all_spaces_is_ours_or_refused(home: Path, precious: Path, trap: Trap) -> None:
    replaced(home / ".lock", trap, precious)
    with pytest.raises(NotPermitted):
        Space.create("shelf", "1MiB")
    assert precious.read_bytes() == SECRET


def a_link(path: Path, theirs: Path) -> None:
    path.symlink_to(theirs)


def a_dangling_link(path: Path, theirs: Path) -> None:
    path.symlink_to(theirs / "to-be-made")


def a_pipe(path: Path, theirs: Path) -> None:
    os.mkfifo(path)


def a_file(path: Path, theirs: Path) -> None:
    path.touch()


def a_directory_of_theirs(path: Path, theirs: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, another_user().pw_uid, -1)


def a_directory_for_all(path: Path, theirs: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


@pytest.mark.parametrize(
    "prepare", [a_link, a_dangling_link, a_pipe, a_file, a_directory_of_theirs, a_directory_for_all]
)
def test_the_directory_of_spaces_is_ours_or_refused(
    sticky: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Path, Path], None]
) -> None:
    theirs = sticky / "theirs"
    theirs.mkdir(mode=0o777)
    path = sticky / "openshelf-0"
    prepare(path, theirs)
    monkeypatch.setenv("OPENSHELF_DIR", str(path))
    for call in (lambda: Space.create("shelf", "1MiB"), lambda: Space.remove("shelf")):
        with pytest.raises(NotPermitted, match="set OPENSHELF_DIR"):
            call()
    with pytest.raises(OpenshelfError):
        Space.open("shelf")
    assert not list(theirs.iterdir())


def test_a_path_that_leads_to_somebody_elses_space_is_refused(home: Path, sticky: Path) -> None:
    """A space by path is opened if its owner shared it with a group of ours, not because anybody can write it."""

    def prepare() -> str:
        os.environ["OPENSHELF_DIR"] = str(sticky / "theirs")
        Space.create("bait", "1MiB").close()
        for path in (sticky / "theirs", sticky / "theirs" / "bait"):
            path.chmod(0o777)
        for path in (sticky / "theirs" / "bait").iterdir():
            path.chmod(0o666)
        return "done"

    assert run_as_other(prepare) == "done"
    with pytest.raises(NotPermitted, match="is not shared with a group of user 0"):
        Space.open(str(sticky / "theirs" / "bait"))


# Spaces of a group: members trust each other with arrays, not with files


def shared(home: Path, **more: Any) -> Path:
    with Space.create("shared", "1MiB", group=another_group().gr_name, **more) as space:
        space.put("x", np.arange(10))
    return home / "shared"


def test_a_member_cannot_replace_a_file_of_the_space(home: Path, precious: Path) -> None:
    path = shared(home)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750

    def attack() -> str:
        told = []
        for name in ("control", "data", "backing"):
            try:
                (path / name).unlink(missing_ok=True)
                (path / name).symlink_to(precious)
                told.append(f"{name} replaced")
            except PermissionError:
                told.append("no")
        return " ".join(told)

    assert as_member(attack) == "no no no"
    with Space.open("shared") as space:
        assert space["x"].numpy().sum() == 45


def test_a_member_who_rewrites_the_header_leads_nobody_to_another_file(home: Path, precious: Path) -> None:
    path = shared(home)

    def attack() -> str:
        with (path / "control").open("r+b") as file:
            forged = with_backing(file.read(CHECK), str(precious))
            file.seek(0)
            file.write(forged)
        return registry.header(path).backing

    assert as_member(attack) == str(precious)  # the header is right, but for where it says the data is
    with Space.open("shared") as space:
        assert space["x"].numpy().sum() == 45
        space.put("y", np.ones(1000))
    Space.remove("shared")
    assert precious.read_bytes() == SECRET


def test_a_member_works_with_a_backing_outside_and_cannot_change_which(home: Path, sticky: Path) -> None:
    path = shared(home, backing=sticky / "data")

    def work() -> str:
        try:
            (path / "backing").write_text("/etc/passwd")
        except PermissionError:
            with Space.open(str(path)) as space:
                space.put("y", np.ones(3))
                return str(space["x"].numpy().sum())
        return "changed"

    assert as_member(work) == "45"
    with Space.open("shared") as space:
        assert space["y"].numpy().sum() == 3
    Space.remove("shared")
    assert not (sticky / "data").exists()


def test_a_file_that_another_group_can_write_is_refused(home: Path) -> None:
    path = shared(home)
    os.chown(path / "data", -1, another_user().pw_gid)
    with pytest.raises(NotPermitted, match="can be written by others"):
        Space.open("shared")


def test_a_member_who_cannot_remove_a_space_changes_nothing(home: Path) -> None:
    path = shared(home)
    with Space.open("shared") as space:
        assert as_member(lambda: Space.remove(str(path))) == (
            f"NotPermitted: the space at {path} belongs to user 0: only its owner can remove it"
        )
        space.put("still", np.ones(3))
    assert as_member(lambda: Space.open(str(path))["still"].numpy().sum()) == "3.0"
    Space.remove("shared")
    assert not path.exists()


def test_a_removal_that_is_refused_changes_nothing(home: Path) -> None:
    with Space.create("shelf", "1MiB") as space:
        (home / "shelf" / "notes.txt").touch()
        with pytest.raises(NotPermitted, match=r"notes\.txt"):
            Space.remove("shelf")
        space.put("still", np.ones(3))
        with Space.open("shelf") as again:
            assert again["still"].numpy().sum() == 3
