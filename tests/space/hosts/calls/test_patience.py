"""Another host's keeper is killed and replaced under calls, which wait; or it is not, and they end in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import _core
from openshelf.errors import HostLost
from tests.elf import sanitizer
from tests.processes import Peer
from tests.space.hosts.calls import faraway
from tests.space.hosts.calls.faraway import Place, bytes_of, call_on, make, put, within
from tests.space.shelf import pattern

LIMIT = 3.0  # seconds in which a host that is gone is noticed
AT_ONCE = 0.5


class Keepers:
    """Processes that serve one space, one after the other."""

    def __init__(self, place: Place, first: Peer) -> None:
        if sanitizer():
            pytest.skip("with a sanitizer the next keeper begins later than calls wait for it")
        self._port, self._now = int(place[0].rsplit(":", 1)[1]), first
        self.longest_s = 0.0  # that nobody served
        self._next = Peer()
        self._next.call(faraway.nothing)

    def replace(self, after_s: float) -> None:
        """Kills the one that serves; the next one begins somewhat later."""
        begun = time.monotonic()
        if self._now.process.is_alive():
            self._now.kill()
        time.sleep(after_s)
        self._next.call(faraway.serve, "shelf", self._port)
        self.longest_s = max(self.longest_s, time.monotonic() - begun)
        self._now, self._next = self._next, Peer()
        self._next.call(faraway.nothing)

    def close(self) -> None:
        for keeper in (self._now, self._next):
            keeper.kill()


@contextmanager
def replaced(place: Place, server: Peer, times: int) -> Iterator[Callable[[], bool]]:
    """While the keeper is killed and replaced again and again; what is given says whether that still goes on."""
    keepers = Keepers(place, server)

    def work() -> None:
        for number in range(times):
            time.sleep(0.3)
            keepers.replace(0.1 + 0.15 * number)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread.is_alive
    except HostLost:
        thread.join()
        if keepers.longest_s > LIMIT / 2:
            pytest.skip(f"this machine took {keepers.longest_s:.1f} s to begin the next keeper: calls wait no longer")
        raise
    finally:
        thread.join()
        keepers.close()


def test_reading_and_writing_go_on_under_a_replaced_keeper(
    home: Path, place: Place, server: Peer, remote: _core.Remote
) -> None:
    data = pattern(1, 100_000)
    pin = put(remote, "it", data)
    target = make(remote, "target", 8)
    rounds = 0
    with replaced(place, server, 3) as going_on:
        while going_on():
            rounds += 1
            assert np.array_equal(bytes_of(remote, pin), data)
            remote.put_bytes([target.address], np.full(1, rounds, np.uint64), 8).wait()
            assert _core.load_u8(target, 0) == rounds
            found = remote.find("it")
            assert found is not None
            assert found.address == pin.address
            assert remote.contains("target")
            assert not _core.wait_word(pin, 0, int(data[:4].view(np.uint32)[0]), 0.001)
        assert rounds > 3


def test_wait_under_a_replaced_keeper_ends_in_its_time(
    home: Path, place: Place, server: Peer, remote: _core.Remote
) -> None:
    pin = make(remote, "word", 64)
    with replaced(place, server, 1):
        start = time.monotonic()
        assert not _core.wait_word(pin, 0, 0, 2.0)
        assert 2.0 <= time.monotonic() - start < 2.0 + LIMIT


def calls(remote: _core.Remote, pin: _core.RemotePin) -> list[Callable[[], Any]]:
    return [
        lambda: remote.find("it"),
        lambda: _core.add_u8(pin, 0, 1),
        lambda: remote.get_bytes([pin.address], np.zeros(64, np.uint8), 64).wait(),
        lambda: remote.put_bytes([pin.address], np.zeros(64, np.uint8), 64).wait(),
        lambda: make(remote, "", 64),
        lambda: _core.lock_take(pin, 10.0),
    ]


@pytest.mark.parametrize("first", range(6))
def test_lost_host_is_waited_for_once(place: Place, server: Peer, remote: _core.Remote, first: int) -> None:
    pin = make(remote, "it", 64)
    bytes_of(remote, pin)
    server.kill()
    with within(LIMIT), pytest.raises(HostLost) as caught:
        calls(remote, pin)[first]()
    assert caught.value.host == place[0]
    assert place[0] in str(caught.value)
    for call in calls(remote, pin):
        with within(AT_ONCE), pytest.raises(HostLost):
            call()


def test_silent_host_is_waited_for_once(place: Place, server: Peer) -> None:
    relay = faraway.Relay(place)
    remote = call_on(relay.place)
    pin = make(remote, "it", 64)
    threads = [threading.Thread(target=_core.wait_word, args=(pin, 0, 0, 0.2)) for _ in range(4)]
    for thread in threads:  # so that there are several connections
        thread.start()
    for thread in threads:
        thread.join()
    relay.freeze()
    with within(LIMIT), pytest.raises(HostLost):
        remote.find("it")
    for call in calls(remote, pin):
        with within(AT_ONCE), pytest.raises(HostLost):
            call()
    relay.cut()


def test_host_that_answers_again_is_waited_for_again(
    home: Path, place: Place, server: Peer, remote: _core.Remote
) -> None:
    keepers = Keepers(place, server)
    make(remote, "it", 64)
    server.kill()
    with pytest.raises(HostLost):
        remote.find("it")
    keepers.replace(0.0)
    assert remote.contains("it")
    thread = threading.Thread(target=keepers.replace, args=(0.4,))
    thread.start()
    time.sleep(0.2)
    assert remote.contains("it")
    thread.join()
    keepers.close()


def test_host_that_never_answered_is_not_waited_for(place: Place) -> None:
    start = time.monotonic()
    with pytest.raises(HostLost):
        call_on(("127.0.0.1:1", *place[1:])).find("it")
    assert time.monotonic() - start < AT_ONCE


def test_atomics_under_a_replaced_keeper_are_done_once(
    home: Path, place: Place, server: Peer, remote: _core.Remote
) -> None:
    pin = make(remote, "n", 64)
    counts = [0] * 4
    wrong: list[BaseException] = []

    def work(number: int, going_on: Callable[[], bool]) -> None:
        try:
            count(number, going_on)
        except BaseException as error:
            wrong.append(error)

    def count(number: int, going_on: Callable[[], bool]) -> None:
        while going_on():
            before = _core.add_u8(pin, 8 * number, 1)
            assert before == counts[number]
            counts[number] += 1
            assert _core.cas_u8(pin, 8 * number, counts[number], counts[number] + 1) == (True, counts[number])
            counts[number] += 1
            _core.add_u8(pin, 56, 2)

    with replaced(place, server, 4) as going_on:
        threads = [threading.Thread(target=work, args=(number, going_on)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in wrong:
            raise error
        assert [_core.load_u8(pin, 8 * number) for number in range(4)] == counts
        assert _core.load_u8(pin, 56) == sum(counts)
        assert min(counts) > 20


def test_locks_and_names_under_a_replaced_keeper(home: Path, place: Place, server: Peer, remote: _core.Remote) -> None:
    pin, lock = make(remote, "n", 64), make(remote, "lock", 64, faraway.LOCK)
    made: list[str] = []
    with replaced(place, server, 4) as going_on:
        while going_on():
            assert _core.lock_take(lock, 10.0) is False
            _core.add_u8(pin, 0, 1)
            make(remote, name := f"a{len(made)}", 100)
            remote.rename(name, name := f"b{len(made)}")
            if len(made) % 2:
                assert remote.remove(name)
            made.append(name)
            assert _core.lock_drop(lock)
        assert not _core.lock_owned(lock)
        assert _core.load_u8(pin, 0) == len(made)
        assert sorted(entry[0] for entry in remote.list("b")) == sorted(made[::2])
        assert remote.list("a") == []


def test_lock_that_is_waited_for_comes_from_the_next_keeper(
    home: Path, place: Place, server: Peer, remote: _core.Remote
) -> None:
    lock = make(remote, "lock", 64, faraway.LOCK)
    with Peer() as holder:
        holder.call(faraway.connect, place)
        holder.call(faraway.hold, "lock")
        assert holder.call(faraway.take, "lock", 1.0) is False
        got: list[bool | None] = []
        thread = threading.Thread(target=lambda: got.append(_core.lock_take(lock, 20.0)))
        thread.start()
        time.sleep(0.2)
        with replaced(place, server, 1):
            time.sleep(1.5)
            assert not got
            holder.call(faraway.close)
            thread.join()
            assert got == [True]  # its holder went without a word
