"""A process, a keeper, a host or a link is lost: what the others are told, how soon, and what is left of the bytes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from openshelf.errors import HostLost, OpenshelfError, UnknownName
from tests.hosts import worker
from tests.hosts.cluster import Cluster
from tests.hosts.nursery import NurseryPeer
from tests.hosts.storm import check_last_words
from tests.processes import Died, State

NOTICED_SECONDS = 3.5  # 3 are promised; the rest is for a busy machine
HANG_SECONDS = 5.0
WORDS = 2 * worker.WORDS


def _put(state: State, name: str, value: int) -> int:
    return int(state["space"].put(name, np.full(WORDS, value, "uint64")).address)


def _hold(state: State, name: str) -> int:
    state["array"] = state["space"][name]
    state["view"] = state["array"].numpy()
    return int(state["array"].address)


def _fill(state: State, value: int) -> None:
    state["view"][:] = value


def _values(state: State) -> list[int]:
    return [int(value) for value in np.unique(state["view"])]


def _state(state: State) -> str:
    return str(state["array"].state)


CALLS = ("get", "put", "atomic", "new", "at", "lock")


def _call(state: State, what: str, home: str) -> Any:
    """How an explicit call on a host ends: its error's parts, and the seconds it took."""
    space, array = state["space"], state["array"]
    start = time.monotonic()
    try:
        if what == "get":
            space.get(array, np.empty(WORDS, "uint64")).wait()
        elif what == "put":
            space.put(array.address, np.ones(8, "uint64")).wait()
        elif what == "atomic":
            array.atomic(3).add(1)
        elif what == "new":
            space.zeros(None, 10, "uint8", home=home)
        elif what == "at":
            space.at(array.address, 8, "uint64")
        elif what == "lock":
            state["lock"].acquire(20)
    except HostLost as error:
        return str(error), error.host, error.range, time.monotonic() - start
    return None


def _meet(cluster: Cluster, count: int) -> list[NurseryPeer]:
    peers = [cluster[number].peer() for number in range(count)]
    for number, peer in enumerate(peers):
        peer.call(worker.enter, cluster[number].url())
    return peers


def _prepare(state: State) -> None:
    state["lock"] = state["space"].lock("l")


@pytest.mark.parametrize("how", ["killed", "silent", "cut"])
def test_explicit_calls_on_a_lost_host_raise_in_time_and_name_host_and_range(two: Cluster, how: str) -> None:
    home, other = _meet(two, 2)
    address = home.call(_put, "a", 7)
    home.call(_prepare)
    other.call(_hold, "a")
    other.call(_prepare)
    assert other.call(_values) == [7]
    if how == "cut":
        two[0].cut()
    else:
        two[0].kill(silent=how == "silent")
    for what in CALLS:
        text, host, found, seconds = other.call(_call, what, two[0].address)
        assert seconds < NOTICED_SECONDS, (what, text)
        assert host == two[0].address, what
        assert host in text
        if what in ("get", "put"):
            assert found is not None
            assert address <= found[0] < address + 8 * WORDS
            assert f"{found[0]:#x}" in text


def test_touch_of_a_lost_hosts_bytes_ends_the_process_with_its_reason(two: Cluster) -> None:
    home, other = _meet(two, 2)
    home.call(_put, "a", 7)
    other.call(_hold, "a")
    two[0].kill(silent=True)
    start = time.monotonic()
    with pytest.raises(Died) as death:
        other.call(_values)
    assert time.monotonic() - start < HANG_SECONDS
    assert death.value.code == -signal.SIGBUS
    check_last_words(other.text(), [two[0].address])


def test_copy_of_a_lost_hosts_bytes_is_gone_with_it(two: Cluster) -> None:
    home, other = _meet(two, 2)
    home.call(_put, "a", 7)
    other.call(_hold, "a")
    assert other.call(_values) == [7]  # and so has a copy
    two[0].kill(silent=True)
    deadline = time.monotonic() + HANG_SECONDS
    while _values_or_end(other) == [7]:
        assert time.monotonic() < deadline, "the copy is still there"
        time.sleep(0.05)
    assert other.process.exitcode == -signal.SIGBUS
    check_last_words(other.text(), [two[0].address])


@pytest.mark.parametrize("silent", [False, True])
def test_restarted_host_joins_again_with_nothing_of_its_old_life(two: Cluster, silent: bool) -> None:
    home, other = _meet(two, 2)
    home.call(_put, "a", 7)
    other.call(_hold, "a")
    assert other.call(_values) == [7]
    two[0].kill(silent=silent)
    again = two[0].peer()
    again.call(worker.enter, two[0].url())
    assert not again.call(_has, "a")
    again.call(_put, "b", 9)
    third = two[1].peer()
    third.call(worker.enter, two[1].url())
    deadline = time.monotonic() + HANG_SECONDS
    while not third.call(_has, "b"):
        assert time.monotonic() < deadline, "the restarted host is not seen"
        time.sleep(0.05)
    third.call(_hold, "b")
    assert third.call(_values) == [9]
    assert third.call(_up) == [True, True]
    # Who was there before: its old bytes never show the new host's.
    assert _values_or_end(other) in ([7], -signal.SIGBUS)


def _values_or_end(peer: NurseryPeer) -> list[int] | int | None:
    """What a process sees, or how a touch ended it."""
    try:
        return list(peer.call(_values))
    except Died as death:
        return death.code


def _has(state: State, name: str) -> bool:
    return name in state["space"]


def _up(state: State) -> list[bool]:
    return [host["up"] for host in state["space"].hosts()]


def test_what_a_dead_host_had_borrowed_is_back_as_the_home_last_knew_it(three: Cluster) -> None:
    home, writer, reader = _meet(three, 3)
    home.call(_put, "a", 1)
    for peer in (home, writer, reader):
        peer.call(_hold, "a")
    writer.call(_fill, 2)
    assert reader.call(_values) == [2]  # by way of the home, which knows it now
    writer.call(_fill, 3)  # nobody else has seen that
    assert writer.call(_state) == "modified"
    three[1].kill(silent=True)
    for peer in (reader, home):
        start = time.monotonic()
        assert peer.call(_values) == [2]
        assert time.monotonic() - start < HANG_SECONDS
    reader.call(_fill, 4)
    assert home.call(_values) == [4]


def test_host_that_was_cut_off_finds_what_the_others_did_meanwhile(three: Cluster) -> None:
    home, alone, other = _meet(three, 3)
    home.call(_put, "a", 1)
    for peer in (home, alone, other):
        peer.call(_hold, "a")
    assert alone.call(_values) == [1]
    three[1].cut()
    start = time.monotonic()
    other.call(_fill, 2)  # its copy cannot be taken back: it is given up
    assert time.monotonic() - start < HANG_SECONDS
    assert home.call(_values) == [2]
    three[1].heal()
    assert _values_or_end(alone) in ([2], -signal.SIGBUS)  # the latter: what it had was lost while it was alone
    again = three[1].peer()
    again.call(worker.enter, three[1].url())
    deadline = time.monotonic() + HANG_SECONDS
    while not again.call(_has, "a"):
        assert time.monotonic() < deadline, "the host that was cut off does not find the others again"
        time.sleep(0.05)
    again.call(_hold, "a")
    assert again.call(_values) == [2]


def _put_until_at(state: State, address: int) -> bool:
    """Puts arrays until one is at the address: that of an array which nobody has any more."""
    kept = state.setdefault("kept", [])
    for _ in range(64):
        kept.append(state["space"].put(None, np.full(WORDS, 9, "uint64")))
        if kept[-1].address == address:
            return True
    kept.clear()
    return False


def _find_again(state: State, name: str) -> bool:
    """A process that was cut off finds the name, and can use it, once the hosts have found each other. What it had it
    must let go of."""
    state.pop("view", None)
    state.pop("array", None)
    try:
        _hold(state, name)
    except (HostLost, UnknownName):
        return False
    return True


def test_view_never_shows_what_came_to_its_place_while_its_host_was_given_up(two: Cluster) -> None:
    home, alone = _meet(two, 2)
    home.call(_put, "b", 5)
    address = home.call(_put, "a", 1)
    alone.call(_hold, "a")
    assert alone.call(_values) == [1]
    two[1].cut()
    home.call(_delete, "a")
    deadline = time.monotonic() + 15
    while not home.call(_put_until_at, address):  # as soon as the lost process's pin is gone
        assert time.monotonic() < deadline, "the pin of a process that was cut off stays"
        time.sleep(0.2)
    two[1].heal()
    again = two[1].peer()
    again.call(worker.enter, two[1].url())
    while not again.call(_find_again, "b"):
        assert time.monotonic() < deadline + 10
        time.sleep(0.05)
    assert _values_or_end(alone) == -signal.SIGBUS
    check_last_words(alone.text(), [two[0].address])


def _numpy_again(state: State) -> str:
    try:
        state["array"].numpy()
    except HostLost as error:
        return str(error)
    return ""


def _look_at(state: State, name: str) -> str:
    try:
        state["space"][name].numpy()
    except (HostLost, UnknownName) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("how", ["the same array", "another name"])
def test_views_from_before_a_loss_do_not_come_alive_again(two: Cluster, how: str) -> None:
    home, alone = _meet(two, 2)
    home.call(_put, "b", 5)
    address = home.call(_put, "a", 1)
    alone.call(_hold, "a")
    two[1].cut()
    home.call(_delete, "a")
    deadline = time.monotonic() + 15
    while not home.call(_put_until_at, address):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    two[1].heal()
    until = time.monotonic() + HANG_SECONDS
    while not alone.call(_up)[0]:
        assert time.monotonic() < until
        time.sleep(0.05)
    said = alone.call(_numpy_again) if how == "the same array" else alone.call(_look_at, "b")
    assert "given up" in said or "lost" in said
    assert _values_or_end(alone) == -signal.SIGBUS


def test_process_that_was_cut_off_has_new_views_afterwards(two: Cluster) -> None:
    home, alone = _meet(two, 2)
    home.call(_put, "a", 1)
    alone.call(_hold, "a")
    two[1].cut()
    time.sleep(3.5)
    two[1].heal()
    home.call(_hold, "a")
    home.call(_fill, 2)
    deadline = time.monotonic() + 10
    while not alone.call(_find_again, "a"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert alone.call(_values) == [2]


def test_short_cut_is_waited_out(two: Cluster) -> None:
    home, other = _meet(two, 2)
    home.call(_put, "a", 7)
    other.call(_hold, "a")
    two[0].cut()
    other.start(_values)
    time.sleep(0.7)
    two[0].heal()
    assert other.finish(HANG_SECONDS) == [7]
    assert other.call(_call, "get", "") is None


def test_killed_keeper_loses_nothing(two: Cluster) -> None:
    home, other = _meet(two, 2)
    home.call(_put, "a", 1)
    for peer in (home, other):
        peer.call(_hold, "a")
    for value, victim in ((2, 0), (3, 1), (4, 0), (5, 1)):
        other.call(_fill, value)
        assert two[victim].kill_keeper() >= 1
        start = time.monotonic()
        assert home.call(_values) == [value]
        assert time.monotonic() - start < HANG_SECONDS
        assert two[1 - victim].kill_keeper() >= 1
        for what in ("get", "at", "new"):
            assert other.call(_call, what, two[0].address) is None
        assert other.call(_values) == [value]


def _work(state: State, home: str, seconds: float) -> int:
    """Calls of all kinds on one host; how often, if none of them failed or was done twice."""
    space, counter, lock = state["space"], state["space"].counter("n"), state["space"].lock("l")
    address, out = state["array"].address, np.empty(WORDS, "uint64")
    deadline, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        with lock:
            rounds += 1
            assert counter.add(1) == rounds
            space.put(address, np.full(WORDS, rounds, "uint64")).wait()
            space.get(address, out).wait()
            assert (out == rounds).all()
        made = space.put("named", np.full(100, rounds, "uint64"), home=home)
        assert space["named"].address == made.address
        space.delete("named")
    return rounds


def test_calls_on_a_host_whose_keeper_is_killed_wait_and_are_done_once(loopback: Cluster) -> None:
    home, other = _meet(loopback, 2)
    home.call(_put, "a", 1)
    home.call(_prepare)
    other.call(_hold, "a")
    home.call(_count, 0)
    other.start(_work, loopback[0].address, 4.0)
    for _ in range(5):
        time.sleep(0.6)
        assert loopback[0].kill_keeper() >= 1
    rounds = other.finish()
    assert rounds > 20
    assert home.call(_count, 0) == rounds


def _count(state: State, more: int) -> int:
    return int(state["space"].counter("n").add(more))


def test_killed_process_loses_nothing_that_it_wrote(two: Cluster) -> None:
    home, other = _meet(two, 2)
    home.call(_put, "a", 1)
    home.call(_hold, "a")
    other.call(_hold, "a")
    other.call(_fill, 2)
    other.kill()
    assert home.call(_values) == [2]


def _bytes(state: State) -> int:
    state["space"].describe()
    return int(state["space"].check()["bytes"])


def test_pins_of_a_killed_process_on_another_host_go(two: Cluster) -> None:
    home, other = _meet(two, 2)
    home.call(_put, "a", 1)
    home.call(_delete, "a")
    empty = home.call(_bytes)  # with what the space itself keeps for such a name
    home.call(_put, "a", 1)
    other.call(_hold, "a")
    home.call(_delete, "a")
    assert home.call(_bytes) >= 8 * WORDS
    assert other.call(_values) == [1]
    other.kill()
    deadline = time.monotonic() + HANG_SECONDS
    while home.call(_bytes) != empty:
        assert time.monotonic() < deadline, "what a killed process held is still kept"
        time.sleep(0.05)


def _delete(state: State, name: str) -> None:
    state["space"].delete(name)


def _take(state: State, timeout: float) -> tuple[bool, bool, float]:
    start = time.monotonic()
    lock = state["space"].lock("l")
    return lock.acquire(timeout), lock.previous_died, time.monotonic() - start


@pytest.mark.parametrize("how", ["process", "host", "cut"])
def test_lock_of_a_lost_holder_is_given_to_the_next_who_is_told(three: Cluster, how: str) -> None:
    home, holder, waiter = _meet(three, 3)
    home.call(_prepare)
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
    home, other = _meet(two, 2)
    home.call(_put, "a", 7)
    other.call(_hold, "a")
    assert other.call(_fork) < 1.0
    assert other.call(_end_of_child) == 0
    two[0].cut()
    assert other.call(_fork) < NOTICED_SECONDS
    two[0].heal()
    home.call(_put, "b", 7)
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
    home, other = _meet(loopback, 2)
    home.call(_make_things)
    start = time.monotonic()
    assert other.call(_interrupted, what)
    assert time.monotonic() - start < HANG_SECONDS


def _open_error(state: State, where: str) -> str:
    try:
        worker.enter(state, where)
    except OpenshelfError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_host_that_cannot_be_reached_stops_nobody_from_opening(two: Cluster) -> None:
    other = two[1].peer()
    start = time.monotonic()
    assert other.call(_open_error, two[1].url()) == ""
    assert other.call(_up) == [False, True]
    other.call(_put, "a", 5)
    other.call(_hold, "a")
    assert other.call(_values) == [5]
    assert time.monotonic() - start < 2 * HANG_SECONDS
