"""Collectives in two dimensions against an oracle of its own: each dimension a server of one message at a time."""

from __future__ import annotations

import heapq

import pytest

from openshelf.errors import BadInput
from openshelf.fabric import LinkClass, SwitchClass
from openshelf.fabric import topologies as top
from openshelf.twin import Twin

B, L, A, C = 50e9, 5e-7, 4, 6  # bytes/s, seconds, ranks in each dimension
SLOW = B / 3


def oracle(messages: list[tuple[int, float]], chunks: int, rate: tuple[float, float], active: int) -> float:
    """Every rank does the same, so one tells the time: chunks pass (dimension, bytes), the first chunk first."""
    events: list[tuple[float, int, int, str]] = []
    free, waiting = [True, True], ([], [])  # type: tuple[list[bool], tuple[list[tuple[int, int]], list[tuple[int, int]]]]
    ended = 0.0
    phases = [sum(1 for i in range(1, at + 1) if messages[i][0] != messages[i - 1][0]) for at in range(len(messages))]
    done: dict[tuple[int, int], bool] = {}
    held: list[tuple[int, int]] = []

    def begin(now: float, chunk: int, at: int) -> None:
        first = at == 0 or phases[at] != phases[at - 1]
        if active and first and chunk >= active and not done.get((chunk - active, phases[at])):
            held.append((chunk, at))
        else:
            heapq.heappush(events, (now + L, chunk, at, "arrives"))

    def serve(now: float, dimension: int) -> None:
        if free[dimension] and waiting[dimension]:
            chunk, at = heapq.heappop(waiting[dimension])
            free[dimension] = False
            heapq.heappush(events, (now + messages[at][1] / rate[dimension], chunk, at, "done"))

    for chunk in range(chunks):
        begin(0.0, chunk, 0)
    while events:
        now, chunk, at, what = heapq.heappop(events)
        dimension = messages[at][0]
        if what == "arrives":
            heapq.heappush(waiting[dimension], (chunk, at))
        else:
            free[dimension], ended = True, now
            if at + 1 == len(messages) or phases[at + 1] != phases[at]:
                done[chunk, phases[at]] = True
                for each in [each for each in held if each[0] == chunk + active and phases[each[1]] == phases[at]]:
                    held.remove(each)
                    begin(now, *each)
            if at + 1 < len(messages):
                begin(now, chunk, at + 1)
        serve(now, dimension)
    return ended


@pytest.mark.parametrize("active", [0, 1, 2])
@pytest.mark.parametrize("chunks", [1, 4, 12])
@pytest.mark.parametrize("inner", ["ring", "direct"])
def test_two_dimensions_take_what_the_oracle_says(inner: str, chunks: int, active: int) -> None:
    twin = Twin(
        top.product([top.Dimension("mesh", A, LinkClass("a", B, L)), top.Dimension("ring", C, LinkClass("b", SLOW, L))])
    )
    for nbytes in (1e6, 3e8):
        made = twin.collective("all_reduce", nbytes, algorithm=f"{inner} x ring", chunks=chunks, active=active)
        part = nbytes / made.chunks
        times = A - 1 if inner == "ring" else 1
        across = [(1, part / A / C)] * (2 * (C - 1))
        messages = [(0, part / A)] * times + across + [(0, part / A)] * times
        assert made.chunks == min(chunks, int(nbytes // 65536))
        assert made.seconds == pytest.approx(oracle(messages, made.chunks, (B, SLOW), active), rel=0.01)


def test_an_algorithm_is_named_for_each_dimension() -> None:
    twin = Twin(top.torus([4, 4], LinkClass("a", B, L)))
    plain = twin.collective("all_reduce", 1e8, algorithm="hierarchical").seconds
    assert twin.collective("all_reduce", 1e8, algorithm="ring x ring").seconds == plain
    with pytest.raises(BadInput, match="fill 2 dimensions"):
        twin.collective("all_reduce", 1e8, algorithm="ring x ring x ring")
    with pytest.raises(BadInput, match="at least two dimensions"):
        twin.collective("all_reduce", 1e8, algorithm="ring x ring", ranks=[0, 1, 2, 7])
    with pytest.raises(BadInput, match="no algorithm 'rong'"):
        twin.collective("all_reduce", 1e8, algorithm="ring x rong")


def test_dimensions_that_rotate_are_all_busy_at_once() -> None:
    twin = Twin(top.torus([4, 4], LinkClass("a", B, L)))
    made = twin.collective("all_reduce", 1e9, algorithm="rotating rings x rings", chunks=64)
    assert made.seconds == pytest.approx(2 * 15 / 16 * 1e9 / (4 * B), rel=0.05)  # four links from each rank


def test_circuits_are_turned_for_every_peer() -> None:
    link = LinkClass("a", B, L)
    light = SwitchClass("light", 8, reconfiguration_s=1e-3)
    twins = [Twin(top.single_switch(8, link, kind)) for kind in (SwitchClass("packets", 8), light)]
    seconds = {
        kind: [twin.collective(kind, 1e8, algorithm=algorithm).seconds for twin in twins]
        for kind, algorithm in (("all_to_all", "direct"), ("all_reduce", "ring"))
    }
    assert seconds["all_to_all"][1] == pytest.approx(seconds["all_to_all"][0] + 7e-3 + 6 * 2 * L, rel=1e-6)
    assert seconds["all_reduce"][1] == pytest.approx(seconds["all_reduce"][0])  # everybody keeps its one peer
    with pytest.raises(BadInput, match="switches circuits"):
        top.leaf_spine(4, 2, 2, link, link, light)
