"""Calls of one host by processes of another, over loopback."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import _core
from openshelf.errors import (
    BadAddress,
    BadInput,
    BrokenBarrier,
    Closed,
    Corrupt,
    HostLost,
    NameTaken,
    NoRoom,
    NotPermitted,
    OpenshelfError,
    Refused,
    UnknownName,
)
from tests.processes import Peer
from tests.space import faraway
from tests.space.faraway import BARRIER, CHANNEL, LOCK, UINT8, Place, bytes_of, call_on, make, put
from tests.space.shelf import SOUND, pattern

LIMIT = 3.0  # seconds in which a host that is gone is noticed


@pytest.fixture
def server(home: Path) -> Iterator[Peer]:
    """The other host."""
    with Peer() as process:
        yield process


@pytest.fixture
def place(server: Peer) -> Place:
    return faraway.started(server)


@pytest.fixture
def remote(place: Place) -> Iterator[_core.Remote]:
    made = call_on(place)
    yield made
    made.close()


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.02)


def free(server: Peer) -> int:
    server.call(faraway.ask_core, "collect")
    return int(server.call(faraway.ask_core, "stats")["free"])


def sound(server: Peer) -> None:
    found = server.call(faraway.ask_core, "audit")
    assert {name: found[name] for name in SOUND} == SOUND


@pytest.mark.parametrize("nbytes", [0, 1, 100, 4096, 256 * 1024 - 1, 256 * 1024, 256 * 1024 + 1, 3_000_000])
def test_put_array_is_found_with_its_bytes_and_facts(server: Peer, remote: _core.Remote, nbytes: int) -> None:
    data = pattern(nbytes, nbytes)
    pin = remote.put(data, nbytes, UINT8, 0, (nbytes,), "", "it", False)
    assert (pin.nbytes, pin.dtype, pin.kind, pin.shape, pin.descr, pin.name) == (nbytes, UINT8, 0, (nbytes,), "", "it")
    found = remote.find("it")
    assert found is not None
    assert found.address == pin.address
    assert np.array_equal(bytes_of(remote, found), data)
    assert server.call(faraway.ask_core, "find", "it") == pin.address
    assert remote.at(pin.address + nbytes // 2).address == pin.address
    sound(server)


def test_names_are_given_changed_and_taken_away(server: Peer, remote: _core.Remote) -> None:
    draft = remote.make(64, UINT8, 0, (8, 8), "|u1", "a", True)
    assert draft.shape == (8, 8)
    assert draft.descr == "|u1"
    assert not remote.contains("a")
    assert draft.name == "a"
    remote.publish(draft, False)
    assert remote.contains("a")
    assert server.call(faraway.ask_core, "contains", "a")
    remote.rename("a", "b")
    assert draft.name == "b"
    assert remote.find("a") is None
    unnamed = make(remote, "", 10)
    assert unnamed.name == ""
    remote.name(unnamed, "c")
    assert [entry[0] for entry in remote.list("")] == ["b", "c"]
    assert remote.list("c")[0] == ("c", 10, unnamed.address, UINT8, 0, (10,), "")
    assert not remote.remove("b", unnamed)
    assert remote.remove("b", draft)
    assert not remote.remove("b")
    assert [entry[0] for entry in remote.list("")] == ["c"]
    assert draft.state != unnamed.state


def test_long_lists_come_whole(remote: _core.Remote) -> None:
    names = sorted(f"{'x' * 300}/{number}" for number in range(1500))
    for name in names:
        make(remote, name, 8)
    assert [entry[0] for entry in remote.list("x")] == names


def test_errors_are_those_of_the_space(remote: _core.Remote) -> None:
    pin = make(remote, "a", 100)
    with pytest.raises(NameTaken, match="'a' exists already"):
        put(remote, "a", b"x")
    put(remote, "a", b"x", replace=True)
    with pytest.raises(UnknownName):
        remote.rename("none", "other")
    with pytest.raises(NoRoom, match="bytes are free"):
        make(remote, "", 1 << 30)
    with pytest.raises(NoRoom):
        make(remote, "", (1 << 64) - 1)
    big = np.zeros(80 << 20, np.uint8)  # its bytes are on their way when it is refused
    with pytest.raises(NoRoom):
        put(remote, "big", big)
    with pytest.raises(BadAddress):
        remote.at(4096)
    with pytest.raises(BadInput):
        remote.publish(pin, False)
    with pytest.raises(BadInput, match="1 to 1024 bytes"):
        make(remote, "n" * 2000, 8)
    with pytest.raises(NoRoom):
        remote.grow(1 << 60)
    with pytest.raises(BadInput, match="pickle"):
        pickle.dumps(pin)
    assert remote.contains("a")


def test_whole_of_the_space(server: Peer, remote: _core.Remote) -> None:
    pin = put(remote, "a", pattern(1, 1000))
    before = remote.stats()
    assert before["arrays"] == 1
    assert before["name"] == "shelf"
    assert [member["remote"] for member in before["members"]] == [False, True]
    remote.grow(1 << 20)
    assert remote.stats()["bytes"] == before["bytes"] + (1 << 20)
    remote.collect()
    assert remote.audit()["arrays"] == 1
    assert remote.owners(pin.address, 10) == f"{pin.address}+10".encode()
    with pytest.raises(BadAddress):
        remote.owners(before["data_address"], 1 << 40)
    assert before["free"] == server.call(faraway.ask_core, "stats")["free"] - (1 << 20)


def test_transfers_move_the_bytes(server: Peer, remote: _core.Remote) -> None:
    data = pattern(1, 4 << 20)
    pin = put(remote, "it", data)
    random = np.random.default_rng(2)
    offsets = [int(offset) for offset in random.integers(0, data.nbytes - 4096, 300)]
    rows = np.zeros((300, 4096), np.uint8)
    assert remote.get_bytes([pin.address + offset for offset in offsets], rows, 4096).wait(10.0)
    assert all(np.array_equal(row, data[offset : offset + 4096]) for row, offset in zip(rows, offsets, strict=True))

    places = [4096 * int(place) for place in random.permutation(1024)[:200]]
    news = random.integers(0, 256, (200, 1000), dtype=np.uint8)
    transfer = remote.put_bytes([pin.address + place for place in places], news, 1000)
    assert transfer.wait()
    assert transfer.done
    for place, row in zip(places, news, strict=True):
        data[place : place + 1000] = row
    assert np.array_equal(bytes_of(remote, pin), data)
    empty = remote.get_bytes([pin.address], np.zeros(0, np.uint8), 0)
    assert empty.done
    assert empty.wait()


def test_many_transfers_are_in_flight_and_none_needs_a_waiter(remote: _core.Remote) -> None:
    data = pattern(3, 2 << 20)
    pin = put(remote, "it", data)
    out = np.zeros(data.nbytes, np.uint8)
    sizes = [1, 100, 4096, 300_000, 65_536] * 40
    random = np.random.default_rng(4)
    moves = []
    for size in sizes:
        offset = int(random.integers(0, data.nbytes - size))
        moves.append(remote.get_bytes([pin.address + offset], out[offset : offset + size], size))
        moves.append(remote.put_bytes([pin.address + offset], data[offset : offset + size], size))
    del moves[::3]  # let go of under way: it ends all the same
    until(lambda: all(move.done for move in moves))
    assert all(move.wait(0.0) for move in moves)
    assert np.array_equal(bytes_of(remote, pin), data)


def test_threads_share_a_remote(remote: _core.Remote) -> None:
    data = pattern(5, 1 << 20)
    pin = put(remote, "it", data)
    counter = make(remote, "n", 64)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        out = np.empty(50_000, np.uint8)
        for _ in range(40):
            offset = int(random.integers(0, data.nbytes - out.nbytes))
            remote.get_bytes([pin.address + offset], out, out.nbytes).wait()
            if not np.array_equal(out, data[offset : offset + out.nbytes]):
                wrong.append(offset)
            _core.add_u8(counter, 0, 1)
            remote.find("it")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert _core.load_u8(counter, 0) == 240


def test_wrong_transfers_are_refused_and_harm_no_others(remote: _core.Remote) -> None:
    data = pattern(6, 1 << 20)
    pin = put(remote, "it", data)
    stats = remote.stats()
    end = stats["data_address"] + stats["bytes"]
    out = np.zeros(data.nbytes, np.uint8)
    right = remote.get_bytes([pin.address], out, out.nbytes)
    for address in (0, 4096, stats["base"], stats["data_address"] - 1, end - 10, end - 5000, end, (1 << 64) - 20):
        buffer = np.zeros(1000, np.uint8)
        with pytest.raises(BadAddress, match="not all in arrays of the space"):
            remote.get_bytes([pin.address, address], buffer, 500).wait()
        with pytest.raises(BadAddress):
            remote.put_bytes([address], buffer, 1000).wait()
    assert right.wait()
    assert np.array_equal(out, data)
    for addresses, size, row in (
        ([], 10, 10),
        ([pin.address], 10, 9),
        ([pin.address] * 2, 10, 10),
        ([1] * 3, 1, 1 << 63),
    ):
        with pytest.raises(BadInput):
            remote.get_bytes(addresses, np.zeros(size, np.uint8), row)
    with pytest.raises((BufferError, ValueError)):
        remote.get_bytes([pin.address], b"constant", 8)
    assert np.array_equal(bytes_of(remote, pin), data)


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
    start = time.monotonic()
    error = killed_in(server, lambda: _core.wait_word(pin, 0, 0, -1.0))
    assert time.monotonic() - start < 0.3 + LIMIT
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
        start = time.monotonic()
        with pytest.raises(HostLost):
            call()
        assert time.monotonic() - start < LIMIT
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
    os.kill(server.pid, signal.SIGSTOP)
    start = time.monotonic()
    try:
        with pytest.raises(HostLost, match="silent"):
            remote.get_bytes([pin.address], np.zeros(1 << 20, np.uint8), 1 << 20).wait()
        thread.join(LIMIT)
        assert isinstance(waiting[0], HostLost)
        assert time.monotonic() - start < LIMIT + 0.5
    finally:
        os.kill(server.pid, signal.SIGCONT)
    until(lambda: remote.contains("word"))
    sound(server)


def test_silence_of_a_long_call_is_no_loss(server: Peer, remote: _core.Remote) -> None:
    pin = make(remote, "word", 64)
    start = time.monotonic()
    assert not _core.wait_word(pin, 0, 0, 4.0)
    assert time.monotonic() - start >= 4.0


def test_pins_and_locks_outlive_a_killed_keeper(home: Path, place: Place, server: Peer, remote: _core.Remote) -> None:
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
        assert remote.contains("lock")
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
    took: list[float] = []

    def call(function: Callable[[], Any]) -> None:
        start = time.monotonic()
        with pytest.raises(HostLost):
            function()
        took.append(time.monotonic() - start)

    threads = [threading.Thread(target=call, args=(function,)) for function in calls]
    threads[0].start()
    threads[1].start()
    time.sleep(0.3)
    relay.freeze()
    for thread in threads[2:]:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(took) == len(calls)
    assert max(took) < LIMIT + 0.5
    relay.cut()


def test_process_cut_off_for_long_is_told_that_its_pins_are_gone(server: Peer, place: Place) -> None:
    relay = faraway.Relay(place)
    remote = call_on(relay.place)
    pin, lock = make(remote, "it", 64), make(remote, "lock", 64, LOCK)
    assert _core.lock_take(lock, 1.0) is False
    relay.cut()
    with pytest.raises(HostLost):
        remote.find("it")
    relay.mend()
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


def test_nothing_is_said_to_strangers(place: Place) -> None:
    with pytest.raises((HostLost, Refused)):
        call_on(place, key=bytes(32)).find("it")
    with pytest.raises(UnknownName, match="no space 'other'"):
        call_on(place, space="other").find("it")
    for wrong in ({"base": 1 << 40}, {"reserve": 1 << 35}, {"hosts": 3}, {"hosts_hash": 1}):
        with pytest.raises(Refused, match="same hosts file"):
            call_on(place, other=wrong).find("it")
    with pytest.raises(Refused, match="host 2 of 2"):
        call_on(place, other={"own": 2}).find("it")
    for host in ("nowhere", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"):
        with pytest.raises(BadInput, match="host:port"):
            call_on((host, *place[1:]))
    with pytest.raises(BadInput, match="32 bytes"):
        call_on(place, key=b"short")


def test_nobody_at_the_port_is_a_lost_host(place: Place, server: Peer) -> None:
    server.call(faraway.stop)
    start = time.monotonic()
    with pytest.raises(HostLost) as caught:
        call_on(place).find("it")
    assert time.monotonic() - start < LIMIT
    assert caught.value.host == place[0]


def test_reader_cannot_write(place: Place, remote: _core.Remote) -> None:
    put(remote, "it", b"12345678")
    reader = call_on(place, read_only=True)
    pin = reader.find("it")
    assert pin is not None
    assert bytes(bytes_of(reader, pin)) == b"12345678"
    calls: list[Callable[[], Any]] = [
        lambda: make(reader, "other", 8),
        lambda: put(reader, "other", np.zeros(1 << 20, np.uint8)),
        lambda: reader.remove("it"),
        lambda: _core.store_u8(pin, 0, 1),
        lambda: _core.lock_take(pin, 0.1),
        lambda: reader.put_bytes([pin.address], b"abcdefgh", 8).wait(),
    ]
    for call in calls:
        with pytest.raises(NotPermitted):
            call()
    assert _core.load_u8(pin, 0) != 1
    reader.close()


def test_views_need_a_mapping(space: Any) -> None:
    core = space._native
    server = _core.serve_for_tests(core, faraway.KEY)
    stats = core.stats()
    remote = call_on((f"127.0.0.1:{server.port}", stats["base"], stats["reserve"]))
    pin = put(remote, "it", b"12345678")
    with pytest.raises(NotPermitted, match=r"space\.get"):
        pin.numpy()
    with pytest.raises(NotPermitted, match=r"space\.get"):
        memoryview(pin)
    remote.set_mapped(True)  # it is: the home is this process
    assert bytes(pin) == b"12345678"
    assert bytes(pin.numpy()) == b"12345678"
    remote.close()
    server.stop()


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


def test_calls_after_close_are_refused(remote: _core.Remote) -> None:
    pin = make(remote, "it", 64)
    remote.close()
    for call in (lambda: remote.find("it"), lambda: _core.load_u8(pin, 0), remote.check_usable):
        with pytest.raises(Closed):
            call()
    with pytest.raises(Closed):
        remote.get_bytes([pin.address], np.zeros(64, np.uint8), 64)


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


def test_one_look_up_asks_several_hosts(home: Path, server: Peer, place: Place, remote: _core.Remote) -> None:
    put(remote, "it", b"1")
    again = call_on(place)
    gone = call_on(("127.0.0.1:1", *place[1:]))
    found, same, lost = _core.find_all([remote, again, gone], "it")
    assert isinstance(found, _core.RemotePin)
    assert isinstance(same, _core.RemotePin)
    assert found.address == same.address
    assert isinstance(lost, HostLost)
    assert lost.host == "127.0.0.1:1"
    assert _core.find_all([remote, again], "none") == [None, None]
    again.close()
