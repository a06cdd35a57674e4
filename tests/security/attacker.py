"""Another user: what they can put where we look, and a child process that is them."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SECRET = b"the victim's own" * 65536  # as long as the data of a small space: no size gives it away
needs_another_user = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


def another_user() -> pwd.struct_passwd:
    return pwd.getpwnam("nobody")


def run_as_other(work: Callable[[], object], groups: list[int] | None = None) -> str:
    """What `work` returns, or how it failed, in a child of another user and these groups."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            user = another_user()
            os.setgroups(groups or [])
            os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
            os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
            answer = str(work())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode()[:60_000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def another_group() -> grp.struct_group:
    own = another_user().pw_gid
    return next(group for group in grp.getgrall() if group.gr_gid not in (0, own) and not group.gr_mem)


def as_member(work: Callable[[], object]) -> str:
    """As run_as_other, in the group that a space is shared with, and with a directory for spaces of their own."""

    def at_home() -> object:
        os.environ["OPENSHELF_DIR"] = f"/dev/shm/openshelf-test-member-{os.getpid()}"
        try:
            return work()
        finally:
            shutil.rmtree(os.environ["OPENSHELF_DIR"], ignore_errors=True)

    return run_as_other(at_home, [another_group().gr_gid])


def python_as_other(code: str) -> str:
    """What code with `os` and `socket` prints in a process of another user, who need not be able to run Python."""
    user = another_user()
    become = f"import os, socket; os.setgroups([]); os.setgid({user.pw_gid}); os.setuid({user.pw_uid})\n"
    done = subprocess.run([sys.executable, "-c", become + code], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def replaced(path: Path, trap: Trap, precious: Path) -> None:
    path.unlink(missing_ok=True)
    trap(path, precious)


def symlink(path: Path, target: Path) -> None:
    """To a file of the victim's, which must stay as it is."""
    path.symlink_to(target)


def dangling(path: Path, target: Path) -> None:
    """To where the victim would make a file without meaning to."""
    path.symlink_to(target.with_name("made-by-mistake"))


def hard_link(path: Path, target: Path) -> None:
    os.link(target, path)


def fifo(path: Path, target: Path) -> None:
    os.mkfifo(path)
    path.chmod(0o666)


def sock(path: Path, target: Path) -> None:
    """Who listens is gone; the name stays."""
    folder = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")  # however long the path is
    os.close(folder)


def directory(path: Path, target: Path) -> None:
    path.mkdir()


def foreign(path: Path, target: Path) -> None:
    """A copy, to the byte, that belongs to somebody else."""
    path.write_bytes(target.read_bytes())
    os.chown(path, another_user().pw_uid, another_user().pw_gid)


def writable(path: Path, target: Path) -> None:
    """Of the victim, but anybody can have changed it."""
    path.write_bytes(target.read_bytes())
    path.chmod(0o666)


Trap = Callable[[Path, Path], None]
TRAPS: list[Trap] = [symlink, dangling, hard_link, fifo, sock, directory, foreign, writable]
