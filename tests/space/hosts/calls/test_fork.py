"""A process that holds arrays of another host forks: its child holds them too, whatever becomes of either."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import _core
from openshelf.errors import HostLost
from tests.processes import Peer, State, stop_process
from tests.space.hosts.calls import faraway
from tests.space.hosts.calls.faraway import Place, bytes_of, call_on, free, make, put, sound, until
from tests.space.shelf import pattern

GRACE = 2.0  # seconds that the home keeps what a process without a connection held
SIZE = 1 << 20
DATA = pattern(3, SIZE)


class Child:
    """A bare fork of this process, that does something and then waits for a byte; True is its good end."""

    def __init__(self, work: Callable[[], bool] = lambda: True) -> None:
        self.gate, self._open = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._open)
            os.read(self.gate, 1)
            good = False
            try:
                good = work()
            finally:
                os._exit(0 if good else 1)

    def finish(self) -> bool:
        os.write(self._open, b"x")
        return self.wait() == 0

    def wait(self) -> int:
        end = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.gate)
        os.close(self._open)
        return end

    def kill(self) -> int:
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()


def reads(remote: _core.Remote, pins: list[_core.RemotePin]) -> Callable[[], bool]:
    def work() -> bool:
        return pins[0].name == "" and np.array_equal(bytes_of(remote, pins[0]), DATA)

    return work


def test_child_that_never_calls_holds_what_its_parent_let_go_of(server: Peer, remote: _core.Remote) -> None:
    before = free(server)
    pins = [put(remote, "", DATA)]
    children = [Child(reads(remote, pins)) for _ in range(2)]
    pins.clear()
    remote.collect()
    time.sleep(GRACE + 1)
    assert free(server) == before - SIZE
    assert children[0].finish()
    assert free(server) == before - SIZE
    assert children[1].kill() == -signal.SIGKILL
    until(lambda: free(server) == before)
    until(lambda: server.call(faraway.processes) == 1)
    sound(server)


def _fork_and_stop(state: State, place: Place) -> None:
    """Not one step more than the fork."""
    remote = call_on(place)
    state["pin"] = put(remote, "", DATA)
    if os.fork():
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        time.sleep(60)


def test_child_of_a_killed_parent_holds_its_arrays(server: Peer, place: Place) -> None:
    before = free(server)
    parent = Peer()
    parent.start(_fork_and_stop, place)
    until(lambda: Path(f"/proc/{parent.pid}/stat").read_text().rsplit(")")[1].split()[0] == "T")
    child = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()[-1])
    os.kill(parent.pid, signal.SIGKILL)
    try:
        time.sleep(GRACE + 1)
        until(lambda: server.call(faraway.processes) == 1)  # the parent's place ends, later on a busy machine
        assert free(server) == before - SIZE
    finally:
        os.kill(child, signal.SIGKILL)
    until(lambda: free(server) == before)
    parent.kill()


def _connections() -> int:
    """Open TCP sockets of this process."""
    count = 0
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry))) as other:
            count += other.family == socket.AF_INET
    return count


def _forks_while_connecting(state: State, place: Place) -> list[int]:
    ends: list[int] = []
    connecting = threading.Event()

    def connect() -> None:
        while not ends:
            call_on(place).contains("nothing")
            connecting.set()

    thread = threading.Thread(target=connect)
    thread.start()
    connecting.wait()
    found = []
    for _ in range(100):
        child = os.fork()
        if not child:
            os._exit(_connections())
        found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    ends.append(0)
    thread.join()
    return found


def test_no_child_has_a_connection_of_its_parents_threads(place: Place) -> None:
    """Else the home would keep what a killed parent held for as long as the child lives."""
    peer = Peer()
    assert peer.call(_forks_while_connecting, place) == [0] * 100
    peer.kill()


def test_stopped_child_keeps_its_place(server: Peer, remote: _core.Remote) -> None:
    before = free(server)
    pins = [put(remote, "", DATA)]
    child = Child(reads(remote, pins))
    stop_process(child.pid)
    pins.clear()
    remote.collect()
    time.sleep(GRACE + 1)
    assert free(server) == before - SIZE
    os.kill(child.pid, signal.SIGCONT)
    assert child.finish()
    until(lambda: free(server) == before)


def test_child_lets_go_by_itself(server: Peer, remote: _core.Remote) -> None:
    before = free(server)
    pins = [put(remote, "", DATA)]

    def drop() -> bool:
        pins.clear()
        until(lambda: free_here() == before)
        return True

    def free_here() -> int:
        remote.collect()
        return int(remote.stats()["free"])

    child = Child(drop)
    pins.clear()
    remote.collect()
    assert free(server) == before - SIZE
    assert child.finish()


def test_grandchildren_inherit_too(server: Peer, remote: _core.Remote) -> None:
    before = free(server)
    pins = [put(remote, "", DATA)]
    work = reads(remote, pins)

    def again() -> bool:
        grandchild = Child(work)
        new = make(remote, "", SIZE)
        return _core.add_u8(new, 0, 1) == 0 and work() and grandchild.finish()

    child = Child(again)
    pins.clear()
    remote.collect()
    assert child.finish()
    until(lambda: free(server) == before)


def test_child_keeps_its_place_when_the_keeper_is_replaced(
    home: Path, place: Place, server: Peer, remote: _core.Remote
) -> None:
    pins = [put(remote, "", DATA)]
    child = Child(reads(remote, pins))
    server.kill()
    with Peer() as following:
        following.call(faraway.serve, "shelf", int(place[0].rsplit(":", 1)[1]))
        assert following.call(faraway.ask_core, "at", pins[0].address) == pins[0].address
        pins.clear()
        remote.collect()
        time.sleep(GRACE + 1)
        before = free(following)
        assert child.finish()
        until(lambda: free(following) == before + SIZE)
        sound(following)


def test_fork_while_the_keeper_is_replaced(home: Path, place: Place, server: Peer, remote: _core.Remote) -> None:
    pins = [put(remote, "", DATA)]
    with Peer() as following:
        following.call(faraway.nothing)  # it is there
        server.kill()
        following.start(faraway.serve_after, 0.5, int(place[0].rsplit(":", 1)[1]))
        child = Child(reads(remote, pins))
        pins.clear()
        following.finish()
        remote.collect()
        assert child.finish()


def test_lost_home_delays_a_fork_for_a_moment_only(server: Peer, place: Place, remote: _core.Remote) -> None:
    pin = put(remote, "", DATA)
    server.kill()

    def lost() -> bool:
        for _ in range(2):
            with pytest.raises(HostLost) as caught:
                _core.load_u8(pin, 0)
            assert caught.value.host == place[0]
            assert caught.value.range == (pin.address, SIZE)
        return True

    for seconds in (3.5, 0.5):
        start = time.monotonic()
        child = Child(lost)
        assert time.monotonic() - start < seconds
        assert child.finish()


def test_forks_of_a_busy_process_inherit_what_it_holds(server: Peer, remote: _core.Remote) -> None:
    data = pattern(4, 64)
    kept = [put(remote, "", data) for _ in range(100)]
    stop = threading.Event()
    wrong: list[Any] = []

    def work() -> None:
        while not stop.is_set():
            mine = [put(remote, "", data) for _ in range(5)]
            if not all(np.array_equal(bytes_of(remote, pin), data) for pin in mine):
                wrong.append(mine)

    def check() -> bool:
        return all(np.array_equal(bytes_of(remote, pin), data) and pin.name == "" for pin in kept)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert Child(check).finish()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    kept.clear()
    remote.collect()
    until(lambda: remote.audit()["bytes"] == 0)
    sound(server)


@pytest.mark.parametrize("count", [1, 40_000])
def test_many_pins_are_inherited(server: Peer, remote: _core.Remote, count: int) -> None:
    pin = put(remote, "it", DATA)
    pins = [remote.at(pin.address) for _ in range(count)]
    child = Child(lambda: all(one.name == "it" for one in pins[:: max(1, count // 100)]))
    assert len(remote.stats()["members"]) == 3
    assert [member["pins"] for member in remote.stats()["members"] if member["remote"]] == [count + 1] * 2
    assert child.finish()
