"""Products of rings, full meshes and switches, each joining the endpoints that differ in one coordinate.

A ring, a torus, a full mesh, an n-dimensional full mesh (UB-Mesh) and a single switch are all products; so are the
multi-dimensional networks of ASTRA-sim. Endpoint e has the coordinates of e in the mixed radix of the dimensions,
the first one varying fastest. A way corrects the coordinates in the order of the dimensions, round a ring by the
shorter way and, where both are as long, upward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from openshelf.errors import BadInput
from openshelf.fabric.topologies.parts import Piece, Table, join, numbered, one, require, spread, striped
from openshelf.fabric.wiring.network import Ids, LinkClass, Network, Paths, SwitchClass

Kind = Literal["ring", "mesh", "switch"]


@dataclass(frozen=True)
class Dimension:
    """`size` endpoints joined as a `ring`, a full `mesh`, or through one `switch`, by links of one class."""

    kind: Kind
    size: int
    link: LinkClass
    switch: SwitchClass | None = None
    role: str = ""


def product(dimensions: Sequence[Dimension], name: str = "") -> Network:
    """The product of dimensions, the first one varying fastest."""
    if not dimensions:
        raise BadInput("a product needs at least one dimension, none came")
    table, total = Table(), math.prod(dimension.size for dimension in dimensions)
    firsts = []
    for number, dimension in enumerate(dimensions):
        require(f"the size of dimension {number}", dimension.size, 2)
        role = dimension.role or (dimension.kind if len(dimensions) == 1 else f"{dimension.kind}{number}")
        firsts.append(_add(table, dimension, role, total))
    sizes = tuple(dimension.size for dimension in dimensions)
    router = _Product(tuple(dimensions), tuple(firsts))
    made = name or " x ".join(f"{dimension.kind} {dimension.size}" for dimension in dimensions)
    direct = any(dimension.kind != "switch" for dimension in dimensions)
    reducing = tuple(bool(each.switch and each.switch.reduces) for each in dimensions)
    return table.network(
        made, total, router, dimensions=sizes, name_of=numbered("npu"), direct=direct, reducing=reducing,
        reconfiguration_s=tuple(each.switch.reconfiguration_s if each.switch else 0.0 for each in dimensions),
        orbit=_orbits(dimensions, total),
    )  # fmt: skip


def ring(endpoints: int, link: LinkClass) -> Network:
    """A ring with a link both ways between neighbours."""
    return product([Dimension("ring", endpoints, link)], f"ring of {endpoints}")


def torus(sizes: Sequence[int], link: LinkClass) -> Network:
    """An n-dimensional torus."""
    made = [Dimension("ring", size, link, role="torus") for size in sizes]
    return product(made, f"torus {'x'.join(map(str, sizes))}")


def full_mesh(endpoints: int, link: LinkClass) -> Network:
    """A link between every two endpoints."""
    return product([Dimension("mesh", endpoints, link)], f"full mesh of {endpoints}")


def nd_full_mesh(sizes: Sequence[int], links: Sequence[LinkClass]) -> Network:
    """A full mesh in every dimension, as in UB-Mesh (arXiv 2503.20377): one class of link for each."""
    if len(sizes) != len(links):
        raise BadInput(f"{len(sizes)} dimensions and {len(links)} classes of link; expected as many of each")
    made = [Dimension("mesh", size, link) for size, link in zip(sizes, links, strict=True)]
    return product(made, f"full mesh {'x'.join(map(str, sizes))}")


def single_switch(endpoints: int, link: LinkClass, switch: SwitchClass, planes: int = 1) -> Network:
    """Every endpoint on one switch, or by a port each on so many `planes` of it."""
    return striped(product([Dimension("switch", endpoints, link, switch)], f"switch of {endpoints}"), planes)


def _add(table: Table, dimension: Dimension, role: str, total: int) -> int:
    """Ring: 2 e + (0 up, 1 down); of two: e. Mesh: e (size - 1) + which other. Switch: e to it, total + e from it."""
    if dimension.kind == "ring":
        return table.wires(role, total if dimension.size == 2 else 2 * total, dimension.link)
    if dimension.kind == "mesh":
        return table.wires(role, total * (dimension.size - 1), dimension.link)
    if dimension.kind != "switch":
        raise BadInput(f"a dimension is a ring, a mesh or a switch; {dimension.kind!r} came")
    if dimension.switch is None:
        raise BadInput(f"dimension {role!r} is switched: give its class of switch")
    if dimension.switch.ports < dimension.size:
        raise BadInput(
            f"switch {dimension.switch.name!r} has {dimension.switch.ports} ports and should join {dimension.size} "
            "endpoints: use a fat tree, or a switch with more ports"
        )
    table.switch(dimension.switch, total // dimension.size)
    first = table.wires(role, total, dimension.link, enters=dimension.switch)
    table.wires(role, total, dimension.link, dimension.switch)
    return first


def _orbits(dimensions: Sequence[Dimension], total: int) -> Ids:
    """In each dimension: the ways up and down of a ring, the links of a mesh by how far they go, a switch's two ways.

    Ways are the same wherever they begin, so adding one vector to all coordinates moves resources within these.
    """
    made, stride, first = [], 1, 0
    every = np.arange(total, dtype=np.int64)
    for dimension in dimensions:
        size = dimension.size
        if dimension.kind == "mesh":
            at, other = np.repeat(every // stride % size, size - 1), np.tile(np.arange(size - 1), total)
            own = (other + (other >= at) - at) % size - 1
        elif dimension.kind == "ring":
            own = np.zeros(total, np.int64) if size == 2 else np.tile(np.arange(2), total)
        else:
            own = np.repeat(np.arange(2), total)
        made.append(first + own)
        first, stride = first + int(own.max()) + 1, stride * size
    return np.concatenate(made)


@dataclass(frozen=True)
class _Product:
    dimensions: tuple[Dimension, ...]
    firsts: tuple[int, ...]

    def paths(self, src: Ids, dst: Ids, salt: int) -> Paths:
        total = math.prod(dimension.size for dimension in self.dimensions)
        pieces: list[Piece] = []
        here, stride = src, 1
        for dimension, first in zip(self.dimensions, self.firsts, strict=True):
            at, to = here // stride % dimension.size, dst // stride % dimension.size
            there = here + (to - at) * stride
            if dimension.kind == "switch":
                pieces += [one(first + here, at != to), one(first + total + there, at != to)]
            elif dimension.kind == "mesh":
                other = to - (to > at)
                pieces.append(one(first + here * (dimension.size - 1) + other, at != to))
            elif dimension.size == 2:
                pieces.append(one(first + here, at != to))
            else:
                pieces.append(self._round(dimension.size, first, here, at, to, stride))
            here, stride = there, stride * dimension.size
        return join(pieces)

    @staticmethod
    def _round(size: int, first: int, here: Ids, at: Ids, to: Ids, stride: int) -> Piece:
        """The shorter way round; of two equal ones the one up."""
        up = (to - at) % size
        down = 2 * up > size
        hops = np.where(down, size - up, up)
        # Coordinates on the way, wrapped: at, at +- 1, ...
        coordinate = spread(at, hops, np.where(down, -1, 1)) % size
        base = np.repeat(here - at * stride, hops)
        return hops, first + 2 * (base + coordinate * stride) + np.repeat(down, hops).astype(np.int64)
