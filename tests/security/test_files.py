"""Files that Python opens by name: whatever somebody else put there is neither read nor written, and nothing hangs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from openshelf import _files
from openshelf.errors import NotPermitted
from tests.security.attacker import TRAPS, Trap, needs_another_user


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    file = tmp_path / "precious"
    file.write_bytes(b"the victim's own")
    file.chmod(0o600)
    return file


def state_of(path: Path) -> tuple[object, ...]:
    """What would tell that it was written, truncated or taken over."""
    found = path.lstat()
    return found.st_ino, found.st_mode, found.st_uid, found.st_size, found.st_mtime_ns


@needs_another_user
@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
@pytest.mark.parametrize(
    "flags",
    [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC],
    ids=["read", "write", "make", "truncate"],
)
def test_a_prepared_file_is_refused_and_left_as_it_is(tmp_path: Path, precious: Path, trap: Trap, flags: int) -> None:
    path = tmp_path / "expected"
    trap(path, precious)
    before = state_of(path), state_of(precious), sorted(tmp_path.iterdir())
    with pytest.raises(NotPermitted, match="remove it if you did not put it there"):
        _files.open_own(path, flags)
    assert (state_of(path), state_of(precious), sorted(tmp_path.iterdir())) == before


@needs_another_user
@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_a_new_file_takes_the_place_of_what_was_prepared_or_is_refused(
    tmp_path: Path, precious: Path, trap: Trap
) -> None:
    path, before = tmp_path / "expected", state_of(precious)[3:]
    trap(path, precious)
    try:
        _files.write_own(path, b"new")
    except IsADirectoryError:
        assert path.is_dir()
    else:
        assert _files.read_own(path) == b"new"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert state_of(precious)[3:] == before
    assert not (tmp_path / "made-by-mistake").exists()
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".expected")]


def test_a_secret_that_others_can_read_is_refused(precious: Path) -> None:
    assert _files.read_own(precious, secret=True) == b"the victim's own"
    precious.chmod(0o640)
    assert _files.read_own(precious) == b"the victim's own"
    with pytest.raises(NotPermitted, match=r"can be read by others \(mode 640\)"):
        _files.read_own(precious, secret=True)


@needs_another_user
def test_a_folder_is_ours_or_refused(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir(mode=0o700)
    os.close(_files.open_folder(folder))
    link.symlink_to(folder)
    with pytest.raises(NotPermitted, match="is a symbolic link"):
        _files.open_folder(link)
    folder.chmod(0o777)
    with pytest.raises(NotPermitted, match="can be written by others"):
        _files.open_folder(folder)
    folder.chmod(0o700)
    os.chown(folder, 65534, 65534)
    with pytest.raises(NotPermitted, match="belongs to user 65534, expected 0"):
        _files.open_folder(folder)


def test_what_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        _files.open_own(tmp_path / "nothing")
