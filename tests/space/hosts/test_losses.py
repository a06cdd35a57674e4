"""A host or a link is lost: what the others are told, how soon, and what is left of the bytes."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from openshelf.errors import HostLost, OpenshelfError, UnknownName
from tests.processes import PATIENCE, Died, State, stop_process
from tests.space.hosts import losing
from tests.space.hosts.harness import worker
from tests.space.hosts.harness.cluster import Cluster
from tests.space.hosts.harness.nursery import NurseryPeer
from tests.space.hosts.storm import check_last_words


@pytest.mark.parametrize("how", ["killed", "silent", "cut"])
def test_explicit_calls_on_a_lost_host_raise_in_time_and_name_host_and_range(two: Cluster, how: str) -> None:
    home, other = losing.meet(two, 2)
    address = home.call(losing.put, "a", 7)
    home.call(losing.prepare)
    other.call(losing.hold, "a")
    other.call(losing.prepare)
    assert other.call(losing.values) == [7]
    if how == "cut":
        two[0].cut()
    else:
        two[0].kill(silent=how == "silent")
    for what in losing.CALLS:
        text, host, found, seconds = other.call(losing.call, what, two[0].address)
        assert seconds < losing.NOTICED_SECONDS, (what, text)
        assert host == two[0].address, what
        assert host in text
        if what in ("get", "put"):
            assert found is not None
            assert address <= found[0] < address + 8 * losing.WORDS
            assert f"{found[0]:#x}" in text


def test_a_connection_that_breaks_meanwhile_does_not_double_the_wait(two: Cluster) -> None:
    """What was sent just before lets the kernel give the connection up, in the middle of the call's own wait."""
    home, other = losing.meet(two, 2)
    home.call(losing.put, "a", 7)
    home.call(losing.prepare)
    other.call(losing.prepare)
    other.call(losing.find, "a")
    two[0].cut()
    assert other.call(losing.let_go_then_lock) < losing.NOTICED_SECONDS


def test_touch_of_a_lost_hosts_bytes_ends_the_process_with_its_reason(two: Cluster) -> None:
    home, other = losing.meet(two, 2)
    home.call(losing.put, "a", 7)
    other.call(losing.hold, "a")
    two[0].kill(silent=True)
    start = time.monotonic()
    with pytest.raises(Died) as death:
        other.call(losing.values)
    assert time.monotonic() - start < losing.HANG_SECONDS
    assert death.value.code == -signal.SIGBUS
    check_last_words(other.text(), [two[0].address])


@pytest.mark.parametrize("kernel", ["on", "6.1"])
def test_copies_of_a_host_whose_keeper_is_stopped_are_not_read_when_their_lease_is_over(kernel: str) -> None:
    """The home writes on without it, so its processes end their leases themselves: a touch waits for the keeper."""
    with Cluster(2, environment={"OPENSHELF_FAULTS": kernel}) as hosts:
        home, other = losing.meet(hosts, 2)
        home.call(losing.put, "a", 7)
        home.call(losing.hold, "a")
        other.call(losing.hold, "a")
        assert other.call(losing.values) == [7]
        (keeper,) = hosts[1].keepers()
        stop_process(keeper)
        home.call(losing.fill, 8)  # once it has given up the other host
        time.sleep(1)
        other.start(losing.values)
        assert not other.pipe.poll(1)
        os.kill(keeper, signal.SIGCONT)
        with pytest.raises(Died) as death:  # the arrays that it had a view of are of an earlier session
            other.finish()
        assert death.value.code == -signal.SIGBUS
        check_last_words(other.text(), [hosts[0].address])
        assert home.call(losing.values) == [8]


def test_a_keeper_that_hardly_runs_notices_a_loss_all_the_same(two: Cluster) -> None:
    """Each pause was a reason to wait for 1.5 s more: on a busy machine a touch of a killed host then hung."""
    home, other = losing.meet(two, 2)
    home.call(losing.put, "a", 7)
    other.call(losing.hold, "a")
    (keeper,) = two[1].keepers()
    two[0].kill(silent=True)
    other.start(losing.values)
    deadline = time.monotonic() + 20 * PATIENCE
    while not other.pipe.poll(0.6):
        assert time.monotonic() < deadline, "the loss is not noticed"
        stop_process(keeper)
        time.sleep(0.55)
        os.kill(keeper, signal.SIGCONT)
    with pytest.raises(Died) as death:
        other.finish()
    assert death.value.code == -signal.SIGBUS
    check_last_words(other.text(), [two[0].address])


def test_copy_of_a_lost_hosts_bytes_is_gone_with_it(two: Cluster) -> None:
    home, other = losing.meet(two, 2)
    home.call(losing.put, "a", 7)
    other.call(losing.hold, "a")
    assert other.call(losing.values) == [7]  # and so has a copy
    two[0].kill(silent=True)
    deadline = time.monotonic() + losing.HANG_SECONDS
    while _values_or_end(other) == [7]:
        assert time.monotonic() < deadline, "the copy is still there"
        time.sleep(0.05)
    assert other.process.exitcode == -signal.SIGBUS
    check_last_words(other.text(), [two[0].address])


@pytest.mark.parametrize("silent", [False, True])
def test_restarted_host_joins_again_with_nothing_of_its_old_life(two: Cluster, silent: bool) -> None:
    home, other = losing.meet(two, 2)
    home.call(losing.put, "a", 7)
    other.call(losing.hold, "a")
    assert other.call(losing.values) == [7]
    two[0].kill(silent=silent)
    again = two[0].peer()
    again.call(worker.enter, two[0].url())
    assert not again.call(_has, "a")
    again.call(losing.put, "b", 9)
    third = two[1].peer()
    third.call(worker.enter, two[1].url())
    deadline = time.monotonic() + losing.HANG_SECONDS
    while not third.call(_has, "b"):
        assert time.monotonic() < deadline, "the restarted host is not seen"
        time.sleep(0.05)
    third.call(losing.hold, "b")
    assert third.call(losing.values) == [9]
    assert third.call(_up) == [True, True]
    # Who was there before: its old bytes never show the new host's.
    assert _values_or_end(other) in ([7], -signal.SIGBUS)


def _values_or_end(peer: NurseryPeer) -> list[int] | int | None:
    """What a process sees, or how a touch ended it."""
    try:
        return list(peer.call(losing.values))
    except Died as death:
        return death.code


def _has(state: State, name: str) -> bool:
    return name in state["space"]


def _up(state: State) -> list[bool]:
    return [host["up"] for host in state["space"].hosts()]


def test_what_a_dead_host_had_borrowed_is_back_as_the_home_last_knew_it(three: Cluster) -> None:
    home, writer, reader = losing.meet(three, 3)
    home.call(losing.put, "a", 1)
    for peer in (home, writer, reader):
        peer.call(losing.hold, "a")
    writer.call(losing.fill, 2)
    assert reader.call(losing.values) == [2]  # by way of the home, which knows it now
    writer.call(losing.fill, 3)  # nobody else has seen that
    assert writer.call(losing.state_of) == "modified"
    three[1].kill(silent=True)
    for peer in (reader, home):
        start = time.monotonic()
        assert peer.call(losing.values) == [2]
        assert time.monotonic() - start < losing.HANG_SECONDS
    reader.call(losing.fill, 4)
    assert home.call(losing.values) == [4]


def test_host_that_was_cut_off_finds_what_the_others_did_meanwhile(three: Cluster) -> None:
    home, alone, other = losing.meet(three, 3)
    home.call(losing.put, "a", 1)
    for peer in (home, alone, other):
        peer.call(losing.hold, "a")
    assert alone.call(losing.values) == [1]
    three[1].cut()
    start = time.monotonic()
    other.call(losing.fill, 2)  # its copy cannot be taken back: it is given up
    assert time.monotonic() - start < losing.HANG_SECONDS
    assert home.call(losing.values) == [2]
    three[1].heal()
    assert _values_or_end(alone) in ([2], -signal.SIGBUS)  # the latter: what it had was lost while it was alone
    again = three[1].peer()
    again.call(worker.enter, three[1].url())
    deadline = time.monotonic() + losing.HANG_SECONDS
    while not again.call(_has, "a"):
        assert time.monotonic() < deadline, "the host that was cut off does not find the others again"
        time.sleep(0.05)
    again.call(losing.hold, "a")
    assert again.call(losing.values) == [2]


def _put_until_at(state: State, address: int) -> bool:
    """Puts arrays until one is at the address: that of an array which nobody has any more."""
    kept = state.setdefault("kept", [])
    for _ in range(64):
        kept.append(state["space"].put(None, np.full(losing.WORDS, 9, "uint64")))
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
        losing.hold(state, name)
    except (HostLost, UnknownName):
        return False
    return True


def test_view_never_shows_what_came_to_its_place_while_its_host_was_given_up(two: Cluster) -> None:
    home, alone = losing.meet(two, 2)
    home.call(losing.put, "b", 5)
    address = home.call(losing.put, "a", 1)
    alone.call(losing.hold, "a")
    assert alone.call(losing.values) == [1]
    two[1].cut()
    home.call(losing.delete, "a")
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
    home, alone = losing.meet(two, 2)
    home.call(losing.put, "b", 5)
    address = home.call(losing.put, "a", 1)
    alone.call(losing.hold, "a")
    two[1].cut()
    home.call(losing.delete, "a")
    deadline = time.monotonic() + 15
    while not home.call(_put_until_at, address):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    two[1].heal()
    until = time.monotonic() + losing.HANG_SECONDS
    while not alone.call(_up)[0]:
        assert time.monotonic() < until
        time.sleep(0.05)
    said = alone.call(_numpy_again) if how == "the same array" else alone.call(_look_at, "b")
    assert "given up" in said or "lost" in said
    assert _values_or_end(alone) == -signal.SIGBUS


def test_process_that_was_cut_off_has_new_views_afterwards(two: Cluster) -> None:
    home, alone = losing.meet(two, 2)
    home.call(losing.put, "a", 1)
    alone.call(losing.hold, "a")
    two[1].cut()
    time.sleep(3.5)
    two[1].heal()
    home.call(losing.hold, "a")
    home.call(losing.fill, 2)
    deadline = time.monotonic() + 10
    while not alone.call(_find_again, "a"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert alone.call(losing.values) == [2]


def test_short_cut_is_waited_out(two: Cluster) -> None:
    home, other = losing.meet(two, 2)
    home.call(losing.put, "a", 7)
    other.call(losing.hold, "a")
    two[0].cut()
    other.start(losing.values)
    time.sleep(0.7)
    two[0].heal()
    assert other.finish(losing.HANG_SECONDS) == [7]
    assert other.call(losing.call, "get", "") is None


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
    other.call(losing.put, "a", 5)
    other.call(losing.hold, "a")
    assert other.call(losing.values) == [5]
    assert time.monotonic() - start < 2 * losing.HANG_SECONDS
