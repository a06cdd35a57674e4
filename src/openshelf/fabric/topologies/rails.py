"""Nodes with a fast network inside and several rails outside: rail-optimised, rail-only, and racks as in ScalePool.

Endpoints are numbered node by node. Inside a node (or rack) an XLink switch joins them; between nodes there is another
network. Rail-optimised: endpoint r of every node of a unit hangs on leaf r of that unit, and spines join all leaves.
Rail-only (arXiv 2307.12169): no spines; the rails are separate networks, and bytes for another rail first cross the
XLink of their own node to the endpoint of that rail. ScalePool (arXiv 2510.14580): racks joined by CXL switches, with
memory-only nodes (tier 2) on the same fabric.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openshelf.errors import BadInput
from openshelf.fabric.topologies.clos import fat_tree, leaf_spine, rails_first
from openshelf.fabric.topologies.meshes import torus
from openshelf.fabric.topologies.parts import Piece, Table, join, one, piece, require, striped
from openshelf.fabric.wiring.network import Ids, LinkClass, Network, Paths, Router, SwitchClass


def rail_optimised(
    nodes: int,
    per_node: int,
    nodes_per_unit: int,
    spines: int,
    xlink: LinkClass,
    xswitch: SwitchClass,
    rail_link: LinkClass,
    up_link: LinkClass,
    switch: SwitchClass,
    uplinks_per_spine: int = 1,
    xplanes: int = 1,
) -> Network:
    """Units of nodes with one leaf switch for each rail, all leaves joined by spines."""
    require("nodes", nodes)
    require("per_node", per_node, 2)
    require("nodes_per_unit", nodes_per_unit)
    units = -(-nodes // nodes_per_unit)
    outer = leaf_spine(nodes_per_unit, units * per_node, spines, rail_link, up_link, switch, None, uplinks_per_spine)
    where = rails_first(nodes * per_node, per_node, nodes_per_unit)
    return _nodes(
        f"rail-optimised {nodes} x {per_node}", nodes, per_node, xlink, xswitch, outer, 1, where, xplanes=xplanes
    )


def rail_only(
    nodes: int,
    per_node: int,
    xlink: LinkClass,
    xswitch: SwitchClass,
    rail_link: LinkClass,
    switch: SwitchClass,
    levels: int = 2,
    oversubscription: float = 1.0,
    xplanes: int = 1,
) -> Network:
    """A separate network for each rail; bytes change rails inside their node.

    They do so by way of the accelerator on the other rail, which takes in a whole message before it sends it on.
    """
    require("nodes", nodes, 2)
    require("per_node", per_node, 2)
    rail = fat_tree(nodes, rail_link, switch, 1 if nodes <= switch.ports else levels, oversubscription)
    return _nodes(
        f"rail-only {nodes} x {per_node}", nodes, per_node, xlink, xswitch, rail, per_node, None, xplanes=xplanes
    )


def scalepool(
    racks: int,
    per_rack: int,
    memories: int,
    xlink: LinkClass,
    xswitch: SwitchClass,
    cxl_link: LinkClass,
    cxl_switch: SwitchClass,
    spines: int = 0,
    shape: Sequence[int] = (),
    memories_per_leaf: int = 0,
    up_link: LinkClass | None = None,
    uplinks_per_spine: int = 1,
    xplanes: int = 1,
) -> Network:
    """XLink racks joined by a CXL Clos (`spines`) or torus (`shape`), with memory nodes after the accelerators.

    Every rack is a CXL leaf switch; memory nodes have leaves of their own, `memories_per_leaf` to each (default: as
    many as a rack has accelerators).
    """
    require("racks", racks)
    require("per_rack", per_rack)
    require("memories", memories, 0)
    if bool(spines) == bool(shape):
        raise BadInput("racks are joined either by `spines` (a Clos) or in a torus of some `shape`: give one of them")
    if shape and uplinks_per_spine != 1:
        raise BadInput(f"uplinks_per_spine is {uplinks_per_spine!r}, and a torus of some `shape` has no spines")
    each = memories_per_leaf or per_rack
    if each > per_rack:
        raise BadInput(f"memories_per_leaf is {each}; expected at most the {per_rack} ports that a rack's leaf has")
    leaves = racks + -(-memories // each)
    link = up_link or cxl_link
    if spines:
        outer = leaf_spine(per_rack, leaves, spines, cxl_link, link, cxl_switch, None, uplinks_per_spine)
    else:
        if math.prod(shape) != leaves:
            raise BadInput(f"a torus of {tuple(shape)} has {math.prod(shape)} switches; there are {leaves} leaves")
        outer = _attached(torus(shape, link), per_rack, cxl_link, cxl_switch)
    ranks = racks * per_rack
    memory = np.arange(memories, dtype=np.int64)
    where = np.concatenate([np.arange(ranks), (racks + memory // each) * per_rack + memory % each])
    name = f"ScalePool {racks} x {per_rack} + {memories}"
    return _nodes(name, racks, per_rack, xlink, xswitch, outer, 1, where, memories, ("accelerator", "memory"), xplanes)


def _attached(inner: Network, each: int, link: LinkClass, switch: SwitchClass) -> Network:
    """A network whose endpoints become switches, with `each` endpoints on every one."""
    table = Table()
    total = inner.endpoints * each
    table.switch(switch, inner.endpoints)
    up = table.wires("host-leaf", total, link, enters=switch)
    down = table.wires("host-leaf", total, link, switch)
    offset = table.take(inner)
    router = _Attached(inner.router, each, up, down, offset)
    made = table.network(inner.name, total, router)
    made.latency_s[offset:] += switch.latency_s  # every hop between switches leaves one
    np.minimum(made.capacity_bytes_per_s[offset:], switch.port_bytes_per_s, out=made.capacity_bytes_per_s[offset:])
    return made


@dataclass(frozen=True)
class _Attached:
    inner: Router
    each: int
    up: int
    down: int
    offset: int

    def paths(self, src: Ids, dst: Ids, salt: int) -> Paths:
        moved = src != dst
        here, there = src // self.each, dst // self.each
        between = piece(self.inner.paths(here[moved], there[moved], salt), moved, self.offset)
        return join([one(self.up + src, moved), between, one(self.down + dst, moved)])


def _nodes(
    name: str,
    nodes: int,
    per_node: int,
    xlink: LinkClass,
    xswitch: SwitchClass,
    outer: Network,
    copies: int,
    where: Ids | None,
    memories: int = 0,
    words: tuple[str, str] = ("gpu", "memory"),
    xplanes: int = 1,
) -> Network:
    ranks = nodes * per_node
    if xswitch.ports < per_node:
        raise BadInput(f"switch {xswitch.name!r} has {xswitch.ports} ports and should join {per_node} in a node")
    table = Table()
    table.switch(xswitch, nodes)
    up = table.wires("xlink", ranks, xlink, enters=xswitch)
    down = table.wires("xlink", ranks, xlink, xswitch)
    inside = table.network(name, ranks, outer.router)  # for its counts: as many planes as an accelerator has ports
    table = Table()
    table.take(striped(inside, xplanes))
    offset = table.take(outer, copies)
    if where is not None:
        table.cables["host-leaf"] = ranks + memories  # a leaf may have room for more
    router = _Nodes(ranks, per_node, up, down, offset, outer.router, outer.resources if copies > 1 else 0, where)
    return table.network(
        name, ranks + memories, router, memories=memories, dimensions=(per_node, nodes),
        relay="xlink" if where is None else "",
        reducing=(xswitch.reduces, bool(outer.switches) and all(each.reduces for each in outer.switches)),
        name_of=lambda i: f"{words[0]}{i}" if i < ranks else f"{words[1]}{i - ranks}",
    )  # fmt: skip


@dataclass(frozen=True)
class _Nodes:
    """Inside a node by XLink; between nodes by the outer network at `where` an endpoint is, or by its rail's copy."""

    ranks: int
    per_node: int
    up: int
    down: int
    offset: int
    outer: Router
    each_rail: int
    where: Ids | None

    def paths(self, src: Ids, dst: Ids, salt: int) -> Paths:
        node, to_node = src // self.per_node, dst // self.per_node
        inside = (node == to_node) & (src != dst) & (src < self.ranks) & (dst < self.ranks)
        outside = (src != dst) & ~inside
        if self.where is not None:
            found = self.outer.paths(self.where[src[outside]], self.where[dst[outside]], salt)
            return join([*self._across(src, dst, inside), piece(found, outside, self.offset)])
        # To the endpoint of the target's rail in the own node, then along that rail.
        rail = dst % self.per_node
        over = node * self.per_node + rail
        found = self.outer.paths(node[outside], to_node[outside], salt)
        along = piece(found, outside, self.offset + rail[outside] * self.each_rail)
        return join([*self._across(src, over, src != over), along])

    def _across(self, src: Ids, dst: Ids, where: NDArray[np.bool_]) -> list[Piece]:
        return [one(self.up + src, where), one(self.down + dst, where)]
