"""`best` against everything that can be asked for by hand, and against itself on better networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openshelf.errors import BadInput
from openshelf.fabric import Fabric, LinkClass, Network, Semantics, SwitchClass
from openshelf.fabric import topologies as top
from openshelf.twin import Twin
from openshelf.twin.steps import ALIKE, GRAPH

Make = Callable[[float, float], Network]
"""A network with so many times the bandwidth and the latency of its slower links."""


def link(wide: float, late: float) -> LinkClass:
    return LinkClass("link", 50e9 * wide, 5e-7 * late)


FAST = LinkClass("fast", 400e9, 2e-7)
SWITCH = SwitchClass("switch", 64, 3e-7)
REDUCES = SwitchClass("reduces", 16, 1e-7, reduces=True)
FABRICS: dict[str, Make] = {
    "ring": lambda wide, late: top.ring(6, link(wide, late)),
    "torus": lambda wide, late: top.torus([4, 3], link(wide, late)),
    "mesh": lambda wide, late: top.nd_full_mesh([4, 3], [FAST, link(wide, late)]),
    "switch that reduces": lambda wide, late: top.single_switch(8, link(wide, late), REDUCES),
    "rails": lambda wide, late: top.rail_optimised(3, 2, 3, 2, FAST, REDUCES, link(wide, late), FAST, SWITCH),
    "oversubscribed": lambda wide, late: top.leaf_spine(4, 3, 1, FAST, link(wide, late), SWITCH),
}
SIZES = (1e3, 3e4, 1e6, 5e7, 2e9)
KINDS = ("all_reduce", "all_gather")
COSTS = Semantics("costs", 1e-6, efficiency=0.95)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FABRICS)
def test_the_best_is_never_slower_than_what_can_be_asked_for(name: str, kind: str) -> None:
    network = FABRICS[name](1.0, 1.0)
    for nbytes in SIZES:
        twin = Twin(network, COSTS)
        best = twin.collective(kind, nbytes)
        for algorithm in twin.applicable(kind, network.ranks):
            for chunks in (0, 8) if nbytes == 5e7 else (0,):
                made = twin.collective(kind, nbytes, algorithm=algorithm, chunks=chunks)
                assert best.seconds <= made.seconds * (1 + 1e-9), (nbytes, algorithm, chunks)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(list(FABRICS)),
    st.sampled_from(KINDS),
    st.floats(1e2, 1e9),
    st.floats(1.0, 4.0),
    st.floats(0.25, 1.0),
)
def test_the_best_is_never_slower_with_more_bandwidth_or_less_latency(
    name: str, kind: str, nbytes: float, wide: float, late: float
) -> None:
    seconds = [
        Twin(FABRICS[name](*figures), COSTS).collective(kind, nbytes).seconds for figures in ((1.0, 1.0), (wide, late))
    ]
    assert seconds[1] <= seconds[0] * (1 + 1e-6)


def test_no_cliff_between_numbers_of_nodes() -> None:
    twin = Twin(Fabric.load("dgx-h100-ib"))
    made = [twin.collective("all_reduce", 1 << 30, ranks=range(ranks)) for ranks in (24, 32, 256)]
    for fewer, more in pairwise(made):
        assert fewer.seconds <= more.seconds * 1.01
        assert more.seconds < 1.4 * fewer.seconds
    assert made[-1].bus_bytes_per_s > 355e9  # eight rails of 50 GB/s, nine tenths of it payload


def test_part_of_a_node_more_costs_no_more_than_its_rails_do() -> None:
    """A node with few ranks has few rails: all bytes leave it once, and come back. One ring takes up to seven times."""
    known, size = Fabric.load("dgx-h100-ib"), 1 << 30
    bare = replace(known, library=None)
    whole = Twin(bare).collective("all_reduce", size, ranks=range(24)).seconds
    for count in (9, 20, 23):
        rails = size / (0.9 * 50e9) / (count % 8)
        made = Twin(bare).collective("all_reduce", size, ranks=range(count)).seconds
        assert rails <= made < 1.3 * max(rails, whole), count
        assert (
            rails <= Twin(known).collective("all_reduce", size, ranks=range(count)).seconds < 1.45 * max(rails, 5.5e-3)
        )


def test_groups_of_uneven_nodes_are_equal_where_they_have_a_common_divisor() -> None:
    twin = Twin(Fabric.load("dgx-h100-ib"))
    uneven = [5, 1, 4, 0, 16, 17, 18, 19]  # half of a node, and half of another: the first rank is the root
    made = twin.collective("broadcast", 1 << 26, ranks=uneven, algorithm="direct x chain")
    assert made.ranks == 8
    with pytest.raises(BadInput, match="at least two dimensions"):
        twin.collective("all_reduce", 1e6, ranks=[0, 1, 2, 8], algorithm="direct x ring")


def test_whole_nodes_may_be_any() -> None:
    twin = Twin(Fabric.load("dgx-h100-ib"))
    near = twin.collective("all_reduce", 1 << 26, ranks=range(24)).seconds
    apart = [rank for node in (3, 17, 30) for rank in range(8 * node, 8 * node + 8)]
    assert twin.collective("all_reduce", 1 << 26, ranks=apart).seconds == pytest.approx(near, rel=1e-9)
    halves = [rank for node in range(6) for rank in range(8 * node, 8 * node + 4)]
    assert " x " in twin.collective("all_reduce", 1 << 26, ranks=halves).algorithm


def test_a_broadcast_is_pipelined_and_over_all_rails() -> None:
    twin = Twin(Fabric.load("dgx-h100-ib"))
    made = twin.collective("broadcast", 1 << 30, ranks=range(32))
    assert made.bytes_per_s > 200e9  # one rail carries 45
    chain = Twin(top.ring(16, link(1.0, 1.0))).collective("broadcast", 1e9, algorithm="chain", chunks=256)
    assert chain.seconds < 1.1 * 1e9 / 50e9


@pytest.mark.parametrize(
    "algorithm", ["ring", "direct x ring", "halving_doubling x doubling", "rotating rings x rings"]
)
def test_flows_that_are_alike_are_simulated_once_and_take_as_long(algorithm: str) -> None:
    network = top.product([top.Dimension("mesh", 4, FAST), top.Dimension("ring", 8, link(1.0, 1.0))])
    if algorithm == "ring":
        network = top.rail_only(8, 8, FAST, REDUCES, link(1.0, 1.0), SWITCH)
    for nbytes in (1e6, 1e9):
        made = [
            Twin(network, COSTS, reduce_bytes_per_s=1e12).collective(
                "all_reduce", nbytes, algorithm=algorithm, chunks=c, how=how
            )
            for c in (0 if algorithm == "ring" else 12,)
            for how in ("auto", "graph")
        ]
        assert [each.how for each in made] in ([ALIKE, GRAPH], [GRAPH, GRAPH])
        assert made[0].seconds == pytest.approx(made[1].seconds, rel=1e-9)
    assert made[0].how == ALIKE


def test_where_every_rank_sees_the_same_the_flows_of_one_stand_for_all() -> None:
    switch = top.Dimension("switch", 3, FAST, SwitchClass("small", 4, 2e-7))
    for kind, network in (
        ("all_reduce", top.nd_full_mesh([12, 13], [FAST, link(1.0, 1.0)])),
        (
            "all_to_all",
            top.product([switch, top.Dimension("ring", 4, link(1.0, 2.0)), top.Dimension("mesh", 13, FAST)]),
        ),
        ("all_to_all", top.torus([2, 9, 8], FAST)),
    ):
        twin = Twin(network, COSTS)
        for nbytes in (1e4, 1e8):
            made, every = (twin.collective(kind, nbytes, algorithm="direct", how=how) for how in ("auto", "graph"))
            assert (made.how, every.how) == (ALIKE, GRAPH)
            assert made.seconds == pytest.approx(every.seconds, rel=1e-9)
            for one, other in zip(made.load, every.load, strict=True):
                assert (one.mean, one.most) == pytest.approx((other.mean, other.most), rel=1e-9)


def test_a_direct_exchange_is_tried_in_a_thousand_ranks_that_are_all_joined() -> None:
    twin = Twin(Fabric.load("ub-mesh-pod"))
    best = twin.collective("all_reduce", 4096)
    assert best.seconds <= twin.collective("all_reduce", 4096, algorithm="direct").seconds
    assert best.seconds < twin.collective("all_reduce", 4096, algorithm="direct x direct x direct x one_shot").seconds
