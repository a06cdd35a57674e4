"""Networks drawn at random, each also with other figures of its links; and ranks that fill them wholly or unevenly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from openshelf.fabric import Ids, LinkClass, Network, SwitchClass
from openshelf.fabric import topologies as top

SWITCH = SwitchClass("switch", 64, 3e-7)


@dataclass(frozen=True)
class Drawn:
    """`make` gives the network with so many times the bandwidth, and the latency, of its outer links."""

    name: str
    make: Callable[[float, float], Network]
    ranks: Ids

    def __repr__(self) -> str:
        return f"{self.name} among {self.ranks.tolist()}"


@st.composite
def networks(draw: st.DrawFn) -> Drawn:
    kind = draw(st.sampled_from(["rails", "rails alone", "leaf-spine", "torus", "mesh", "dragonfly", "switch"]))
    node, nodes = draw(st.integers(2, 4)), draw(st.integers(2, 4))
    ratio, late = draw(st.sampled_from([1.0, 2.5, 9.0])), draw(st.sampled_from([1e-7, 5e-7, 5e-6]))
    reduces = draw(st.booleans())
    ups, joined = draw(st.integers(1, 3)), draw(st.booleans())
    inside = SwitchClass("node", 8, 1e-7, reduces=reduces)
    fast = LinkClass("fast", 50e9 * ratio, 2e-7)

    def make(wide: float, slow: float) -> Network:
        link = LinkClass("link", 50e9 * wide, late * slow)
        if kind == "rails":
            unit = nodes if joined else 1
            return top.rail_optimised(nodes, node, unit, ups, fast, inside, link, link, SWITCH)
        if kind == "rails alone":
            return top.rail_only(nodes, node, fast, inside, link, SWITCH)
        if kind == "leaf-spine":
            return top.leaf_spine(node, nodes, ups, fast, link, SWITCH)
        if kind == "torus":
            return top.torus([node, nodes], link)
        if kind == "mesh":
            return top.nd_full_mesh([node, nodes], [fast, link])
        if kind == "dragonfly":
            return top.dragonfly(nodes, 2, 2, 2, fast, link, link, SWITCH)
        return top.single_switch(node * nodes, link, SwitchClass("one", 64, 3e-7, reduces=reduces))

    count = make(1.0, 1.0).ranks
    per_node = make(1.0, 1.0).dimensions[0] if make(1.0, 1.0).dimensions else count
    return Drawn(f"{kind} {node}x{nodes} {ratio} {late} {reduces} {ups} {joined}", make, draw(some(count, per_node)))


@st.composite
def some(draw: st.DrawFn, count: int, per_node: int) -> Ids:
    """All ranks, those of some whole nodes, or any."""
    how = draw(st.sampled_from(["all", "nodes", "any"]))
    nodes = count // per_node
    if how == "nodes" and nodes > 1:
        chosen = draw(st.lists(st.integers(0, nodes - 1), min_size=1, max_size=nodes, unique=True))
        ranks = np.concatenate([np.arange(per_node) + per_node * each for each in chosen])
        if len(ranks) > 1:
            return ranks.astype(np.int64)
    if how == "any":
        return np.array(draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=count, unique=True)), np.int64)
    return np.arange(count, dtype=np.int64)
