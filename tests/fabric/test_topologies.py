"""Topologies: the ways that arithmetic finds are ways through a real graph of switches, and errors say what is wrong.

The graph is made again from the ways alone: the resource after another leaves the node that the other enters. If any
way were wrong, two endpoints would fall together, or there would be another number of switches.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from openshelf.errors import BadInput, UnknownName
from openshelf.fabric import LinkClass, Network, Semantics, SwitchClass
from openshelf.fabric import topologies as top

A = LinkClass("a", 100e9, 1e-7)
B = LinkClass("b", 50e9, 2e-7)
C = LinkClass("c", 25e9, 1e-6)
X = SwitchClass("x", 72, 3e-7)
S = SwitchClass("s", 8, 5e-7)
FOUR = SwitchClass("four", 4, 5e-7)

NETWORKS = {
    "ring": lambda: top.ring(9, A),
    "ring of two": lambda: top.ring(2, A),
    "torus": lambda: top.torus([4, 3, 2], A),
    "mesh": lambda: top.full_mesh(7, A),
    "nd mesh": lambda: top.nd_full_mesh([4, 3, 3], [A, B, C]),
    "switch": lambda: top.single_switch(8, A, S),
    "product": lambda: top.product(
        [top.Dimension("ring", 4, A), top.Dimension("mesh", 3, B), top.Dimension("switch", 2, C, S)]
    ),
    "leaf spine": lambda: top.leaf_spine(4, 6, 2, A, B, S, uplinks_per_spine=1),
    "one level": lambda: top.fat_tree(8, A, S, 1),
    "two levels": lambda: top.fat_tree(32, A, S, 2),
    "two levels, part": lambda: top.fat_tree(13, A, S, 2),
    "two levels, 3:1": lambda: top.fat_tree(36, A, S, 2, 3.0),
    "three levels": lambda: top.fat_tree(16, A, FOUR, 3),
    "three levels, part": lambda: top.fat_tree(40, A, S, 3),
    "three levels, 3:1": lambda: top.fat_tree(24, A, FOUR, 3, 3.0),
    "rail-optimised": lambda: top.rail_optimised(8, 4, 4, 4, A, X, B, B, X),
    "rail-only": lambda: top.rail_only(6, 4, A, X, B, S),
    "rail-only, two levels": lambda: top.rail_only(12, 2, A, X, B, S),
    "dragonfly": lambda: top.dragonfly(5, 4, 2, 1, A, B, C, S),
    "dragonfly, parallel": lambda: top.dragonfly(3, 4, 2, 1, A, B, C, S),
    "ScalePool Clos": lambda: top.scalepool(3, 6, 8, A, X, B, S, spines=2),
    "ScalePool torus": lambda: top.scalepool(6, 4, 6, A, X, B, S, shape=(2, 2, 2)),
    "sites": lambda: top.sites(top.fat_tree(16, A, S, 2), 3, 2, C),
    "graph": lambda: top.graph(
        ["p", "q", "r"], {"u": S, "v": S}, [top.Edge("p", "u", A), top.Edge("q", "u", A), top.Edge("u", "v", B, 2),
                                            top.Edge("v", "r", A)]
    ),
}  # fmt: skip

EVERY_TURN = {"switch", "leaf spine", "one level", "three levels", "rail-optimised", "rail-only", "dragonfly"}
"""Where ways go from every port of a switch to every other, so that it is seen as one; elsewhere it may seem many."""


class Nodes:
    """Ends of resources, and which of them are the same node (union-find)."""

    def __init__(self) -> None:
        self.parent: dict[object, object] = {}

    def find(self, end: object) -> object:
        self.parent.setdefault(end, end)
        while self.parent[end] != end:
            self.parent[end] = end = self.parent[self.parent[end]]
        return end

    def same(self, a: object, b: object) -> None:
        self.parent[self.find(a)] = self.find(b)


def rebuilt(network: Network, salts: range) -> tuple[Nodes, set[int]]:
    pairs = np.array(list(itertools.product(range(network.endpoints), repeat=2)))
    nodes, used = Nodes(), set()
    for salt in salts:
        indptr, indices = network.paths(pairs[:, 0], pairs[:, 1], salt)
        for i, (src, dst) in enumerate(pairs.tolist()):
            path = indices[indptr[i] : indptr[i + 1]].tolist()
            assert (src == dst) == (not path)
            assert len(set(path)) == len(path)
            used.update(path)
            ends: list[object] = [("endpoint", src)]
            for resource in path:
                nodes.same(ends[-1], ("tail", resource))
                ends.append(("head", resource))
            nodes.same(ends[-1], ("endpoint", dst))
    return nodes, used


@pytest.mark.parametrize("which", NETWORKS)
def test_ways_are_those_of_one_graph(which: str) -> None:
    network = NETWORKS[which]()
    nodes, used = rebuilt(network, range(8))
    places = {nodes.find(("endpoint", i)) for i in range(network.endpoints)}
    assert len(places) == network.endpoints
    assert all(nodes.find(("head", r)) != nodes.find(("tail", r)) for r in used)
    switches = {nodes.find((end, r)) for r in used for end in ("head", "tail")} - places
    ports = Counter(nodes.find(("tail", r)) for r in used)
    assert all(ports[each] <= max(kind.ports for kind in network.switches) for each in switches)
    if which in EVERY_TURN:
        assert len(switches) == sum(network.switches.values())
    elif "part" not in which:  # there some switches are never used
        assert len(switches) >= sum(network.switches.values())


@pytest.mark.parametrize("which", NETWORKS)
def test_a_path_alone_is_the_one_of_many(which: str) -> None:
    network = NETWORKS[which]()
    indptr, indices = network.paths([0, 0, 1], [1, 1, 0], 5)
    assert indices[indptr[0] : indptr[1]].tolist() == network.path(0, 1, 5).tolist()
    assert indices[indptr[1] : indptr[2]].tolist() == network.path(0, 1, 5).tolist()
    assert len(network.role) == len(network.latency_s) == network.resources
    assert (np.diff(network.paths([0], [network.endpoints - 1])[0]) > 0).all()


def test_a_fat_tree_has_the_switches_of_the_book() -> None:
    made = top.fat_tree(128, A, S, 3)  # k = 8: k^3 / 4 hosts, 5 k^2 / 4 switches
    assert made.switches == {S: 80}
    assert made.cables == {"host-leaf": 128, "leaf-agg": 128, "agg-core": 128}
    far = made.path(0, 127)
    assert [made.resource_role(r) for r in far] == [
        "host-leaf", "leaf-agg", "agg-core", "agg-core", "leaf-agg", "host-leaf",
    ]  # fmt: skip
    assert made.latency_s[far].sum() == pytest.approx(6 * A.latency_s + 5 * S.latency_s)


def test_oversubscription_leaves_fewer_links_above() -> None:
    made = top.fat_tree(36, A, S, 2, 3.0)
    assert made.cables == {"host-leaf": 36, "leaf-spine": 12}


def test_equal_ways_are_all_used() -> None:
    made = top.fat_tree(128, A, S, 3)
    seen = {tuple(made.path(0, 127, salt)) for salt in range(400)}
    assert len(seen) == 16


def test_memory_is_read_first_and_written_last() -> None:
    made = top.with_memory(top.scalepool(3, 6, 8, A, X, B, S, spines=2), 300e9, 200e9, 1e-7, "memories")
    path = made.path(made.ranks, 0)
    assert made.resource_role(path[0]) == "memory.read"
    assert made.capacity_bytes_per_s[path[0]] == 300e9
    assert made.resource_role(made.path(0, made.ranks + 1)[-1]) == "memory.write"
    assert made.name_of(made.ranks + 1) == "memory1"
    assert "memory.read" not in {made.resource_role(r) for r in made.path(0, 1)}


def test_rail_only_changes_rails_inside_the_node() -> None:
    made = top.rail_only(6, 4, A, X, B, S)
    assert [made.resource_role(r) for r in made.path(0, 4 * 5)] == ["host-leaf", "host-leaf"]
    assert [made.resource_role(r) for r in made.path(0, 4 * 5 + 1)] == ["xlink", "xlink", "host-leaf", "host-leaf"]


def test_parts_that_are_not_joined_are_named() -> None:
    with pytest.raises(BadInput, match=r"2 parts, \(p, u\) \(q, r\); add links"):
        top.graph(["p", "q", "r"], {"u": S}, [top.Edge("p", "u", A), top.Edge("q", "r", A)])
    with pytest.raises(UnknownName, match="did you mean 'host1'"):
        top.graph(["host1"], {"u": S}, [top.Edge("hots1", "u", A)])
    with pytest.raises(BadInput, match="given twice: p"):
        top.graph(["p", "p"], {}, [])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(BadInput, match="8 ports and needs 9"):
        top.fat_tree(9, A, S, 1)
    with pytest.raises(BadInput, match="take 3 levels"):
        top.fat_tree(33, A, S, 2)
    with pytest.raises(BadInput, match="expected above 0"):
        LinkClass("bad", -1.0)
    with pytest.raises(BadInput, match="expected 0 or more"):
        SwitchClass("bad", 4, -1e-9)
    with pytest.raises(BadInput, match="endpoint 9 is not in"):
        top.ring(9, A).path(0, 9)
    with pytest.raises(BadInput, match="have 4"):
        top.dragonfly(6, 4, 2, 1, A, B, C, S)


def test_semantics_count_messages_and_bytes() -> None:
    made = Semantics("m", 1e-6, 2e-7, 4096, 2.0, 10e9, 5e9, 0.98)
    assert made.before_s(10_000) == pytest.approx(1e-6 + 3 * 2e-7 + 2 * 10_000 / 10e9)
    assert made.wire_bytes(980) == pytest.approx(1000)
    with pytest.raises(BadInput, match="efficiency"):
        Semantics("m", efficiency=1.2)
