"""Barriers, channels and puts by address of other hosts, while the keeper that does them is killed again and again.

native/tests/rpc/once_test.cpp kills it at every step of each call; here whole hosts work, and kills come at random.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from openshelf import Space
from openshelf.space.transfer import Transfer
from tests.processes import PATIENCE, State
from tests.space.hosts.harness.cluster import Cluster
from tests.space.hosts.harness.nursery import NurseryPeer
from tests.space.hosts.test_service import Service

KILLS = 5
ROUNDS = 100
PAUSE = 0.01
LARGE = 8 << 20


def _make(state: State, url: str) -> int:
    space = state["space"] = Space.open(url, contribute="48MiB")
    space.channel("messages", capacity=4)
    space.barrier("meeting", 2)
    state["word"] = space.zeros("word", (4096,), np.int64).numpy()
    state["large"] = space.zeros("large", (LARGE,), np.uint8)
    return int(space["word"].address)


def _join(state: State, url: str) -> None:
    state["space"] = Space.open(url)


def _send(state: State) -> None:
    channel = state["space"].channel("messages")
    for number in range(ROUNDS):
        assert channel.send(f"{number}" + "x" * (number % 100), timeout=60 * PATIENCE)
        time.sleep(PAUSE)


def _receive(state: State) -> list[str]:
    channel = state["space"].channel("messages")
    got: list[str] = []
    while len(got) < ROUNDS:
        message = channel.receive(timeout=60 * PATIENCE)
        assert message is not None
        got.append(message.decode())
    assert channel.receive(timeout=0) is None
    return got


def _meet(state: State, slow: bool) -> list[int]:
    barrier = state["space"].barrier("meeting", 2)
    orders: list[int] = []
    for _ in range(ROUNDS):
        orders.append(barrier.wait(timeout=60 * PATIENCE))
        if slow:
            time.sleep(PAUSE)
    return orders


def _put(state: State, address: int) -> None:
    space, block, seen = state["space"], np.zeros(4096, np.int64), np.zeros(1, np.int64)
    for value in range(1, ROUNDS + 1):
        block[:] = value
        assert space.put(address, block).wait(timeout=60 * PATIENCE)
        while True:
            assert space.get(address + block.nbytes - 8, seen).wait(timeout=60 * PATIENCE)
            if seen[0] == 0:
                break
            assert seen[0] == value
        time.sleep(PAUSE)


def _take(state: State) -> None:
    """Sees the end of each put, and stores there what was there before: were the put done again, it would show."""
    word, deadline = state["word"], time.monotonic() + 60 * PATIENCE
    for value in range(1, ROUNDS + 1):
        while (seen := int(word[-1])) != value:
            assert seen == 0, f"{seen} came again"
            assert time.monotonic() < deadline, f"{value} did not come"
        word[-1] = 0


def _begin(cluster: Cluster, home: NurseryPeer, address: int, what: str) -> list[NurseryPeer]:
    """The processes that work on one kind of thing, at home and elsewhere."""
    works: dict[str, list[tuple[int, Callable[..., object], tuple[object, ...]]]] = {
        "channel": [(1, _send, ()), (1, _receive, ())],
        "barrier": [(0, _meet, (False,)), (1, _meet, (True,))],
        "put": [(0, _take, ()), (1, _put, (address,))],
    }
    peers = []
    for host, function, arguments in works[what]:
        peer = cluster[host].peer() if host or what == "barrier" else home
        if peer is not home:
            peer.call(_join, cluster[host].url())
        peers.append(peer)
        peer.start(function, *arguments)
    return peers


def _judge(what: str, results: list[Any]) -> None:
    if what == "channel":
        assert results[1] == [f"{number}" + "x" * (number % 100) for number in range(ROUNDS)]
    if what == "barrier":
        assert all(sorted(orders) == [0, 1] for orders in zip(*results, strict=True))


@pytest.mark.parametrize("what", ["channel", "barrier", "put"])
def test_what_a_killed_keeper_was_asked_for_is_done_once(loopback: Cluster, what: str) -> None:
    home = loopback[0].peer()
    peers = _begin(loopback, home, home.call(_make, loopback[0].url()), what)
    chance = random.Random(7)
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.1, 0.5))
        loopback[0].kill_keeper()  # there may be none yet
    _judge(what, [peer.finish() for peer in peers])


def test_what_a_service_was_asked_for_is_done_once(loopback: Cluster) -> None:
    """It is killed or ended, and started again at once or after processes have started a keeper of their own."""
    if type(loopback) is not Cluster:
        pytest.skip("a service of a file of hosts; that of hosts that agree is told its space")
    service = Service(loopback[0])
    service.start()
    service.wait()
    home = loopback[0].peer()
    address = home.call(_make, loopback[0].url())
    begun = {what: _begin(loopback, home, address, what) for what in ("channel", "barrier", "put")}
    chance = random.Random(9)
    try:
        for round in range(KILLS):
            time.sleep(chance.uniform(0.1, 0.4))
            service.end(signal.SIGKILL if round % 2 else signal.SIGTERM)
            time.sleep(0.2 * (round % 3))
            service.start()
            service.wait()
        for what, peers in begun.items():
            _judge(what, [peer.finish() for peer in peers])
    finally:
        service.end(signal.SIGKILL)


def _answer(state: State, keeper: int, value: int) -> bool:
    """Waits for a word, writes another one over it, and has the keeper killed at once."""
    word, deadline = state["word"], time.monotonic() + 60 * PATIENCE
    while word[0] != value:
        if time.monotonic() > deadline:
            return False
    word[0] = -value
    with contextlib.suppress(ProcessLookupError):  # the one of the round before was still on its way out
        os.kill(keeper, signal.SIGKILL)
    return True


def _read(state: State) -> int:
    return int(state["word"][0])


def _write(state: State, word: int, large: int, value: int) -> None:
    """A short write, and behind it a long one, which keeps the home too busy to answer the first at once."""
    space, bytes_ = state["space"], np.zeros(LARGE, np.uint8)
    under_way: list[Transfer] = [space.put(word, np.full(8, value, np.int64)), space.put(large, bytes_)]
    assert all(one.wait(timeout=60 * PATIENCE) for one in under_way)


def _large(state: State) -> int:
    return int(state["large"].address)


def test_what_was_written_over_a_put_stays_when_the_keeper_is_killed_before_it_answers(loopback: Cluster) -> None:
    home, other = loopback[0].peer(), loopback[1].peer()
    word = home.call(_make, loopback[0].url())
    large = home.call(_large)
    other.call(_join, loopback[1].url())
    for value in range(1, KILLS + 1):
        while not (keepers := loopback[0].keepers()):
            time.sleep(0.01)
        home.start(_answer, keepers[0], value)
        other.call(_write, word, large, value)
        assert home.finish()
        assert home.call(_read) == -value  # what came after the put, not the put again
