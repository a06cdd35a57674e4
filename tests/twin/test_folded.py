"""Nodes with different numbers of ranks: who gets what, and how it compares with what the busiest rail has to carry."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openshelf.errors import BadInput
from openshelf.fabric import Ids, LinkClass, SwitchClass
from openshelf.fabric import topologies as top
from openshelf.twin import Twin
from openshelf.twin.folded import folding
from openshelf.twin.plans import Ask, Plans

FAST, LINK = LinkClass("x", 400e9, 2e-7), LinkClass("link", 50e9, 5e-7)
RAILS = top.rail_optimised(4, 4, 4, 4, FAST, SwitchClass("node", 4, 1e-7), LINK, LINK, SwitchClass("leaf", 64, 3e-7))
S = 1e9


def uneven(counts: list[int]) -> Ids:
    return np.concatenate([4 * node + np.arange(count) for node, count in enumerate(counts)])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4).filter(lambda counts: len(set(counts)) > 1),
    st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "broadcast"]),
    st.data(),
)
def test_every_rank_gets_what_it_needs(counts: list[int], kind: str, data: st.DataObject) -> None:
    ranks = data.draw(st.permutations(uneven(counts).tolist()))
    plans = Plans(RAILS, Ask(kind, S, np.array(ranks)))
    names = [name for name in plans.candidates() if name.startswith("folded")]
    plan = plans.plan(data.draw(st.sampled_from(names)))
    assert sorted(plan.ranks.tolist()) == sorted(ranks)
    if kind == "broadcast":
        assert plan.ranks[0] == ranks[0]  # the root
    got, sent = np.zeros(len(ranks)), np.zeros(len(ranks))
    for step in plan.variants[0]:
        assert (step.src != step.dst).all()
        np.add.at(got, step.dst, step.nbytes * step.times)
        np.add.at(sent, step.src, step.nbytes * step.times)
    whole, part = S * (1 - 1e-9), S / len(ranks) * (1 - 1e-9)
    if kind == "broadcast":
        assert (got[1:] >= whole).all()
    if kind == "all_gather":  # the core gathers what comes of equal parts, which the first of it may have more of
        assert (got >= whole - S * max(counts) / plan_core(plans)).all()
        assert (sent >= part).all()
    if kind in ("all_reduce", "reduce_scatter"):
        assert (sent >= part * (1 if kind == "reduce_scatter" else 2)).all()
        assert (got >= part).all()


def plan_core(plans: Plans) -> int:
    assert plans.fold
    return plans.fold.core


def test_a_core_is_chosen_by_the_busiest_rail() -> None:
    fold = folding(4, uneven([4, 4, 2]))
    assert fold
    assert (fold.sizes, [each.tolist() for each in fold.small]) == ((4, 2), [[8, 9]])
    fold = folding(4, uneven([4, 3, 3, 3]))
    assert fold
    assert (fold.sizes, fold.small, len(fold.more)) == ((3, 4), (), 1)
    assert folding(4, uneven([4, 4])) is None
    root = folding(4, np.array([8, 9, *range(8)]), True)
    assert root
    assert root.ranks[0] == 8


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
@pytest.mark.parametrize("counts", [[4, 4, 3], [4, 1], [4, 4, 4, 2], [3, 2, 2]])
def test_uneven_nodes_take_little_more_than_their_rails_need(kind: str, counts: list[int]) -> None:
    twin = Twin(RAILS)
    made = twin.collective(kind, S, ranks=uneven(counts)).seconds
    whole = twin.collective(kind, S, ranks=np.arange(4 * len(counts))).seconds
    needs = S / 50e9 / min(counts)  # all that a node with so many rails needs comes over them
    assert made <= 1.45 * max(needs, whole)


def test_a_folded_collective_needs_uneven_nodes() -> None:
    twin = Twin(RAILS)
    with pytest.raises(BadInput, match="fill the nodes of a network of at least two dimensions unevenly"):
        twin.collective("all_reduce", S, algorithm="folded direct x ring")
    with pytest.raises(BadInput, match="there is no all_to_all by 'folded direct x ring'"):
        twin.collective("all_to_all", S, algorithm="folded direct x ring", ranks=uneven([4, 3]))
    with pytest.raises(BadInput, match="switches do not reduce for a part"):
        twin.collective("all_reduce", S, algorithm="folded in_switch x ring", ranks=uneven([4, 4, 3]))
