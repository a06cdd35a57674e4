"""Processes in a host, forked from one that sits there with everything imported: a new one takes milliseconds.

The nursery is started by spawn, enters the host's network namespace, and imports the package without opening a space.
A child comes back to the test by a Unix socket, serves calls like any Peer, and writes its standard error to a file.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from tests.processes import WATCHDOG, Died, Failed, Hung, Peer, serve
from tests.space.hosts.harness import net

_IMPORTS = (
    "numpy",
    "openshelf",
    "tests.space.shelf",
    "tests.space.hosts.coherence.history_worker",
    "tests.space.hosts.coherence.litmus_worker",
)


def _tend(pipe: Connection, namespace: str | None) -> None:
    """The nursery: forks and waits as it is told."""
    if namespace is not None:
        net.enter(namespace)
    for name in _IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    pipe.send(os.getpid())
    while True:
        try:
            what, *arguments = pipe.recv()
        except (EOFError, OSError):
            return
        if what == "fork":
            pid = os.fork()
            if pid == 0:
                pipe.close()
                _live(*arguments)
                sys.exit(0)  # through the interpreter's end, as a program of its own would
            pipe.send(pid)
        elif what == "wait":
            pipe.send(_reap(*arguments))
        else:
            return


def _live(address: str, environment: dict[str, str], errors: str) -> None:
    handle = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(handle, 2)
    os.close(handle)
    os.environ.update(environment)
    with Client(address, "AF_UNIX") as pipe:
        serve(pipe, {**os.environ})


def _reap(pid: int) -> int | None:
    """How the child ended, as multiprocessing counts: the exit code, or minus the signal. None: it lives."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status) if done else None


class Nursery:
    """Of one host, or of no namespace in particular."""

    def __init__(self, namespace: str | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_tend, args=(there, namespace), daemon=True)
        self.process.start()
        there.close()
        self.pid: int | None = None

    def ask(self, *what: Any) -> Any:
        if self.pid is None:  # imports take their time: all nurseries of a test do theirs at once
            self.pid = self.pipe.recv()
        self.pipe.send(what)
        if not self.pipe.poll(WATCHDOG):
            raise Hung("the nursery gives no answer")
        return self.pipe.recv()

    def close(self) -> None:
        self.pipe.close()
        self.process.join(1)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Child:
    """A process of a nursery, with the part of multiprocessing.Process that Peer uses."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.nursery, self.pid = nursery, pid
        self._code: int | None = None

    @property
    def exitcode(self) -> int | None:
        if self._code is None:
            self._code = self.nursery.ask("wait", self.pid)
        return self._code

    def is_alive(self) -> bool:
        return self.exitcode is None

    def join(self, timeout: float = WATCHDOG) -> None:
        deadline = time.monotonic() + timeout
        while self.exitcode is None and time.monotonic() < deadline:
            time.sleep(0.002)


class NurseryPeer(Peer):
    """A Peer that a nursery forked; `errors` is the file of its standard error."""

    def __init__(self, nursery: Nursery, environment: dict[str, str], place: Path) -> None:
        place.mkdir(mode=0o700, exist_ok=True)
        number = time.monotonic_ns()
        address = str(place / f"{number}.sock")
        self.errors = place / f"{number}.log"
        with Listener(address, "AF_UNIX") as listener:
            self.pid = nursery.ask("fork", address, environment, str(self.errors))
            self.process = Child(nursery, self.pid)
            self.pipe = listener.accept()

    def text(self) -> str:
        """What it wrote to its standard error."""
        return self.errors.read_text() if self.errors.exists() else ""

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        if self.process.is_alive():  # asked first: the pid of a reaped one may be another's
            self.signal(signal.SIGKILL)
            self.process.join()

    def finish(self, timeout: float = WATCHDOG) -> Any:
        try:
            return super().finish(timeout)
        except Failed as error:
            raise Failed(f"{error}\n{self.text()}") from None
        except Died as error:
            error.add_note(self.text())
            raise
