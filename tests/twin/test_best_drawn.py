"""`best` on networks drawn at random, among all ranks, whole nodes and uneven ones: against every algorithm by hand,
and against itself on better links."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from openshelf.fabric import LinkClass, Semantics
from openshelf.fabric import topologies as top
from openshelf.twin import KINDS, Twin
from openshelf.twin.plans import Ask, Plans
from tests.twin.drawn import SWITCH, Drawn, networks

COSTS = Semantics("costs", 1e-6, efficiency=0.95)
COLLECTIVES = st.sampled_from([kind for kind in KINDS if kind != "send_recv"])
ANOMALY = 5e-3  # chunks that come earlier can make the last one later (docs/design/twin.md)
SIZES = st.sampled_from([1e3, 3e4, 1e6, 5e7, 2e9])


@settings(max_examples=25, deadline=None)
@given(networks(), COLLECTIVES, SIZES, st.sampled_from([0, 1, 2, 8, 16, 64]))
def test_the_best_is_never_slower_than_what_can_be_asked_for(net: Drawn, kind: str, nbytes: float, chunks: int) -> None:
    network = net.make(1.0, 1.0)
    twin = Twin(network, COSTS)
    best = twin.collective(kind, nbytes, ranks=net.ranks)
    for algorithm in Plans(network, Ask(kind, nbytes, net.ranks)).candidates():
        made = twin.collective(kind, nbytes, algorithm=algorithm, chunks=chunks, ranks=net.ranks)
        assert best.seconds <= made.seconds * (1 + 1e-9), algorithm


@settings(max_examples=40, deadline=None)
@given(networks(), COLLECTIVES, SIZES, st.floats(1.0, 4.0), st.floats(0.25, 1.0))
def test_the_best_is_never_slower_with_more_bandwidth_or_less_latency(
    net: Drawn, kind: str, nbytes: float, wide: float, late: float
) -> None:
    made = [
        Twin(net.make(*figures), COSTS).collective(kind, nbytes, ranks=net.ranks)
        for figures in ((1.0, 1.0), (wide, late))
    ]
    assert made[1].seconds <= made[0].seconds * (1 + ANOMALY)


def test_a_gain_of_less_than_a_thousandth_counts_among_few_ranks() -> None:
    ranks = np.array([0, 1, 2, 6, 7, 8])
    fast, link = LinkClass("fast", 50e9, 2e-7), LinkClass("link", 100e9, 1e-7)
    twin = Twin(top.leaf_spine(3, 3, 2, fast, link, SWITCH), COSTS)
    best = twin.collective("all_gather", 2e9, ranks=ranks)
    assert best.seconds <= twin.collective("all_gather", 2e9, algorithm="direct", ranks=ranks).seconds
