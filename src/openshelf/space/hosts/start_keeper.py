"""Starting a keeper when the first process needs it: a host's, or that of a space with a flash tier."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

import openshelf
from openshelf import _core, _files
from openshelf.errors import BadInput, HostLost, NotPermitted, OpenshelfError, UnknownName
from openshelf.space.create import registry
from openshelf.space.hosts.hosts_file import Hosts

LINGER = "OPENSHELF_LINGER"  # seconds that a keeper which was started on demand stays when nobody needs it
_START_S = 10.0
_MEET_S = 2.0  # keepers that end while a process attaches are followed by others, so long
_HELLO = re.compile(
    r"^.* keeper of .*, process [0-9]+, spaces in .*$", re.MULTILINE
)  # what every keeper of a host says
_TAKEN = "another keeper of"
_FAILED = "the keeper ended: "  # what one says that ends by itself: see _keeper.py
_MOST_STARTS = 5  # of keepers that are killed, one after the other
_T = TypeVar("_T")


def linger() -> float:
    text = os.environ.get(LINGER) or "60"
    try:
        return max(0.0, float(text))
    except ValueError:
        raise BadInput(f"{LINGER}={text!r}: expected seconds") from None


def socket_path(root: Path, host: str) -> Path:
    """Where local processes meet the keeper."""
    path = root / f"keeper@{host}.sock"
    if len(os.fsencode(path)) > 107:
        raise BadInput(f"{path} is too long for a Unix socket; set OPENSHELF_DIR to a shorter path")
    return path


class Keeper(NamedTuple):
    """A keeper as it is found or started."""

    label: str
    path: Path  # of its files, without the ending
    command: list[str]  # runs it in the background

    @property
    def socket(self) -> Path:
        return self.path.with_name(f"{self.path.name}.sock")

    @property
    def log(self) -> Path:
        return self.path.with_name(f"{self.path.name}.log")


def argv(root: Path, listed: Hosts, own: int, detach: bool) -> list[str]:
    """The command that runs a host's keeper: nothing secret is in it."""
    command = [*_python(), "--root", str(root), "--file", str(listed.path)]
    command += ["--own", str(own)]
    if agreement := listed.agreement:
        command += ["--etcd", ",".join(agreement.servers), "--agreed", agreement.space, "--realm", str(agreement.realm)]
        command += ["--hosts", listed.hosts[own], *(["--mend"] if agreement.replicas > 1 else [])]
    else:
        command += ["--hosts", ",".join(listed.hosts)]
    if not detach:
        return command
    return [*command, *_detached(root / f"keeper@{listed.hosts[own]}.log")]


def _python() -> list[str]:
    script = str(Path(openshelf.__file__).with_name("_keeper.py"))
    return [sys.executable, "-I", "-S", script, "--core", str(_core.__file__), "--boot-id", registry.boot_id()]


def _detached(log: Path) -> list[str]:
    return ["--linger", str(linger()), "--detach", str(log)]


def of_host(root: Path, listed: Hosts, own: int) -> Keeper:
    host = listed.hosts[own]
    socket_path(root, host)
    return Keeper(host, root / f"keeper@{host}", argv(root, listed, own, detach=True))


def of_space(directory: Path) -> Keeper:
    """The keeper of one space with a flash tier."""
    path = directory / "keeper"
    if len(os.fsencode(path)) > 102:
        raise BadInput(f"{path}.sock is too long for a Unix socket; set OPENSHELF_DIR to a shorter path")
    command = [*_python(), "--space", str(directory), *_detached(directory / "keeper.log")]
    return Keeper(f"the space at {directory}", path, command)


def answers(path: Path) -> bool:
    """Whether a keeper listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        if probe.connect_ex(str(path)) != 0:
            return False
        _, user, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if user not in (os.geteuid(), 0):
        raise NotPermitted(f"the socket {path} is answered by user {user}, expected {os.geteuid()}")
    return True


def await_end(path: Path, seconds: float) -> bool:
    """Until no keeper listens there; False if one still does when the time is over."""
    deadline = time.monotonic() + seconds
    while answers(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def run_keeper(listed: Hosts, own: int) -> NoReturn:
    """Becomes the keeper, which stays until it is ended."""
    command = argv(registry.root(create=True), listed, own, detach=False)
    os.execv(command[0], command)


def ensure(keeper: Keeper) -> Path:
    """The socket of the running keeper, which is started if there is none."""
    if answers(keeper.socket):
        return keeper.socket
    # One at a time: of several that start, all but one would end with a message in the log.
    start = keeper.path.with_name(f"{keeper.path.name}.start")
    try:
        gate = _files.open_own(start, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:
        raise UnknownName(f"{keeper.label} was removed while it was being opened") from None
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        if not answers(keeper.socket):
            _start(keeper)
    finally:
        os.close(gate)
    return keeper.socket


def meet(keeper: Keeper, attach: Callable[[str], _T]) -> _T:
    """Attaches to the running keeper, by its socket; to the next one if that ends while it is started or asked."""
    deadline = time.monotonic() + _MEET_S
    met = 0
    while True:
        met += 1
        try:
            return attach(str(ensure(keeper)))
        except OpenshelfError as error:
            if type(error) not in (HostLost, OpenshelfError):
                raise
            # Time is up for one that does not answer. One that ended was not waited for, however slow the machine is.
            ended = isinstance(error, HostLost) and not answers(keeper.socket)
            if time.monotonic() > deadline and not (ended and met < _MOST_STARTS):
                raise


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class _Ended(NamedTuple):
    """How a keeper that was started is not there."""

    why: str  # what it, or the log, said
    killed: bool  # it ended without a word of its own: a signal


def _start(keeper: Keeper) -> None:
    """Starts keepers until one answers. One that is killed meanwhile is followed by the next, a few times."""
    deadline, killed = time.monotonic() + _START_S, 0
    while (ended := _started(keeper, deadline)) is not None:
        killed += ended.killed
        if ended.killed and killed < _MOST_STARTS:
            deadline = time.monotonic() + _START_S
        elif time.monotonic() > deadline or _TAKEN not in ended.why:  # one that found another: that one answers soon
            often = f", {killed} times: it was killed each time, or crashed" if ended.killed else ""
            raise OpenshelfError(
                f"the keeper of {keeper.label} did not start{often}; {keeper.log} says: {ended.why or 'nothing'}. "
                f"In the foreground: {' '.join(keeper.command).split(' --linger')[0]}"
            )
        time.sleep(0.01)


def _started(keeper: Keeper, deadline: float) -> _Ended | None:
    """None if a keeper answers, else how the one that was started ended, or that it does not answer."""
    log = keeper.log
    before = log.stat().st_size if log.exists() else 0
    # Only the first of its two processes is waited for: the keeper is nobody's child.
    try:
        done = subprocess.run(
            [*keeper.command, "--tell"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_START_S
        )
    except subprocess.TimeoutExpired:
        return _Ended(f"nothing: its first process did not end within {_START_S} s", killed=False)
    running = done.returncode == 0
    while running and time.monotonic() < deadline:
        running = _runs(int(done.stdout))  # before it is asked: it may answer and end
        if answers(keeper.socket):
            return None
        time.sleep(0.002)
    if said := done.stderr.decode(errors="replace").strip():
        return _Ended(said, killed=False)
    text = _files.read_own(log) if log.exists() else b""
    fresh = text[before:] if len(text) >= before else text  # it begins a new one when it has become long
    told = _HELLO.sub("", fresh.decode(errors="replace")).strip()[-2000:]
    return _Ended(told, killed=not running and _FAILED not in told)
