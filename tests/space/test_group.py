"""Sharing with a group: its members get in by path, everybody else does not."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import BadInput, NotPermitted

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


def another_user() -> pwd.struct_passwd:
    return pwd.getpwnam("nobody")


def another_group() -> grp.struct_group:
    """One that the other user is not in by itself."""
    own = another_user()
    return next(group for group in grp.getgrall() if group.gr_gid not in (0, own.pw_gid) and not group.gr_mem)


def run_as_other(groups: list[int], work: Callable[[], str]) -> str:
    """What `work` returns in a child of another user and these groups."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            user = another_user()
            os.setgroups(groups)
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            answer = work()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def test_a_member_of_the_group_reads_and_writes_by_path(home: Path) -> None:
    space = Space.create("shared", dram="16MiB", group=another_group().gr_name)
    space.put("x", np.arange(10))
    space.close()

    def work() -> str:
        with Space.open(str(home / "shared")) as other:
            other["x"].numpy()[0] = 7
            other.put("y", np.ones(3))
            return str(other["x"].numpy().sum())

    assert run_as_other([another_group().gr_gid], work) == "52"
    with Space.open("shared") as again:
        assert again["y"].numpy().tolist() == [1.0, 1.0, 1.0]


def test_a_stranger_does_not_get_in(home: Path) -> None:
    Space.create("shared", dram="16MiB", group=another_group().gr_name).close()
    answer = run_as_other([], lambda: repr(Space.open(str(home / "shared"))))
    assert answer.startswith("NotPermitted: user"), answer


def test_without_a_group_everything_is_private(home: Path) -> None:
    space = Space.create("own", dram="16MiB")
    assert stat.S_IMODE((home / "own").stat().st_mode) == 0o700
    for name in ("control", "members", "data"):
        assert stat.S_IMODE((home / "own" / name).stat().st_mode) == 0o600
    space.close()


def test_an_unknown_group_is_an_error_and_leaves_nothing(home: Path) -> None:
    with pytest.raises(BadInput, match="no group 'no-such-group'"):
        Space.create("shared", dram="16MiB", group="no-such-group")
    assert not (home / "shared").exists()


def test_another_users_directory_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(home, another_user().pw_uid, -1)
    with pytest.raises(NotPermitted, match="set OPENSHELF_DIR"):
        Space.create("demo", dram="16MiB")
    os.chown(home, 0, -1)
