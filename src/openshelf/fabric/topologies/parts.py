"""What all generators build with: a table of resources by role, paths joined from pieces, and the ECMP hash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openshelf.errors import BadInput
from openshelf.fabric.wiring.network import Ids, LinkClass, Network, Paths, Router, SwitchClass

Piece = tuple[Ids, Ids]
"""A part of every path: how many resources it adds to each, and those resources, path after path."""


MOST = 40_000_000
"""Resources of a network: some 20 bytes each, and as much again while a collective runs."""


class Table:
    """Resources, switches and cables of a network that is being made."""

    def __init__(self) -> None:
        self.roles: list[str] = []
        self.links: dict[str, LinkClass] = {}
        self.cables: dict[str, int] = {}
        self.switches: dict[SwitchClass, int] = {}
        self.size = 0
        self._role: list[NDArray[np.int16]] = []
        self._capacity: list[NDArray[np.float64]] = []
        self._latency: list[NDArray[np.float64]] = []

    def wires(
        self,
        role: str,
        count: int,
        link: LinkClass,
        leaves: SwitchClass | None = None,
        enters: SwitchClass | None = None,
        cables: float | None = None,
    ) -> int:
        """Adds `count` directions of a link that leaves one switch and enters another; gives the first one's id.

        No direction carries more than the ports at its ends do. A direction is half a cable unless said.
        """
        width = min([link.bandwidth_bytes_per_s, *(each.port_bytes_per_s for each in (leaves, enters) if each)])
        first = self.add(role, count, width, link.latency_s + (leaves.latency_s if leaves else 0.0))
        self.links[role] = link
        self.cables[role] = self.cables.get(role, 0) + int(count / 2 if cables is None else cables)
        return first

    def add(self, role: str, count: int, bandwidth: float, latency_s: float) -> int:
        """Adds `count` resources of a role; gives the first one's id."""
        if self.size + count > MOST:
            raise BadInput(
                f"{count} resources of role {role!r} make {self.size + count}: more than the {MOST} that a network may "
                "have here; take fewer endpoints, or a topology with fewer links"
            )
        if role not in self.roles:
            self.roles.append(role)
        first, self.size = self.size, self.size + count
        self._role.append(np.full(count, self.roles.index(role), np.int16))
        self._capacity.append(np.full(count, bandwidth))
        self._latency.append(np.full(count, latency_s))
        return first

    def switch(self, kind: SwitchClass, count: int) -> None:
        self.switches[kind] = self.switches.get(kind, 0) + count

    def take(self, other: Network, times: int = 1) -> int:
        """Adds `times` copies of another network's resources, one after the other; gives the first id."""
        first = self.size
        for role in other.roles:
            if role not in self.roles:
                self.roles.append(role)
        numbers = np.array([self.roles.index(role) for role in other.roles], np.int16)
        self._role.append(np.tile(numbers[other.role], times))
        self._capacity.append(np.tile(other.capacity_bytes_per_s, times))
        self._latency.append(np.tile(other.latency_s, times))
        self.size += times * other.resources
        self.links |= other.links
        for role, count in other.cables.items():
            self.cables[role] = self.cables.get(role, 0) + times * count
        for kind, count in other.switches.items():
            self.switch(kind, times * count)
        return first

    def network(self, name: str, endpoints: int, router: Router, **more: Any) -> Network:
        more.setdefault("whole_messages", any(kind.store_and_forward for kind in self.switches))
        turned = [kind.name for kind in self.switches if kind.reconfiguration_s]
        if turned and not any(more.get("reconfiguration_s", ())):
            raise BadInput(
                f"{turned[0]!r} switches circuits, and {name!r} is made of switches that pass packets on; a circuit "
                "switch may join endpoints in a single_switch, or in a dimension of a product"
            )
        return Network(
            name, endpoints, router, tuple(self.roles), np.concatenate(self._role), np.concatenate(self._capacity),
            np.concatenate(self._latency), self.links, self.cables, self.switches, **more,
        )  # fmt: skip


def one(ids: Ids, where: NDArray[np.bool_]) -> Piece:
    """One resource in the paths where it is needed."""
    return where.astype(np.int64), ids[where]


def join(pieces: Sequence[Piece]) -> Paths:
    """The pieces of each path one after the other."""
    total = sum((counts for counts, _ in pieces), np.zeros(len(pieces[0][0]), np.int64))
    indptr = np.zeros(len(total) + 1, np.int64)
    np.cumsum(total, out=indptr[1:])
    indices = np.empty(int(indptr[-1]), np.int64)
    at = indptr[:-1].copy()
    for counts, ids in pieces:
        indices[spread(at, counts)] = ids
        at += counts
    return indptr, indices


def spread(first: Ids, counts: Ids, step: int | Ids = 1) -> Ids:
    """first[i], first[i] + step, ... `counts[i]` times, for every i."""
    ends = np.cumsum(counts)
    rank = np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64) - np.repeat(ends - counts, counts)
    return np.repeat(first, counts) + rank * (np.repeat(step, counts) if isinstance(step, np.ndarray) else step)


def piece(paths: Paths, where: NDArray[np.bool_], offset: int | Ids = 0) -> Piece:
    """Paths of a part's own router, found for the pairs `where`, as a piece of all paths; ids moved by `offset`."""
    counts = np.zeros(len(where), np.int64)
    lengths = np.diff(paths[0])
    counts[where] = lengths
    return counts, paths[1] + (np.repeat(offset, lengths) if isinstance(offset, np.ndarray) else offset)


def choose(src: Ids, dst: Ids, salt: int, ways: int | Ids) -> Ids:
    """One of `ways` equal ways for each pair: a hash, so the same in every run (splitmix64's finisher)."""
    with np.errstate(over="ignore"):
        word = src.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + dst.astype(np.uint64)
        word = word * np.uint64(0xD1342543DE82EF95) + np.uint64((salt * 0x2545F4914F6CDD1D) & 0xFFFFFFFFFFFFFFFF)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word ^= word >> np.uint64(31)
    return (word % np.asarray(ways, np.uint64)).astype(np.int64)


def require(what: str, value: int, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise BadInput(f"{what} is {value!r}; expected a whole number of at least {least}")


def numbered(word: str) -> Callable[[int], str]:
    return lambda i: f"{word}{i}"


def striped(network: Network, planes: int) -> Network:
    """The network `planes` times beside one another: an endpoint has a port in each, and its bytes are over all."""
    require("planes", planes)
    if planes == 1:
        return network
    return replace(
        network,
        capacity_bytes_per_s=network.capacity_bytes_per_s * planes,
        cables={role: count * planes for role, count in network.cables.items()},
        switches={kind: count * planes for kind, count in network.switches.items()},
    )
