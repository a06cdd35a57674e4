"""Folded Clos networks: leaf-spine, and fat trees of one to three levels, with oversubscription at the leaves.

Three levels: a pod is `leaves` switches joined by `aggs`, and the a-th agg of every pod is joined to the a-th group of
cores. Every switch has its uplinks spread evenly over the switches above, as parallel links where those are fewer. A
path takes uplink x of its leaf and uplink y of its agg, by hash, and comes down the mirror image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from openshelf.errors import BadInput
from openshelf.fabric.topologies.parts import Table, choose, join, numbered, one, require, striped
from openshelf.fabric.wiring.network import Ids, LinkClass, Network, Paths, SwitchClass


def leaf_spine(
    endpoints_per_leaf: int,
    leaves: int,
    spines: int,
    host_link: LinkClass,
    up_link: LinkClass,
    leaf: SwitchClass,
    spine: SwitchClass | None = None,
    uplinks_per_spine: int = 1,
    planes: int = 1,
) -> Network:
    """Leaves of so many endpoints, each joined to every spine; oversubscribed as the numbers make it."""
    for what, value in (("endpoints_per_leaf", endpoints_per_leaf), ("leaves", leaves), ("spines", spines)):
        require(what, value)
    require("uplinks_per_spine", uplinks_per_spine)
    spine = spine or leaf
    ups = spines * uplinks_per_spine
    _require_ports(leaf, endpoints_per_leaf + ups, "a leaf")
    _require_ports(spine, leaves * uplinks_per_spine, "a spine")
    shape = _Shape(endpoints_per_leaf, leaves, 1, ups, 0)
    name = f"leaf-spine of {endpoints_per_leaf * leaves}"
    made = _made(name, endpoints_per_leaf * leaves, shape, host_link, up_link, (leaf, leaves), (spine, spines), None)
    return striped(made, planes)


def fat_tree(
    endpoints: int,
    host_link: LinkClass,
    switch: SwitchClass,
    levels: int = 3,
    oversubscription: float = 1.0,
    up_link: LinkClass | None = None,
    planes: int = 1,
) -> Network:
    """A fat tree of one class of switch, as small as holds `endpoints`.

    `oversubscription` is down-links to up-links of a leaf: 1 is non-blocking, 3 has a third of the bandwidth above.
    """
    require("endpoints", endpoints, 2)
    if planes != 1:
        return striped(fat_tree(endpoints, host_link, switch, levels, oversubscription, up_link), planes)
    if levels not in (1, 2, 3):
        raise BadInput(f"levels is {levels!r}; expected 1, 2 or 3")
    if not oversubscription >= 1:
        raise BadInput(f"oversubscription is {oversubscription!r}; expected 1 (non-blocking) or more")
    up_link = up_link or host_link
    if levels == 1:
        _require_ports(switch, endpoints, "the switch")
        return _made(f"switch of {endpoints}", endpoints, _Shape(endpoints, 1, 1, 0, 0), host_link, up_link,
                     (switch, 1), None, None)  # fmt: skip
    ups = max(1, round(switch.ports / (1 + oversubscription)))
    downs = switch.ports - ups
    name = f"fat tree of {endpoints}"
    if levels == 2:
        leaves = -(-endpoints // downs)
        _require_ports(switch, leaves, "a spine", "leaves: take 3 levels")
        spines = _fewest(leaves, ups, switch.ports)
        return _made(name, endpoints, _Shape(downs, leaves, 1, ups, 0), host_link, up_link,
                     (switch, leaves), (switch, spines), None)  # fmt: skip
    in_pod = switch.ports // 2  # leaves below an agg; as many links above it
    pods = -(-endpoints // (downs * in_pod))
    _require_ports(switch, pods, "a core", "pods: take a switch with more ports")
    leaves, above = -(-endpoints // downs), switch.ports - in_pod
    if pods == 1:
        in_pod = leaves
    cores = ups * _fewest(pods, above, switch.ports)
    shape = _Shape(downs, in_pod, pods, ups, above)
    return _made(name, endpoints, shape, host_link, up_link, (switch, leaves), (switch, ups * pods), (switch, cores))


@dataclass(frozen=True)
class _Shape:
    """Endpoints below a leaf, leaves in a pod, pods, uplinks of a leaf (one to each agg, or spread), of an agg."""

    downs: int
    in_pod: int
    pods: int
    ups: int
    above: int


def _fewest(below: int, ups: int, ports: int) -> int:
    """The fewest switches that take `ups` links from each of `below`, the same number from each."""
    return next(count for count in range(1, ups + 1) if ups % count == 0 and below * (ups // count) <= ports)


def _require_ports(switch: SwitchClass, needed: int, which: str, remedy: str = "links") -> None:
    if needed > switch.ports:
        raise BadInput(
            f"{which} of class {switch.name!r} has {switch.ports} ports and needs {needed} {remedy}; take a switch "
            "with more, or describe several as one of a kind of your own"
        )


def _made(
    name: str,
    endpoints: int,
    shape: _Shape,
    host_link: LinkClass,
    up_link: LinkClass,
    leaf: tuple[SwitchClass, int],
    agg: tuple[SwitchClass, int] | None,
    core: tuple[SwitchClass, int] | None,
) -> Network:
    table = Table()
    table.switch(*leaf)
    first = [table.wires("host-leaf", endpoints, host_link, enters=leaf[0])]
    first.append(table.wires("host-leaf", endpoints, host_link, leaf[0]))
    if agg:
        table.switch(*agg)
        role = "leaf-agg" if core else "leaf-spine"
        count = leaf[1] * shape.ups
        first.append(table.wires(role, count, up_link, leaf[0], agg[0]))
        first.append(table.wires(role, count, up_link, agg[0], leaf[0]))
        if core:
            table.switch(*core)
            count = agg[1] * shape.above
            first.append(table.wires("agg-core", count, up_link, agg[0], core[0]))
            first.append(table.wires("agg-core", count, up_link, core[0], agg[0]))
    below, above = leaf[0].reduces, all(each[0].reduces for each in (agg, core) if each)
    even = shape.downs < endpoints and endpoints % shape.downs == 0
    return table.network(
        name, endpoints, _Clos(shape, tuple(first)), name_of=numbered("host"),
        dimensions=(shape.downs, endpoints // shape.downs) if even else (),
        reducing=(below, below and above) if even else (below and above,),
    )  # fmt: skip


@dataclass(frozen=True)
class _Clos:
    shape: _Shape
    first: tuple[int, ...]

    def paths(self, src: Ids, dst: Ids, salt: int) -> Paths:
        shape, first = self.shape, self.first
        moved = src != dst
        leaf, to_leaf = src // shape.downs, dst // shape.downs
        pieces = [one(first[0] + src, moved)]
        if len(first) > 2:
            x = choose(src, dst, salt, shape.ups)
            out = leaf != to_leaf
            pieces.append(one(first[2] + leaf * shape.ups + x, out))
            if len(first) > 4:
                pod, to_pod = leaf // shape.in_pod, to_leaf // shape.in_pod
                y = choose(dst, src, salt + 1, shape.above)
                far = pod != to_pod
                for base, where in ((first[4], pod), (first[5], to_pod)):
                    pieces.append(one(base + (where * shape.ups + x) * shape.above + y, far))
            pieces.append(one(first[3] + to_leaf * shape.ups + x, out))
        pieces.append(one(first[1] + dst, moved))
        return join(pieces)


def rails_first(endpoints: int, per_node: int, nodes_per_unit: int) -> Ids:
    """Where a rail-optimised network puts each endpoint: by unit, then rail, then node."""
    node, rail = np.divmod(np.arange(endpoints, dtype=np.int64), per_node)
    unit, position = np.divmod(node, nodes_per_unit)
    return (unit * per_node + rail) * nodes_per_unit + position
