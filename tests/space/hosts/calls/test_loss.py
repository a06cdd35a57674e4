"""Processes and hosts that die, are cut off, come back; and what each of them holds meanwhile."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import _core
from openshelf.errors import HostLost, OpenshelfError
from tests.processes import Peer, stop_process
from tests.space.hosts.calls import faraway
from tests.space.hosts.calls.faraway import LOCK, Place, bytes_of, call_on, free, make, put, sound, until, within
from tests.space.shelf import pattern

LIMIT = 3.0  # seconds in which a host that is gone is noticed


def test_memory_is_kept_while_a_process_elsewhere_holds_it(server: Peer, place: Place) -> None:
    with Peer() as holder:
        holder.call(faraway.connect, place)
        before = free(server)
        remote = call_on(place)
        data = pattern(7, 1 << 20)
        pin = put(remote, "it", data)
        address = holder.call(faraway.hold, "it")
        remote.remove("it")
        remote.close()
        del pin, remote
        gc.collect()
        until(lambda: server.call(faraway.processes) == 1)
        assert free(server) == before - data.nbytes
        assert server.call(faraway.ask_core, "at", address) == address
        holder.kill()
        until(lambda: free(server) == before)
    assert server.call(faraway.processes) == 0
    sound(server)


def test_let_go_of_in_python_is_free_at_the_home(server: Peer, remote: _core.Remote) -> None:
    before = free(server)
    pins = [make(remote, "", 10_000) for _ in range(50)]
    assert free(server) < before
    pins.clear()
    until(lambda: free(server) == before)


def killed_in(server: Peer, call: Callable[[], Any]) -> HostLost:
    """The error of a call during which, 0.3 seconds later, the other host's process is killed."""
    killer = threading.Timer(0.3, server.kill)
    killer.start()
    with pytest.raises(HostLost) as caught:
        call()
    killer.join()
    return caught.value


def test_killed_host_is_noticed_by_whoever_waits(server: Peer, place: Place, remote: _core.Remote) -> None:
    pin = make(remote, "word", 64)
    with within(0.3 + LIMIT):
        error = killed_in(server, lambda: _core.wait_word(pin, 0, 0, -1.0))
    assert error.host == place[0]
    assert error.range == (pin.address, 64)
    assert place[0] in str(error)
    calls: list[Callable[[], Any]] = [
        lambda: remote.find("word"),
        lambda: make(remote, "", 8),
        lambda: _core.load_u8(pin, 0),
        lambda: remote.get_bytes([pin.address], np.zeros(64, np.uint8), 64).wait(),
        lambda: remote.put_bytes([pin.address], np.zeros(64, np.uint8), 64).wait(),
        remote.stats,
    ]
    for call in calls:
        with within(LIMIT), pytest.raises(HostLost):
            call()
    with pytest.raises(HostLost) as lost:
        remote.get_bytes([pin.address], np.zeros(64, np.uint8), 64).wait()
    assert lost.value.range == (pin.address, 64)
    assert lost.value.host == place[0]


def test_stopped_host_is_noticed_and_found_again(server: Peer, remote: _core.Remote) -> None:
    pin = make(remote, "word", 1 << 20)
    bytes_of(remote, pin)
    waiting: list[Any] = []

    def wait() -> None:
        try:
            waiting.append(_core.wait_word(pin, 0, 0, 20.0))
        except HostLost as error:
            waiting.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    stop_process(server.pid)
    try:
        with within(LIMIT + 0.5):
            with pytest.raises(HostLost, match="silent"):
                remote.get_bytes([pin.address], np.zeros(1 << 20, np.uint8), 1 << 20).wait()
            thread.join(10 * LIMIT)
        assert isinstance(waiting[0], HostLost)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    until(lambda: remote.contains("word"))
    sound(server)


def test_silence_of_a_long_call_is_no_loss(server: Peer, remote: _core.Remote) -> None:
    pin = make(remote, "word", 64)
    start = time.monotonic()
    assert not _core.wait_word(pin, 0, 0, 4.0)
    assert time.monotonic() - start >= 4.0


@pytest.mark.parametrize("calling", [True, False])
def test_pins_and_locks_outlive_a_killed_keeper(
    home: Path, place: Place, server: Peer, remote: _core.Remote, calling: bool
) -> None:
    data = pattern(8, 100_000)
    pin = put(remote, "", data)
    lock = make(remote, "lock", 64, LOCK)
    assert _core.lock_take(lock, -1.0) is False
    with Peer() as other:
        other.call(faraway.connect, place)
        other.call(faraway.hold, "lock")
        server.kill()
        other.kill()  # while nobody serves it
    with Peer() as following:
        following.call(faraway.serve, "shelf", int(place[0].rsplit(":", 1)[1]))
        if calling:
            assert remote.contains("lock")
        else:
            time.sleep(4.0)  # longer than the grace of those who do not come back
        assert _core.lock_owned(lock)
        assert np.array_equal(bytes_of(remote, pin), data)
        assert pin.name == ""
        until(lambda: len(following.call(faraway.ask_core, "stats")["members"]) == 2)  # the dead one did not come back
        assert following.call(faraway.ask_core, "at", pin.address) == pin.address
        before = free(following)
        del pin
        remote.collect()
        until(lambda: free(following) > before)
        assert _core.lock_drop(lock)
        sound(following)


def test_restarted_host_has_lost_what_it_held(home: Path, place: Place, server: Peer, remote: _core.Remote) -> None:
    pin = make(remote, "it", 64)
    assert remote.incarnation == 1
    server.kill()
    with Peer() as following:
        following.call(faraway.serve, "shelf", int(place[0].rsplit(":", 1)[1]), 2)
        assert remote.incarnation == 2
        with pytest.raises(HostLost, match="restarted"):
            _core.load_u8(pin, 0)
        found = remote.find("it")
        assert found is not None
        assert _core.load_u8(found, 0) == 0


def test_cut_link_is_noticed_by_every_blocked_call(place: Place) -> None:
    relay = faraway.Relay(place)
    remote = call_on(relay.place)
    pin, lock = make(remote, "it", 1 << 20), make(remote, "lock", 64, LOCK)
    assert _core.lock_take(lock, 1.0) is False
    data = bytes_of(remote, pin)
    calls: list[Callable[[], Any]] = [
        lambda: _core.lock_take(lock, -1.0),
        lambda: _core.wait_word(pin, 0, 0, -1.0),
        lambda: remote.get_bytes([pin.address], data, data.nbytes).wait(),
        lambda: remote.find("it"),
        lambda: put(remote, "other", np.zeros(20 << 20, np.uint8)),
    ]
    ended: list[Callable[[], Any]] = []

    def call(function: Callable[[], Any]) -> None:
        with pytest.raises(HostLost):
            function()
        ended.append(function)

    threads = [threading.Thread(target=call, args=(function,)) for function in calls]
    threads[0].start()
    threads[1].start()
    time.sleep(0.3)
    relay.freeze()
    with within(LIMIT + 0.5):
        for thread in threads[2:]:
            thread.start()
        for thread in threads:
            thread.join(10 * LIMIT)
    assert len(ended) == len(calls)
    relay.cut()


def test_process_cut_off_for_long_is_told_that_its_pins_are_gone(server: Peer, place: Place) -> None:
    relay = faraway.Relay(place)
    remote = call_on(relay.place)
    pin, lock = make(remote, "it", 64), make(remote, "lock", 64, LOCK)
    assert _core.lock_take(lock, 1.0) is False
    relay.cut()
    threading.Timer(0.5, relay.mend).start()
    assert remote.find("it") is not None
    assert _core.lock_owned(lock)
    assert _core.load_u8(pin, 0) == 0
    relay.cut()
    until(lambda: server.call(faraway.processes) == 0)
    relay.mend()
    with pytest.raises(HostLost, match="cut off"):
        _core.load_u8(pin, 0)
    again = remote.find("lock")
    assert again is not None
    assert _core.lock_take(again, 5.0) is True
    remote.close()
    relay.cut()
    sound(server)


def test_connection_that_breaks_is_made_again(server: Peer, place: Place, remote: _core.Remote) -> None:
    port = int(place[0].rsplit(":", 1)[1])
    data = pattern(9, 100_000)
    pin = put(remote, "it", data)
    assert np.array_equal(bytes_of(remote, pin), data)
    for _ in range(3):
        server.call(faraway.stop)
        server.call(faraway.serve_again, port, 0.0)
        assert np.array_equal(bytes_of(remote, pin), data)
        assert remote.contains("it")
        assert _core.load_u8(pin, 0) == int(data[:8].view(np.uint64)[0])


def test_nobody_at_the_port_is_a_lost_host(place: Place, server: Peer) -> None:
    server.call(faraway.stop)
    with within(LIMIT), pytest.raises(HostLost) as caught:
        call_on(place).find("it")
    assert caught.value.host == place[0]


def in_child(remote: _core.Remote, pin: _core.RemotePin, data: Any, pipe: Any) -> None:
    """After fork: the pins of the parent are taken anew, on connections of the child's own."""
    try:
        good = np.array_equal(bytes_of(remote, pin), data) and _core.load_u8(pin, 0) == int(data[:8].view(np.uint64)[0])
        pipe.send((good, len(remote.stats()["members"])))
        pipe.recv()
    except OpenshelfError as error:
        pipe.send(error)
    os._exit(0)


def test_forked_child_has_its_own_place(server: Peer, remote: _core.Remote) -> None:
    data = pattern(10, 100_000)
    pin = put(remote, "it", data)
    assert np.array_equal(bytes_of(remote, pin), data)  # so that there is something to inherit
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=in_child, args=(remote, pin, data, there))
    child.start()
    assert here.recv() == (True, 3)
    remote.remove("it")
    address = pin.address
    del pin
    remote.collect()
    assert server.call(faraway.ask_core, "at", address) == address  # the child's
    here.send(None)
    child.join()
    until(lambda: server.call(faraway.processes) == 1)
    assert remote.stats()["free"] == remote.stats()["bytes"]
