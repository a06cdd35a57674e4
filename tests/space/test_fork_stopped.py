"""A child that is stopped before it has run a line of its own: its parent goes on, and it keeps what it holds."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import time
from pathlib import Path

import numpy as np

from openshelf import Space
from tests.processes import Peer, State

SIZE = 4 << 20
_stops = False


def _stop_here() -> None:
    if _stops:
        os.kill(os.getpid(), signal.SIGSTOP)


_in_the_child = ctypes.CFUNCTYPE(None)(_stop_here)


def _enter(state: State) -> None:
    """Registered before the space's own handlers, so that it comes before them in a child."""
    ctypes.CDLL(None)["__register_atfork"](None, None, _in_the_child, None)
    state["space"] = Space.open("shelf")


def _fork_stopped(state: State) -> int:
    global _stops
    view = state["space"]["a"].numpy()
    _stops = True
    child = os.fork()
    if child == 0:
        os._exit(0 if (view == 7).all() else 1)
    _stops = False
    assert os.waitpid(child, os.WUNTRACED | os.WNOHANG)[0] in (0, child)
    return child


def _exit_code(state: State, child: int) -> int:
    os.kill(child, signal.SIGCONT)
    while True:
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)


def _collect(state: State) -> None:
    gc.collect()
    state["space"].describe()


def test_a_child_that_is_stopped_at_once_keeps_its_views_and_holds_nobody_up(space: Space, peer: Peer) -> None:
    space.put("a", np.full(SIZE, 7, "uint8"))
    peer.call(_enter)
    child = peer.call(_fork_stopped)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    space.delete("a")
    for number in range(8):  # where it was, if nobody holds it
        peer.call(_collect)
        space.describe()
        space.put(f"b{number}", np.full(SIZE, 8, "uint8"))
    assert peer.call(_exit_code, child) == 0
    for number in range(8):
        space.delete(f"b{number}")
    peer.call(_collect)
    space.describe()
    space.put("c", np.full(56 << 20, 9, "uint8"))  # and it holds nothing any more
