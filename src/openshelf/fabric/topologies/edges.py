"""An explicit graph: named nodes, some of them switches, and links between them. Shortest ways, ECMP among them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from openshelf.errors import BadInput, UnknownName
from openshelf.fabric.fields import nearest
from openshelf.fabric.topologies.parts import Table, choose
from openshelf.fabric.wiring.network import Ids, LinkClass, Network, Paths, SwitchClass

_MOST_NAMED = 5  # of a part that is not joined


@dataclass(frozen=True)
class Edge:
    """`count` parallel links between two nodes, both ways."""

    a: str
    b: str
    link: LinkClass
    count: int = 1


def graph(
    endpoints: Sequence[str], switches: Mapping[str, SwitchClass], edges: Sequence[Edge], name: str = "graph"
) -> Network:
    """A network from a list of links; endpoints are numbered in the order given."""
    nodes = [*endpoints, *switches]
    number = {node: i for i, node in enumerate(nodes)}
    if len(number) != len(nodes):
        twice = sorted({node for node in nodes if nodes.count(node) > 1})
        raise BadInput(f"{name}: nodes need different names; given twice: {', '.join(twice)}")
    table = Table()
    for kind in switches.values():
        table.switch(kind, 1)
    hops: list[dict[int, list[int]]] = [{} for _ in nodes]
    ports = [0] * len(nodes)
    for edge in edges:
        for end in (edge.a, edge.b):
            if end not in number:
                raise UnknownName(f"{name}: a link joins {end!r}, which is no node{nearest(end, nodes)}")
        if edge.a == edge.b:
            raise BadInput(f"{name}: a link joins {edge.a!r} to itself")
        for a, b in ((edge.a, edge.b), (edge.b, edge.a)):
            ends = switches.get(a), switches.get(b)
            first = table.wires(edge.link.name, edge.count, edge.link, *ends, edge.count if a == edge.a else 0)
            hops[number[a]].setdefault(number[b], []).extend(range(first, first + edge.count))
            ports[number[a]] += edge.count
    for node, kind in switches.items():
        if ports[number[node]] > kind.ports:
            raise BadInput(
                f"{name}: switch {node!r} has {ports[number[node]]} links, and {kind.name!r} has {kind.ports} ports"
            )
    _require_joined(name, nodes, hops)
    router = _Graph(len(endpoints), tuple(hops))
    labels = tuple(endpoints)
    return table.network(name, len(endpoints), router, name_of=labels.__getitem__)


def _require_joined(name: str, nodes: Sequence[str], hops: Sequence[Mapping[int, Sequence[int]]]) -> None:
    left, parts = set(range(len(nodes))), []
    while left:
        part, queue = set(), deque([min(left)])
        while queue:
            at = queue.popleft()
            if at not in part:
                part.add(at)
                queue.extend(hops[at])
        left -= part
        parts.append(sorted(part))
    if len(parts) > 1:
        told = []
        for part_ids in parts:
            names = ", ".join(nodes[i] for i in part_ids[:_MOST_NAMED])
            more = len(part_ids) - _MOST_NAMED
            told.append(f"({names}{f' and {more} more' if more > 0 else ''})")
        raise BadInput(f"{name} is not joined: it has {len(parts)} parts, {' '.join(told)}; add links between them")


@dataclass(frozen=True)
class _Graph:
    endpoints: int
    hops: tuple[dict[int, list[int]], ...]
    _towards: dict[int, list[list[tuple[int, int]]]] = field(default_factory=dict, repr=False)

    def towards(self, target: int) -> list[list[tuple[int, int]]]:
        """For every node the (link, next node) that are on a shortest way to `target`. Any node may forward."""
        if target not in self._towards:
            distance, queue = {target: 0}, deque([target])
            while queue:
                at = queue.popleft()
                for other in self.hops[at]:
                    if other not in distance:
                        distance[other] = distance[at] + 1
                        queue.append(other)
            self._towards[target] = [
                [
                    (link, other)
                    for other, links in sorted(hops.items())
                    if distance[other] < distance[at]
                    for link in links
                ]
                for at, hops in enumerate(self.hops)
            ]
        return self._towards[target]

    def paths(self, src: Ids, dst: Ids, salt: int) -> Paths:
        lengths, found = [0], []
        for at, target in zip(src.tolist(), dst.tolist(), strict=True):
            ways, steps = self.towards(target), 0
            while at != target:
                options = ways[at]
                pick = 0
                if len(options) > 1:
                    pick = int(choose(np.array([at * self.endpoints + src[len(lengths) - 1]]), np.array([target]), salt,
                                      len(options))[0])  # fmt: skip
                link, at = options[pick]
                found.append(link)
                steps += 1
            lengths.append(steps)
        return np.cumsum(np.array(lengths, np.int64)), np.array(found, np.int64)
