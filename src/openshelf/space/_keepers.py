"""Starting this host's keeper when the first process needs it."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import openshelf
from openshelf import _core
from openshelf.errors import BadInput, OpenshelfError
from openshelf.space import _places
from openshelf.space._hosts import Hosts

LINGER = "OPENSHELF_LINGER"  # seconds that a keeper which was started on demand stays when nobody needs it
_START_S = 10.0


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


def argv(root: Path, listed: Hosts, own: int, detach: bool) -> list[str]:
    """The command that runs a keeper: nothing secret is in it."""
    command = [sys.executable, "-I", "-S", str(Path(openshelf.__file__).with_name("_keeper.py"))]
    command += ["--core", str(_core.__file__), "--root", str(root), "--file", str(listed.path)]
    command += ["--hosts", ",".join(listed.hosts), "--own", str(own), "--boot-id", _places.boot_id()]
    if not detach:
        return command
    return [*command, "--linger", str(linger()), "--detach", str(_log(root, listed.hosts[own]))]


def _log(root: Path, host: str) -> Path:
    return root / f"keeper@{host}.log"


def answers(path: Path) -> bool:
    """Whether a keeper listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        return probe.connect_ex(str(path)) == 0


def run_keeper(listed: Hosts, own: int) -> NoReturn:
    """Becomes the keeper, which stays until it is ended."""
    command = argv(_places.root(create=True), listed, own, detach=False)
    os.execv(command[0], command)


def ensure(root: Path, listed: Hosts, own: int) -> Path:
    """The socket of the running keeper, which is started if there is none."""
    path = socket_path(root, listed.hosts[own])
    if answers(path):
        return path
    # One at a time: of several that start, all but one would end with a message in the log.
    gate = os.open(root / f"keeper@{listed.hosts[own]}.start", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        if not answers(path):
            _start(root, listed, own, path)
    finally:
        os.close(gate)
    return path


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _start(root: Path, listed: Hosts, own: int, path: Path) -> None:
    log = _log(root, listed.hosts[own])
    before = log.stat().st_size if log.exists() else 0
    command = [*argv(root, listed, own, detach=True), "--tell"]
    # Only the first of its two processes is waited for: the keeper is nobody's child.
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_START_S)
    deadline = time.monotonic() + _START_S
    while done.returncode == 0 and time.monotonic() < deadline:
        there = _runs(int(done.stdout))
        if answers(path):
            return
        if not there:
            break
        time.sleep(0.002)
    said = done.stderr.decode(errors="replace").strip()
    if not said and log.exists():
        said = log.read_text(errors="replace")[before:].strip()[-2000:]
    raise OpenshelfError(
        f"the keeper of {listed.hosts[own]} did not start; {log} says: {said or 'nothing'}. "
        "`openshelf keeper` runs it in the foreground"
    )
