"""Atomics, locks, barriers and channels of another host."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from openshelf import _core
from openshelf.errors import BadAddress, BadInput, BrokenBarrier, Corrupt, UnknownName
from tests.processes import Peer
from tests.space.hosts.calls import faraway
from tests.space.hosts.calls.faraway import BARRIER, CHANNEL, LOCK, UINT8, Place, bytes_of, make, put, sound


@pytest.mark.parametrize(
    ("suffix", "top"), [("_i4", 2**31 - 1), ("_u4", 2**32 - 1), ("_i8", 2**63 - 1), ("_u8", 2**64 - 1)]
)
def test_atomics_run_at_the_home(remote: _core.Remote, suffix: str, top: int) -> None:
    pin = make(remote, "words", 64)
    load, store, add, exchange, cas = (
        getattr(_core, verb + suffix) for verb in ("load", "store", "add", "exchange", "cas")
    )
    store(pin, 8, top)
    assert load(pin, 8) == top
    assert load(pin, 0) == 0
    assert exchange(pin, 8, 5) == top
    assert add(pin, 8, 3) == 5
    assert load(pin, 8) == 8
    assert cas(pin, 8, 7, 1) == (False, 8)
    assert cas(pin, 8, 8, 1) == (True, 8)
    assert load(pin, 8) == 1
    if suffix[1] == "i":
        assert add(pin, 8, -3) == 1
        assert load(pin, 8) == -2
    for offset in (1, 61, 64, (1 << 64) - 4):
        with pytest.raises(BadAddress):
            load(pin, offset)


def test_counters_of_two_processes_are_exact(server: Peer, place: Place, remote: _core.Remote) -> None:
    pin = make(remote, "n", 8)
    with Peer() as first, Peer() as second:
        for peer in (first, second):
            peer.call(faraway.connect, place)
            peer.call(faraway.hold, "n")
        for peer in (first, second):
            peer.start(faraway.add, "n", 500)
        for _ in range(500):
            _core.add_i8(pin, 0, 1)
        first.finish()
        second.finish()
    assert _core.load_i8(pin, 0) == 1500


def test_word_is_waited_for(remote: _core.Remote) -> None:
    pin = make(remote, "word", 8)
    start = time.monotonic()
    assert not _core.wait_word(pin, 0, 0, 0.3)
    assert 0.3 <= time.monotonic() - start < 2
    assert _core.wait_word(pin, 0, 1, -1.0)

    def change() -> None:
        _core.store_u4(pin, 0, 7)
        _core.wake_word(pin, 0, 1)

    thread = threading.Timer(0.2, change)
    thread.start()
    assert _core.wait_word(pin, 0, 0, 10.0)
    thread.join()


def test_lock_excludes_processes_and_passes_on_when_its_holder_dies(place: Place, remote: _core.Remote) -> None:
    lock = make(remote, "lock", 64, LOCK)
    with Peer() as holder:
        holder.call(faraway.connect, place)
        holder.call(faraway.hold, "lock")
        assert holder.call(faraway.take, "lock", -1.0) is False
        assert _core.lock_take(lock, 0.2) is None
        assert not _core.lock_owned(lock)
        assert not _core.lock_drop(lock)
        holder.kill()
        start = time.monotonic()
        assert _core.lock_take(lock, 10.0) is True  # after the grace of two seconds
        assert time.monotonic() - start < 5
    assert _core.lock_owned(lock)
    assert _core.lock_drop(lock)
    assert not _core.lock_drop(lock)


def test_waiter_that_dies_does_not_get_the_lock(place: Place, remote: _core.Remote) -> None:
    lock = make(remote, "lock", 64, LOCK)
    assert _core.lock_take(lock, -1.0) is False
    with Peer() as waiter:
        waiter.call(faraway.connect, place)
        waiter.call(faraway.hold, "lock")
        waiter.call(faraway.begin_taking, "lock")
        time.sleep(0.3)
        waiter.kill()
    time.sleep(0.5)
    _core.lock_drop(lock)
    assert _core.lock_take(lock, 5.0) is not None


def test_process_that_says_goodbye_leaves_at_once(server: Peer, place: Place, remote: _core.Remote) -> None:
    lock = make(remote, "lock", 64, LOCK)
    with Peer() as holder:
        holder.call(faraway.connect, place)
        holder.call(faraway.hold, "lock")
        holder.call(faraway.take, "lock", -1.0)
        assert server.call(faraway.processes) == 2
        holder.call(faraway.close)
        assert _core.lock_take(lock, 1.0) is True
        assert server.call(faraway.processes) == 1


def test_barrier_of_processes(server: Peer, place: Place, remote: _core.Remote) -> None:
    pin = remote.make(_core.barrier_bytes(3), UINT8, BARRIER, (1,), "", "barrier", True)
    _core.barrier_init(pin, 3)
    remote.publish(pin, False)
    assert _core.barrier_parties(pin) == 3
    assert not _core.barrier_broken(pin)
    with Peer() as first, Peer() as second:
        for peer in (first, second):
            peer.call(faraway.connect, place)
            peer.call(faraway.hold, "barrier")
        for _ in range(20):
            first.start(faraway.meet, "barrier", 20.0)
            second.start(faraway.meet, "barrier", 20.0)
            assert sorted((_core.barrier_wait(pin, 20.0), first.finish(), second.finish())) == [0, 1, 2]
        first.start(faraway.meet, "barrier", 20.0)
        time.sleep(0.3)
        first.kill()
        with pytest.raises(BrokenBarrier):
            _core.barrier_wait(pin, 20.0)
    assert _core.barrier_broken(pin)
    _core.barrier_reset(pin)
    with pytest.raises(BrokenBarrier, match="not all 3 parties"):
        _core.barrier_wait(pin, 0.1)


def test_channel_carries_messages_and_arrays(server: Peer, place: Place, remote: _core.Remote) -> None:
    nbytes, slot = _core.channel_bytes(2, 100)
    channel = remote.make(nbytes, UINT8, CHANNEL, (nbytes,), "", "channel", True)
    _core.channel_init(channel, 2, slot)
    remote.publish(channel, False)
    assert _core.channel_facts(channel) == (2, slot - 16)
    assert _core.channel_length(channel) == 0
    assert _core.channel_receive(channel, 0.1) is None
    with Peer() as sender:
        sender.call(faraway.connect, place)
        sender.call(faraway.hold, "channel")
        sender.call(faraway.send, "channel", b"one")
        sender.call(faraway.send, "channel", b"two")
        assert not _core.channel_send(channel, b"no room", None, 0.1)
        assert [_core.channel_receive(channel, 5.0) for _ in range(2)] == [(0, b"one", None), (0, b"two", None)]
    with pytest.raises(BadInput, match="does not fit"):
        _core.channel_send(channel, b"x" * 1000, None, 1.0)
    unnamed = put(remote, "", b"hello")
    address = unnamed.address
    assert _core.channel_send(channel, b"", unnamed, 1.0)
    del unnamed
    received = _core.channel_receive(channel, 1.0)
    assert received is not None
    kind, _, array = received
    assert kind == 2
    assert array is not None
    assert array.address == address
    assert bytes(bytes_of(remote, array)) == b"hello"
    with pytest.raises(BadInput, match="emptied"):
        remote.remove("channel")
    _core.channel_discard(channel)
    assert _core.channel_deleted(channel)
    with pytest.raises(UnknownName):
        _core.channel_send(channel, b"late", None, 1.0)
    sound(server)


def test_things_that_are_no_locks_barriers_or_channels_are_refused(remote: _core.Remote) -> None:
    pins = [make(remote, f"{size}-{kind}", size, kind) for size in (1, 256) for kind in range(5)]
    for kind in range(5):
        pins.append(make(remote, f"garbage-{kind}", 256, kind))
        remote.put_bytes([pins[-1].address], np.full(256, 255, np.uint8), 256).wait()
    calls: list[Callable[[Any], Any]] = [
        lambda pin: _core.barrier_wait(pin, 0.1),
        lambda pin: _core.barrier_init(pin, 1 << 31),
        _core.barrier_parties,
        lambda pin: _core.channel_send(pin, b"x", None, 0.1),
        lambda pin: _core.channel_receive(pin, 0.1),
        lambda pin: _core.channel_init(pin, 0, 0),
        lambda pin: _core.channel_init(pin, 1 << 31, 1 << 31),
        _core.channel_discard,
    ]
    for call in calls:
        for pin in pins:
            with contextlib.suppress(BadInput, Corrupt, BrokenBarrier, BadAddress, UnknownName):
                call(pin)
    for kind in (0, 2, 3):
        with pytest.raises(BadInput, match="is no lock"):
            _core.lock_take(pins[5 + kind], 0.1)
    assert remote.contains("256-1")


def test_ctrl_c_ends_waiting(remote: _core.Remote, place: Place) -> None:
    lock, word = make(remote, "lock", 64, LOCK), make(remote, "word", 64)
    barrier = make(remote, "barrier", _core.barrier_bytes(2), BARRIER)
    _core.barrier_init(barrier, 2)
    with Peer() as holder:
        holder.call(faraway.connect, place)
        holder.call(faraway.hold, "lock")
        holder.call(faraway.take, "lock", -1.0)
        calls: list[Callable[[], Any]] = [
            lambda: _core.lock_take(lock, -1.0),
            lambda: _core.wait_word(word, 0, 0, -1.0),
            lambda: _core.barrier_wait(barrier, -1.0),
        ]
        for call in calls:
            timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            start = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                call()
            assert time.monotonic() - start < 2
            timer.join()
    assert _core.barrier_broken(barrier)
    assert _core.lock_take(lock, 10.0) is True  # and nothing of the interrupted call holds it
