"""A keeper or a process is killed, forked or interrupted: what is lost, and what the others are told."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.processes import State
from tests.space.hosts import losing
from tests.space.hosts.harness.cluster import Cluster
from tests.space.hosts.storm import check_last_words


def test_killed_keeper_loses_nothing(two: Cluster) -> None:
    home, other = losing.meet(two, 2)
    home.call(losing.put, "a", 1)
    for peer in (home, other):
        peer.call(losing.hold, "a")
    for value, victim in ((2, 0), (3, 1), (4, 0), (5, 1)):
        other.call(losing.fill, value)
        assert two[victim].kill_keeper() >= 1
        start = time.monotonic()
        assert home.call(losing.values) == [value]
        assert time.monotonic() - start < losing.HANG_SECONDS
        assert two[1 - victim].kill_keeper() >= 1
        for what in ("get", "at", "new"):
            assert other.call(losing.call, what, two[0].address) is None
        assert other.call(losing.values) == [value]


def _work(state: State, home: str, seconds: float) -> int:
    """Calls of all kinds on one host; how often, if none of them failed or was done twice."""
    space, counter, lock = state["space"], state["space"].counter("n"), state["space"].lock("l")
    address, out = state["array"].address, np.empty(losing.WORDS, "uint64")
    deadline, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        with lock:
            rounds += 1
            assert counter.add(1) == rounds
            space.put(address, np.full(losing.WORDS, rounds, "uint64")).wait()
            space.get(address, out).wait()
            assert (out == rounds).all()
        made = space.put("named", np.full(100, rounds, "uint64"), home=home)
        assert space["named"].address == made.address
        space.delete("named")
    return rounds


def test_calls_on_a_host_whose_keeper_is_killed_wait_and_are_done_once(loopback: Cluster) -> None:
    home, other = losing.meet(loopback, 2)
    home.call(losing.put, "a", 1)
    home.call(losing.prepare)
    other.call(losing.hold, "a")
    home.call(_count, 0)
    other.start(_work, loopback[0].address, 4.0)
    for _ in range(5):
        time.sleep(0.6)
        while not loopback[0].kill_keeper():  # the next one is still being started
            time.sleep(0.01)
    rounds = other.finish()
    assert rounds > 20
    assert home.call(_count, 0) == rounds


def _count(state: State, more: int) -> int:
    return int(state["space"].counter("n").add(more))


def test_killed_process_loses_nothing_that_it_wrote(two: Cluster) -> None:
    home, other = losing.meet(two, 2)
    home.call(losing.put, "a", 1)
    home.call(losing.hold, "a")
    other.call(losing.hold, "a")
    other.call(losing.fill, 2)
    other.kill()
    assert home.call(losing.values) == [2]


def _bytes(state: State) -> int:
    state["space"].describe()
    return int(state["space"].check()["bytes"])


def test_pins_of_a_killed_process_on_another_host_go(two: Cluster) -> None:
    home, other = losing.meet(two, 2)
    home.call(losing.put, "a", 1)
    home.call(losing.delete, "a")
    empty = home.call(_bytes)  # with what the space itself keeps for such a name
    home.call(losing.put, "a", 1)
    other.call(losing.hold, "a")
    home.call(losing.delete, "a")
    assert home.call(_bytes) >= 8 * losing.WORDS
    assert other.call(losing.values) == [1]
    other.kill()
    deadline = time.monotonic() + losing.HANG_SECONDS
    while home.call(_bytes) != empty:
        assert time.monotonic() < deadline, "what a killed process held is still kept"
        time.sleep(0.05)


def _take(state: State, timeout: float) -> tuple[bool, bool, float]:
    start = time.monotonic()
    lock = state["space"].lock("l")
    return lock.acquire(timeout), lock.previous_died, time.monotonic() - start


@pytest.mark.parametrize("how", ["process", "host", "cut"])
def test_lock_of_a_lost_holder_is_given_to_the_next_who_is_told(three: Cluster, how: str) -> None:
    home, holder, waiter = losing.meet(three, 3)
    home.call(losing.prepare)
    assert holder.call(_take, 5)[:2] == (True, False)
    waiter.start(_take, 10)
    time.sleep(0.2)
    if how == "process":
        holder.kill()
    elif how == "host":
        three[1].kill(silent=True)
    else:
        three[1].cut()
    taken, died, seconds = waiter.finish()
    assert (taken, died) == (True, True)
    assert seconds < 6.0


def _fork(state: State) -> float:
    """A child that waits for a byte, then touches what its parent has a view of; the seconds that took."""
    start = time.monotonic()
    gate, state["gate"] = os.pipe()
    state["child"] = os.fork()
    if state["child"] == 0:
        os.close(state["gate"])
        os.read(gate, 1)
        state["view"].sum()
        os._exit(0)
    return time.monotonic() - start


def _end_of_child(state: State) -> int:
    os.write(state["gate"], b"x")
    return os.waitstatus_to_exitcode(os.waitpid(state["child"], 0)[1])


def test_host_that_is_cut_off_while_a_process_forks_is_lost_to_the_child(two: Cluster) -> None:
    home, other = losing.meet(two, 2)
    home.call(losing.put, "a", 7)
    other.call(losing.hold, "a")
    assert other.call(_fork) < 1.0
    assert other.call(_end_of_child) == 0
    two[0].cut()
    assert other.call(_fork) < losing.NOTICED_SECONDS
    two[0].heal()
    home.call(losing.put, "b", 7)
    time.sleep(1)
    assert other.call(_end_of_child) == -signal.SIGBUS
    check_last_words(other.text(), [two[0].address])


def _interrupted(state: State, what: str) -> bool:
    space = state["space"]
    waits: dict[str, Callable[[], Any]] = {
        "lock": lambda: space.lock("l").acquire(),
        "barrier": lambda: space.barrier("b", 2).wait(),
        "channel": lambda: space.channel("c").receive(),
        "word": lambda: space["w"].atomic().wait(0),
    }
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        waits[what]()
    except KeyboardInterrupt:
        return True
    return False


def _make_things(state: State) -> None:
    space = state["space"]
    space.lock("l").acquire()
    space.barrier("b", 2)
    space.channel("c")
    space.zeros("w", 1, "int32")


@pytest.mark.parametrize("what", ["lock", "barrier", "channel", "word"])
def test_ctrl_c_ends_waiting_for_another_host(loopback: Cluster, what: str) -> None:
    home, other = losing.meet(loopback, 2)
    home.call(_make_things)
    start = time.monotonic()
    assert other.call(_interrupted, what)
    assert time.monotonic() - start < losing.HANG_SECONDS
