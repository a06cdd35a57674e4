"""Other processes for tests: each runs functions on request, keeps what they hold, and can be killed."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

PATIENCE = float(os.environ.get("OPENSHELF_TEST_PATIENCE") or 1)  # more where the machine is emulated
WATCHDOG = 120.0 * PATIENCE  # seconds after which a process counts as hung

State = dict[str, Any]


class Hung(Exception):
    """A process gave no answer for so long that it never will."""


class Failed(Exception):
    """A function raised in the other process; the text is its traceback."""


class Died(Exception):
    """The process ended before it answered; `code` is its exit code, negative for a signal."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


def serve(pipe: Connection, environment: dict[str, str]) -> None:
    """The other process: calls what it is sent with its own state first."""
    for name in os.environ.keys() - environment.keys():  # a fork server has that of the first test that used it
        del os.environ[name]
    os.environ.update(environment)
    gc.freeze()  # what was imported stays: looking at it, at the end for example, would copy all its pages
    state: State = {}
    while True:
        try:
            function, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        if function is None:
            return
        try:
            pipe.send((True, function(state, *arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


def stop_process(pid: int) -> None:
    """SIGSTOP, and back when it has stopped: on a busy machine its threads go on for a while after kill() returns.

    A thread that populates pages waits in the kernel until another thread of its process answers the fault. It cannot
    stop there, and does nothing either: it counts as stopped when it has not moved while all others were stopped.
    """
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + WATCHDOG
    seen: dict[Path, tuple[str, str]] = {}
    while True:
        before, seen = seen, {thread: _doing(thread) for thread in Path(f"/proc/{pid}/task").iterdir()}
        if all(state in "TZX" for state, _ in seen.values()):  # one that has ended does not run either
            return
        if seen == before and all(state in "TDZX" for state, _ in seen.values()):
            return
        if time.monotonic() > end:
            raise Hung(f"process {pid} does not stop: {[(thread.name, *doing) for thread, doing in seen.items()]}")
        time.sleep(0.05 if any(state == "D" for state, _ in seen.values()) else 0.002)


def _doing(thread: Path) -> tuple[str, str]:
    """The state of a thread, and how often it has left a processor; "X" for one that has ended."""
    try:
        state = (thread / "stat").read_text().rsplit(")", 1)[1].split()[0]
        switches = [line for line in (thread / "status").read_text().splitlines() if "ctxt_switches" in line]
    except (FileNotFoundError, ProcessLookupError):
        return "X", ""
    return state, " ".join(switches)


# What other processes of tests import, together. torch, too, where this process has it: many tests' modules import it.
_IMPORTS = [
    *("numpy", "openshelf", "openshelf.kv", "openshelf.tables", "pytest", "tests.conftest", "tests.space.shelf"),
    *("tests.crash.worker", "tests.kv.flash_worker", "tests.kv.worker", "tests.space.tiers.kill_worker"),
    "tests.tables.worker",
]


def fork_server() -> Any:
    """The multiprocessing context of a process that has imported much, and forks."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_IMPORTS, *(name for name in ("hypothesis", "torch") if name in sys.modules)])
    return context


class Peer:
    """A process that runs functions as `function(state, *arguments)`; `state` lives as long as it.

    By default a clean process forks it that has imported the package and opened nothing: it starts in a twentieth of
    the time of one that imports everything itself. Rights, limits and namespaces of this process do not pass to it:
    tests of those, and some that show that a program of its own does as well, ask for "spawn".
    """

    def __init__(self, method: str = "forkserver") -> None:
        context: Any = fork_server() if method == "forkserver" else multiprocessing.get_context(method)
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=serve, args=(there, dict(os.environ)), daemon=True)
        self.process.start()
        there.close()
        self.pid: int = self.process.pid

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Begins a call; finish() waits for it."""
        self.pipe.send((function, arguments))

    def finish(self, timeout: float = WATCHDOG) -> Any:
        try:
            if not self.pipe.poll(timeout):
                raise Hung(f"no answer from process {self.pid} in {timeout} s")
            good, result = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(WATCHDOG)
            raise Died(self.process.exitcode) from None
        if not good:
            raise Failed(result)
        return result

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.start(function, *arguments)
        return self.finish()

    def kill(self) -> None:
        """Ends it by SIGKILL and waits until it is gone."""
        if self.process.exitcode is None:  # asked first: the pid of a reaped one may be another's
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.process.join(WATCHDOG)

    def stop(self) -> None:
        """Ends it in order."""
        with contextlib.suppress(OSError):
            self.pipe.send((None, ()))  # a forked process holds this end too: closing it would tell nothing
        self.pipe.close()
        self.process.join(WATCHDOG)
        if self.process.is_alive():
            self.kill()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        elif self.process.is_alive():
            self.kill()


def _without_state(state: State, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a process started by spawn for it."""
    with Peer("spawn") as peer:
        return peer.call(_without_state, function, arguments)
