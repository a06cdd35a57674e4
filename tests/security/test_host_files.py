"""A space over hosts, and the keepers' files: what somebody prepared is neither followed, written nor answered."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openshelf import Space
from openshelf.errors import NotPermitted, OpenshelfError
from openshelf.space.hosts import start_keeper
from tests.conftest import alive, keeper_of
from tests.security.attacker import (
    SECRET,
    TRAPS,
    Trap,
    another_user,
    directory,
    fifo,
    foreign,
    hard_link,
    needs_another_user,
    python_as_other,
    replaced,
    symlink,
)
from tests.space.tiers.shelves import keeper, wait_until

pytestmark = needs_another_user
REFUSED = "remove it if you did not put it there"
OF_A_HOST = ["control", "members", "data", "shard", "units", "shadow", "escrow", "cache-1"]


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid))


@pytest.fixture
def part(home: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This host's part of a space, closed; its keeper was killed."""
    monkeypatch.setenv("OPENSHELF_LINGER", "60")
    with Space.open(url, contribute="16MiB") as space:
        space.put("x", b"ours")
    end(keeper_of(home))
    (directory,) = home.glob("demo@*")
    return directory


@pytest.mark.parametrize("name", OF_A_HOST)
def test_a_file_of_a_hosts_part_that_was_replaced_is_refused(
    part: Path,
    url: str,
    precious: Path,
    name: str,
) -> None:
    """By whoever opens it first: the process, or the keeper, which says so to the process."""
    file, aside = part / name, part.parent / "aside"
    for trap in TRAPS:
        file.rename(aside)
        trap(file, precious)
        with pytest.raises(OpenshelfError, match=REFUSED):
            Space.open(url)
        assert precious.read_bytes() == SECRET, trap
        assert not (precious.parent / "made-by-mistake").exists(), trap
        file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
        aside.rename(file)
    with Space.open(url) as space:
        assert bytes(space["x"].numpy()) == b"ours"


def test_every_file_of_a_hosts_part_is_among_those(part: Path) -> None:
    assert sorted(file.name for file in part.iterdir()) == sorted(OF_A_HOST)


@pytest.mark.parametrize("ending", ["lock", "log", "start"])
@pytest.mark.parametrize("trap", [symlink, hard_link, foreign, fifo], ids=lambda trap: trap.__name__)
def test_a_hosts_keeper_follows_nothing_that_was_prepared_for_it(
    home: Path,
    part: Path,
    url: str,
    precious: Path,
    ending: str,
    trap: Trap,
) -> None:
    (lock,) = home.glob("keeper@*.lock")
    replaced(lock.with_suffix(f".{ending}"), trap, precious)
    with pytest.raises(OpenshelfError, match=REFUSED):
        Space.open(url)
    assert precious.read_bytes() == SECRET
    lock.unlink(missing_ok=True)  # no number of a process is in it


LISTEN = """
import os, socket, sys
path, user = sys.argv[1], int(sys.argv[2])
os.setgroups([]); os.setgid(user); os.setuid(user)
door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
door.bind(path)
os.chmod(path, 0o777)
door.listen()
print("listening", flush=True)
while True:
    came, _ = door.accept()
    came.settimeout(5)
    try:
        got = came.recv(65536)
    except OSError:
        got = b""
    print(f"got {len(got)} bytes", flush=True)
"""


@contextmanager
def a_keeper_of_theirs(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another user listens where a process will look for its keeper."""
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN, str(path), str(another_user().pw_uid)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "listening\n"
        yield process
        process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    process.kill()
    assert process.stdout
    text = process.stdout.read().replace(nothing := "got 0 bytes\n", "")
    return "" if nothing.startswith(text) else text  # it was killed while it wrote this


@pytest.mark.parametrize("how", ["in its place", "behind a link"])
def test_a_hosts_keeper_of_another_user_is_told_nothing(
    home: Path,
    part: Path,
    url: str,
    sticky: Path,
    how: str,
) -> None:
    (lock,) = home.glob("keeper@*.lock")
    with a_keeper_of_theirs(sticky / "s") as theirs:
        put_there(sticky / "s", lock.with_suffix(".sock"), how)
        with pytest.raises(NotPermitted, match=f"is answered by user {another_user().pw_uid}, expected 0"):
            Space.open(url)
        with pytest.raises(NotPermitted, match="is answered by user"):
            Space.remove(url)
        assert heard(theirs) == ""
    assert part.exists()
    lock.unlink()


@pytest.mark.parametrize("how", ["in its place", "behind a link"])
def test_a_tiers_keeper_of_another_user_is_told_nothing(home: Path, sticky: Path, how: str) -> None:
    with Space.create("shelf", "32MiB", flash=f"{sticky}/f:64MiB") as space:
        end(keeper(space))
    with a_keeper_of_theirs(sticky / "s") as theirs:
        put_there(sticky / "s", home / "shelf" / "keeper.sock", how)
        with pytest.raises(NotPermitted, match=f"is answered by user {another_user().pw_uid}, expected 0"):
            Space.open("shelf")
        assert heard(theirs) == ""
    Space.remove("shelf")


def put_there(theirs: Path, path: Path, how: str) -> None:
    path.unlink(missing_ok=True)
    if how == "in its place":
        theirs.rename(path)
    else:
        path.symlink_to(theirs)


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_whatever_lies_where_a_keepers_socket_goes_makes_way_or_is_refused(
    home: Path,
    part: Path,
    url: str,
    precious: Path,
    trap: Trap,
) -> None:
    (lock,) = home.glob("keeper@*.lock")
    path = lock.with_suffix(".sock")
    replaced(path, trap, precious)
    if trap is directory:
        with pytest.raises(OpenshelfError, match="binding"):
            Space.open(url)
        lock.unlink()
    else:
        with Space.open(url) as space:
            assert bytes(space["x"].numpy()) == b"ours"
        assert path.is_socket()
        assert not path.is_symlink()
    assert precious.read_bytes() == SECRET
    assert not (precious.parent / "made-by-mistake").exists()


def test_another_user_gets_to_no_keeper_though_the_directory_of_spaces_lets_them_pass(
    home: Path,
    url: str,
    sticky: Path,
) -> None:
    """As it does for who shares a space with a group."""
    with Space.open(url, contribute="16MiB"), Space.create("shelf", "32MiB", flash=f"{sticky}/f:64MiB"):
        home.chmod(0o711)
        (lock,) = home.glob("keeper@*.lock")
        sockets = [str(lock.with_suffix(".sock")), str(home / "shelf" / "keeper.sock")]
        files = [*home.glob("keeper@*"), home / "hosts.yaml", *home.glob("demo@*/*"), *home.glob("shelf/*")]
        assert len(files) > 15
        assert python_as_other(GET_IN.format(sockets=sockets, files=[str(file) for file in files])) == "nothing\n"
    Space.remove("shelf")


GET_IN = """
got = []
for path in {sockets}:
    try:
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(path)
        got.append(path)
    except PermissionError:
        pass
for path in {files}:
    for mode in ("rb", "r+b"):
        try:
            open(path, mode)
            got.append(path)
        except PermissionError:
            pass
print(got or "nothing")
"""


def test_a_stranger_at_a_keepers_socket_is_turned_away(home: Path, url: str) -> None:
    """Even one who got past the modes of directory and socket."""
    with Space.open(url, contribute="16MiB") as space:
        (lock,) = home.glob("keeper@*.lock")
        path = lock.with_suffix(".sock")
        home.chmod(0o711)
        path.chmod(0o777)
        said = python_as_other(
            "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(20); "
            f"s.connect({str(path)!r}); print(s.recv(100))"
        )
        assert said == "b''\n" or "ConnectionResetError" in said
        home.chmod(0o700)
        space.put("y", b"goes on")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ours:
            assert ours.connect_ex(str(path)) == 0
        assert start_keeper.answers(path)
