"""Collectives against arithmetic, and steps that are solved once against the simulation of every flow."""

from __future__ import annotations

import math

import numpy as np
import pytest

from openshelf.errors import BadInput
from openshelf.fabric import LinkClass, Network, Semantics, SwitchClass
from openshelf.fabric import topologies as top
from openshelf.twin import Change, Twin
from openshelf.twin.algorithms import ALGORITHMS, steps_of
from openshelf.twin.steps import DRIFTING, GRAPH, LOCK_STEP, WALK

B, L = 50e9, 5e-7
LINK = LinkClass("link", B, L)
SWITCH = SwitchClass("switch", 64)
SLOW = SwitchClass("slow", 8, 3e-7)
S = 64e6


def test_a_ring_all_reduce_takes_what_arithmetic_says() -> None:
    made = Twin(top.ring(8, LINK)).collective("all_reduce", S, algorithm="ring")
    assert made.seconds == pytest.approx(14 * (S / 8 / B + L), rel=1e-9)
    assert made.how == LOCK_STEP
    assert made.bus_bytes_per_s == pytest.approx(B, rel=0.01)
    (load,) = made.load
    assert load.nbytes == pytest.approx(8 * 14 * S / 8)


def test_all_to_all_on_a_mesh_is_one_message_on_every_link() -> None:
    made = Twin(top.full_mesh(16, LINK)).collective("all_to_all", S)
    assert made.seconds == pytest.approx(S / 16 / B + L, rel=1e-9)


def test_incast_shares_the_last_link() -> None:
    twin = Twin(top.single_switch(9, LINK, SWITCH))
    tasks = twin.tasks()
    for src in range(1, 9):
        tasks.flow(src, 0, S)
    run = twin.run(tasks)
    assert run.seconds == pytest.approx(8 * S / B + 2 * L, rel=1e-9)
    assert {each.role: each.most for each in run.load()} == {"switch": pytest.approx(1.0, rel=0.001)}


def test_a_broadcast_tree_doubles_in_every_step() -> None:
    made = Twin(top.single_switch(16, LINK, SWITCH)).collective("broadcast", S, algorithm="tree")
    assert made.seconds == pytest.approx(4 * (S / B + 2 * L), rel=1e-9)


def test_a_tree_all_reduce_hides_all_but_the_ends_of_its_chunks() -> None:
    twin = Twin(top.single_switch(32, LINK, SWITCH))
    whole, parts = (twin.collective("all_reduce", S, algorithm="tree", chunks=chunks).seconds for chunks in (1, 64))
    assert parts < 0.5 * whole
    assert parts > 2 * S / B * 0.99  # every byte goes up and down once over the busiest port


def test_switches_that_reduce_send_every_byte_once() -> None:
    can = SwitchClass("switch", 64, reduces=True)
    made = Twin(top.single_switch(32, LINK, can)).collective("all_reduce", S, algorithm="in_switch")
    assert made.seconds == pytest.approx(S / B + 2 * L, rel=1e-9)
    for network in (top.ring(8, LINK), top.single_switch(32, LINK, SWITCH)):
        with pytest.raises(BadInput, match="do not reduce"):
            Twin(network).collective("all_reduce", S, algorithm="in_switch")


def test_dimensions_carry_less_and_less() -> None:
    twin = Twin(top.product([top.Dimension("mesh", 4, LINK), top.Dimension("ring", 4, LINK)]))
    made = twin.collective("all_reduce", S, algorithm="hierarchical")
    inner, outer = 6 * (S / 4 / B + L), 6 * (S / 16 / B + L)
    assert made.seconds == pytest.approx(inner + outer, rel=1e-9)


def test_chunks_are_in_several_dimensions_at_the_same_time() -> None:
    twin = Twin(top.product([top.Dimension("mesh", 4, LINK), top.Dimension("ring", 4, LinkClass("slow", B / 4, L))]))
    one, many = (
        twin.collective("all_reduce", S, algorithm="hierarchical", chunks=chunks).seconds for chunks in (1, 16)
    )
    inner, outer = 6 * S / 4 / B, 6 * S / 16 / (B / 4)  # as long as each other
    assert one == pytest.approx(inner + outer, rel=0.01)
    assert inner < many < 0.75 * one


def test_collectives_in_a_graph_share_the_links() -> None:
    twin = Twin(top.ring(8, LINK))
    alone = twin.collective("all_reduce", S, algorithm="ring").seconds
    tasks = twin.tasks()
    first = twin.add(tasks, "all_reduce", S)
    twin.add(tasks, "all_reduce", S)
    last = twin.add(tasks, "all_reduce", S, after=[first], name="third")
    run = twin.run(tasks)
    assert run.times.finish[first] == pytest.approx(2 * alone, rel=0.01)
    assert run.times.finish[last] == pytest.approx(3 * alone, rel=0.01)
    assert run.critical_path()[-1].name == "third"
    with pytest.raises(BadInput, match="no list of flows"):
        twin.add(tasks, "all_reduce", S, algorithm="best")


SETTINGS: dict[str, Network] = {
    "ring": top.ring(8, LINK),
    "switch": top.single_switch(8, LINK, SLOW),
    "mesh": top.full_mesh(8, LINK),
    "torus": top.torus([4, 4], LINK),
    "fat tree": top.fat_tree(16, LINK, SLOW, 2),
    "rail-only": top.rail_only(4, 4, LinkClass("x", 400e9, 1e-7), SWITCH, LINK, SLOW),
    "stored": top.single_switch(8, LINK, SLOW).storing(),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_solved_once_take_as_long_as_every_flow(name: str) -> None:
    seen = set()
    for kind, algorithm in ALGORITHMS:
        piped = ("all_reduce", "tree"), ("broadcast", "chain"), ("broadcast", "two_trees")
        if algorithm == "in_switch" or (kind, algorithm) in (*piped, ("send_recv", "direct")):
            continue
        for nbytes in (1e4, 1e8):
            twin = Twin(SETTINGS[name], Semantics("test", 1e-6, efficiency=0.9), reduce_bytes_per_s=1e12)
            fast = twin.collective(kind, nbytes, algorithm=algorithm)
            full = twin.collective(kind, nbytes, algorithm=algorithm, how="graph")
            assert full.how == GRAPH
            assert fast.seconds == pytest.approx(full.seconds, rel=1e-9), (kind, algorithm, fast.how)
            seen.add(fast.how)
    assert {"fat tree": WALK, "rail-only": GRAPH}.get(name, LOCK_STEP) in seen


def test_what_is_not_simulated_flow_by_flow_says_so() -> None:
    made = Twin(top.fat_tree(16, LINK, SLOW, 2)).collective("all_reduce", S, algorithm="halving_doubling", how="steps")
    assert made.how == DRIFTING
    assert made.approximate


@pytest.mark.parametrize("nbytes", [1e4, 1e9])
def test_what_is_approximate_is_near(nbytes: float) -> None:
    xlink, xswitch = LinkClass("x", 450e9, 2e-7), SwitchClass("x", 8, 1e-7)
    twin = Twin(top.rail_optimised(8, 4, 4, 4, xlink, xswitch, LINK, LINK, SWITCH))
    for algorithm in ("ring", "halving_doubling", "direct", "hierarchical"):
        near, full = (twin.collective("all_reduce", nbytes, algorithm=algorithm, how=how) for how in ("steps", "graph"))
        assert near.seconds == pytest.approx(full.seconds, rel=0.05), algorithm


def test_the_best_is_none_worse_than_any() -> None:
    twin = Twin(top.fat_tree(16, LINK, SLOW, 2))
    for nbytes in (1e3, 1e9):
        best = twin.collective("all_reduce", nbytes)
        for name in twin.applicable("all_reduce", 16):
            assert best.seconds <= twin.collective("all_reduce", nbytes, algorithm=name).seconds


@pytest.mark.parametrize(("kind", "algorithm"), ALGORITHMS)
def test_every_rank_gets_what_it_needs(kind: str, algorithm: str) -> None:
    """Bytes that arrive at each rank are at least what the collective is for."""
    if algorithm == "in_switch":
        pytest.skip("switches send it")
    ranks = 2 if kind == "send_recv" else 8
    got = np.zeros(ranks)
    for step in steps_of(kind, algorithm, ranks, S):
        np.add.at(got, step.dst, step.nbytes * step.times)
    part = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0, "send_recv": 1.0}.get(kind, (ranks - 1) / ranks)
    receivers = got[1:] if kind in ("broadcast", "send_recv") else got
    tree = algorithm == "tree" and kind == "all_reduce"  # there leaves only send, and the root only adds up
    assert (receivers >= S * (0.5 if tree else part) * (1 - 1e-9)).all()


def test_a_failed_link_stops_flows_until_it_is_repaired() -> None:
    twin = Twin(top.ring(3, LinkClass("link", 10.0)))
    tasks = twin.tasks()
    tasks.flow(0, 1, 100)
    resource = int(twin.network.path(0, 1)[0])
    assert twin.run(tasks, [Change(8.0, resource, 25.0), Change(5.0, resource, 0.0)]).seconds == pytest.approx(10.0)
    with pytest.raises(BadInput, match="never ends"):
        twin.run(tasks, [Change(5.0, resource, 0.0)])


def test_a_send_is_latency_and_bytes() -> None:
    twin = Twin(top.single_switch(4, LINK, SLOW), Semantics("m", 1e-6, rate_cap_bytes_per_s=10e9, efficiency=0.5))
    assert twin.send(0, 1, S) == pytest.approx(1e-6 + 2 * L + 3e-7 + S / 0.5 / 10e9)


def test_costs_may_depend_on_the_way() -> None:
    network = top.rail_only(4, 4, LinkClass("x", 400e9, 1e-7), SWITCH, LINK, SLOW)
    asked = []

    def costs(nbytes: int, src: int, dst: int) -> Semantics:
        asked.append((src, dst))
        return Semantics("in", 1e-7) if src // 4 == dst // 4 else Semantics("out", 1e-5)

    twin = Twin(network, costs)
    assert twin.send(0, 1, 1e6) == pytest.approx(1e-7 + 2e-7 + 1e6 / 400e9)
    assert twin.send(0, 4, 1e6) == pytest.approx(1e-5 + 2 * L + 3e-7 + 1e6 / B)
    twin.collective("all_to_all", 1e6, algorithm="direct")
    assert len(asked) < 20


def test_what_cannot_be_is_refused() -> None:
    twin = Twin(top.ring(6, LINK))
    with pytest.raises(BadInput, match="did you mean 'all_reduce'"):
        twin.collective("allreduce", S)
    with pytest.raises(BadInput, match="power of two"):
        twin.collective("all_reduce", S, algorithm="halving_doubling")
    with pytest.raises(BadInput, match="more than 0"):
        twin.collective("all_reduce", math.nan)
    with pytest.raises(BadInput, match="different ranks"):
        twin.collective("all_reduce", S, ranks=[0, 0])


def test_a_rank_waits_for_all_that_came_and_not_only_for_the_last() -> None:
    """Of five ranks in two nodes the fifth's bytes come late, and its partner has them in all that it sends later."""
    inside, leaf = SwitchClass("node", 4), SwitchClass("leaf", 8)
    twin = Twin(top.rail_optimised(2, 4, 2, 1, LinkClass("x", 10 * B, 1e-7), inside, LINK, LINK, leaf))
    far = twin.send(4, 0, S)
    for how, near in (("auto", 1e-9), ("graph", 1e-9), ("steps", 0.12)):
        made = twin.collective("all_reduce", S, algorithm="doubling", ranks=range(5), how=how)
        assert made.seconds == pytest.approx(2 * far, rel=near), how
