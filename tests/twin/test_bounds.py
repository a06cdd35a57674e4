"""What steps take at the least and at the most, against the simulation of every flow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openshelf.fabric import Ids, LinkClass, Network, Semantics, SwitchClass
from openshelf.fabric import topologies as top
from openshelf.twin import KINDS, Twin
from openshelf.twin.bounds import alone, least_s
from openshelf.twin.flows import Setting
from openshelf.twin.plans import Ask, Plans
from openshelf.twin.steps import ONE_STEP

FAST, SLOW = LinkClass("fast", 400e9, 2e-7), LinkClass("slow", 50e9, 5e-7)
SWITCH = SwitchClass("switch", 64, 3e-7)
NETWORKS: dict[str, Network] = {
    "ring": top.ring(6, SLOW),
    "mesh": top.nd_full_mesh([4, 3], [FAST, SLOW]),
    "rails": top.rail_optimised(3, 4, 2, 2, FAST, SwitchClass("node", 4, 1e-7, reduces=True), SLOW, FAST, SWITCH),
    "rails alone": top.rail_only(3, 4, FAST, SwitchClass("node", 4, 1e-7), SLOW, SWITCH),
    "oversubscribed": top.leaf_spine(4, 3, 2, FAST, SLOW, SWITCH),
    "fat tree": top.fat_tree(13, SLOW, SwitchClass("small", 4, 1e-7), 3),
}
COSTS = Semantics("costs", 1e-6, efficiency=0.9)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(list(NETWORKS)),
    st.sampled_from([kind for kind in KINDS if kind != "send_recv"]),
    st.floats(1e2, 1e9),
    st.sampled_from([1, 4, 32]),
    st.data(),
)
def test_nothing_takes_less_than_its_bound(
    name: str, kind: str, nbytes: float, chunks: int, data: st.DataObject
) -> None:
    network = NETWORKS[name]
    twin, plans = Twin(network, COSTS), Plans(network, Ask(kind, nbytes, data.draw(ranks_of(network))))
    algorithm = data.draw(st.sampled_from(plans.candidates()))
    plan = plans.plan(algorithm, chunks)
    setting = Setting(network, plan.ranks, COSTS, twin.reduce_bytes_per_s, 0)
    made = twin.collective(kind, nbytes, algorithm=algorithm, chunks=chunks, ranks=plans.ask.who, how="graph")
    least = max(least_s(setting, steps) for steps in plan.variants) * (1 if plan.piped else plan.chunks)
    assert least <= made.seconds * (1 + 1e-9), algorithm


def ranks_of(network: Network) -> st.SearchStrategy[Ids]:
    """Some ranks, two at the least, in any order."""
    every = st.permutations(range(network.ranks))
    return st.tuples(every, st.integers(2, network.ranks)).map(lambda drawn: np.array(drawn[0][: drawn[1]]))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("nbytes", [1e3, 1e6, 1e9])
def test_a_step_alone_is_between_its_bounds_and_often_they_are_one(name: str, nbytes: float) -> None:
    network = NETWORKS[name]
    twin, plans = Twin(network, COSTS), Plans(network, Ask("all_to_all", nbytes, np.arange(network.ranks)))
    plan = plans.plan("direct", 1)
    setting = Setting(network, plan.ranks, COSTS, twin.reduce_bytes_per_s, 0)
    least, most = alone(setting, plan.variants[0][0])
    full = twin.collective("all_to_all", nbytes, algorithm="direct", how="graph")
    assert least * (1 - 1e-9) <= full.seconds <= most * (1 + 1e-9)
    made = twin.collective("all_to_all", nbytes, algorithm="direct")
    assert made.seconds == pytest.approx(full.seconds, rel=1e-9)
    if most <= least * (1 + 1e-9):
        assert made.how == ONE_STEP
