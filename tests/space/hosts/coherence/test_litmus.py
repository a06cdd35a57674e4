"""Litmus tests: what loads and stores on several hosts may never be seen to do.

Every test is a few steps of several processes on words of different homes, repeated with other words; the outcome that
one memory could not give must not come up. Between hosts not even the one that processors allow does: a unit changes
hands only through the kernel, which empties store buffers.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.processes import State
from tests.space.hosts.coherence import litmus_worker as there
from tests.space.hosts.harness import machine, worker
from tests.space.hosts.harness.cluster import Cluster
from tests.space.hosts.harness.net import Network
from tests.space.hosts.harness.nursery import NurseryPeer

ROUNDS, STEP_NS = 1000, 1_000_000  # half of the rounds of all tests must fit half a unit
CONTENTION_SECONDS = 10.0 if os.environ.get("OPENSHELF_SOAK") == "1" else 1.0


class Litmus(NamedTuple):
    """What each process does, and what all of them together must not have seen: reads in order, then final values."""

    threads: list[list[there.Step]]
    forbidden: Callable[[Any], bool]


def _w(name: str, value: int = 1) -> there.Step:
    return "w", name, value


def _r(name: str) -> there.Step:
    return "r", name, 0


TESTS = {
    "message passing": Litmus([[_w("x"), _w("y")], [_r("y"), _r("x")]], lambda o: o[:2] == [1, 0]),
    "store buffering": Litmus([[_w("x"), _r("y")], [_w("y"), _r("x")]], lambda o: o[:2] == [0, 0]),
    "load buffering": Litmus([[_r("x"), _w("y")], [_r("y"), _w("x")]], lambda o: o[:2] == [1, 1]),
    "independent reads of independent writes": Litmus(
        [[_w("x")], [_w("y")], [_r("x"), _r("y")], [_r("y"), _r("x")]], lambda o: o[:4] == [1, 0, 1, 0]
    ),
    "write to read causality": Litmus(
        [[_w("x")], [_r("x"), _w("y")], [_r("y"), _r("x")]], lambda o: o[:3] == [1, 1, 0]
    ),
    "coherence of reads": Litmus(
        [[_w("x")], [_r("x"), _r("x")], [_r("x"), _r("x")]], lambda o: [1, 0] in (o[:2], o[2:4])
    ),
    "coherence of writes": Litmus(
        [[_w("x", 1), _w("x", 2)], [_r("x"), _r("x")]], lambda o: o[0] > o[1] or o[2] != 2
    ),
    "writes of two in both orders": Litmus(
        [[_w("x", 1), _w("y", 2)], [_w("y", 1), _w("x", 2)]], lambda o: o == [1, 1]
    ),
}  # fmt: skip


with_older_kernels = pytest.mark.parametrize("peers", [None, "6.1"], indirect=True)


@pytest.fixture(scope="module")
def peers(request: pytest.FixtureRequest, network: Network) -> Iterator[list[NurseryPeer]]:
    """Two processes on each of three hosts; the first three are on different ones. `param`: an older kernel."""
    older: str | None = getattr(request, "param", None)
    with Cluster(3, network, {"OPENSHELF_FAULTS": older} if older else None) as cluster:
        made = [cluster[number % 3].peer() for number in range(6)]
        for number, peer in enumerate(made):
            peer.call(there.begin, cluster[number % 3].url(), number % 3, number < 3)
        yield made


@with_older_kernels
@pytest.mark.parametrize("name", TESTS)
def test_no_outcome_that_one_memory_could_not_give(peers: list[NurseryPeer], name: str) -> None:
    litmus, number = TESTS[name], list(TESTS).index(name)
    # In halves: variables with different homes, then in one unit of a home that is, mostly, neither process's.
    halves: list[dict[str, tuple[int, float]]] = [{"x": (0, 0), "y": (1, 1)}, {"x": (2, 2), "y": (2, 2.5)}]
    raced = False
    for half, places in enumerate(halves):
        first = number * ROUNDS // 2
        outcomes = _run(peers, litmus, places, first, ROUNDS // 2, seed=10 * number + half)
        bad = [outcome for outcome in outcomes if litmus.forbidden(list(outcome))]
        assert not bad, f"{len(bad)} of {len(outcomes)} rounds of {name!r} ended in {bad[0]}"
        raced |= len(outcomes) > 1
    if not raced:  # each process had a core for all of its rounds, on a machine with much else to do
        pytest.skip("nothing raced: all rounds ended alike")


def _run(
    peers: list[NurseryPeer], litmus: Litmus, places: dict[str, tuple[int, float]], first: int, count: int, seed: int
) -> Counter[tuple[int, ...]]:
    moment = time.monotonic_ns() + 10_000_000
    at_work = peers[: len(litmus.threads)]
    for number, (peer, steps) in enumerate(zip(at_work, litmus.threads, strict=True)):
        peer.start(there.rounds, steps, places, first, count, moment, STEP_NS, seed * 100 + number)
    answers = [peer.finish(60) for peer in at_work]
    final = peers[-1].call(there.values, places, first, count)
    return Counter(
        tuple(value for answer in answers for value in answer[turn])
        + tuple(final[name][turn] for name in sorted(final))
        for turn in range(count)
    )


def _together(peers: list[NurseryPeer], function: Callable[..., Any], *arguments: Any) -> list[Any]:
    for peer in peers:
        peer.start(function, *arguments)
    return [peer.finish(60) for peer in peers]


def _word(peer: NurseryPeer, name: str, index: int) -> int:
    return int(peer.call(_load, name, index))


def _load(state: State, name: str, index: int) -> int:
    return int(worker.view(state, name)[index])


@pytest.mark.skipif(not machine.AVAILABLE, reason="no machine code for an atomic addition on this processor")
@pytest.mark.parametrize("hold_gil", [False, True])
def test_additions_by_plain_instructions_are_all_counted(peers: list[NurseryPeer], hold_gil: bool) -> None:
    name = f"adds{hold_gil}"
    peers[0].call(worker.make, name, 1)
    counts = _together(peers[:4], there.add_by_instruction, name, 5, CONTENTION_SECONDS, hold_gil)
    assert min(counts) > 0
    assert [_word(peer, name, 5) for peer in peers] == [sum(counts)] * 6


def test_additions_by_call_are_all_counted_and_each_is_alone(peers: list[NurseryPeer]) -> None:
    peers[0].call(worker.make, "calls", 1)
    found = _together(peers[:4], there.add_by_call, "calls", 7, CONTENTION_SECONDS)
    every = sorted(value for values in found for value in values)
    assert every == list(range(len(every)))
    assert min(len(values) for values in found) > 10
    assert _word(peers[4], "calls", 7) == len(every)


def test_plain_additions_under_a_lock_are_all_counted(peers: list[NurseryPeer]) -> None:
    peers[0].call(worker.make, "locked", 1)
    counts = _together(peers[:3], there.add_under_lock, "locked", 9, "lock of locked", CONTENTION_SECONDS)
    assert min(counts) > 0
    assert [_word(peer, "locked", 9) for peer in peers] == [sum(counts)] * 6


@with_older_kernels
def test_words_of_different_writers_in_one_unit_do_not_disturb_each_other(peers: list[NurseryPeer]) -> None:
    peers[0].call(worker.make, "false", 1)
    for number, peer in enumerate(peers[:4]):
        peer.start(there.count_in_own_words, "false", number, 128, CONTENTION_SECONDS)
    counts = [peer.finish(60) for peer in peers[:4]]
    assert min(counts) > 0
    for number, count in enumerate(counts):
        assert [_word(peer, "false", number + 128 * 63) for peer in peers] == [count] * 6
