"""A topology in compiled form: endpoints, directed resources, and the way from one endpoint to another.

A resource is anything that bytes share: one direction of a link, a port of a switch (the link that leaves it), the
reading or the writing of a memory. Each has a capacity, a latency and a role, such as `host-leaf`; figures of a
network are shown by role, for a large network has millions of resources and five roles. The latency of a switch is
in that of the links that leave it, so a path's latency is the sum over its resources.

Ways are found by arithmetic (see `topologies`), thousands at a time, as NumPy arrays; nothing is stored for a pair of
endpoints. Where there are equal ways, a hash of source, target and `salt` takes one (ECMP).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openshelf.errors import BadInput

Ids = NDArray[np.int64]
Values = NDArray[np.float64]
Paths = tuple[Ids, Ids]
"""(indptr, indices), as in a sparse matrix: path i is `indices[indptr[i] : indptr[i + 1]]`."""


_TURNS = 64


@dataclass(frozen=True)
class LinkClass:
    """One kind of cable or trace: what each direction carries, and how long a bit takes along it."""

    name: str
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bandwidth_bytes_per_s) and self.bandwidth_bytes_per_s > 0):
            raise BadInput(f"link {self.name!r}: bandwidth is {self.bandwidth_bytes_per_s!r} bytes/s; expected above 0")
        _check_latency(f"link {self.name!r}", self.latency_s)


@dataclass(frozen=True)
class SwitchClass:
    """One kind of switch; with `store_and_forward` it takes in a message whole before it sends any of it on.

    One that `reduces` adds up what passes through it, and copies what goes to many (NVLS, SHARP). One that needs
    `reconfiguration_s` joins each port with one other (light), and takes that long to join it with another one.
    """

    name: str
    ports: int
    latency_s: float = 0.0
    store_and_forward: bool = False
    reduces: bool = False
    port_bytes_per_s: float = math.inf
    reconfiguration_s: float = 0.0

    def __post_init__(self) -> None:
        if self.ports < 2:
            raise BadInput(f"switch {self.name!r} has {self.ports!r} ports; expected at least 2")
        _check_latency(f"switch {self.name!r}", self.latency_s)


@dataclass(frozen=True)
class Semantics:
    """What a transfer costs beside the wires: by messages, or by loads and stores.

    Before the first byte leaves: `overhead_s` once, `fragment_s` for each `fragment_bytes` (0: never split), and
    `copies` of all bytes at `copy_bytes_per_s` (staging, packing). On the wire: `bytes / efficiency` (headers, CRC),
    and no faster than `rate_cap_bytes_per_s` (outstanding requests x line / round trip).
    """

    name: str = "plain"
    overhead_s: float = 0.0
    fragment_s: float = 0.0
    fragment_bytes: int = 0
    copies: float = 0.0
    copy_bytes_per_s: float = math.inf
    rate_cap_bytes_per_s: float = math.inf
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        for name in ("overhead_s", "fragment_s", "fragment_bytes", "copies"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadInput(f"semantics {self.name!r}: {name} is {getattr(self, name)!r}; expected 0 or more")
        for name in ("copy_bytes_per_s", "rate_cap_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise BadInput(f"semantics {self.name!r}: {name} is {getattr(self, name)!r}; expected above 0")
        if not 0 < self.efficiency <= 1:
            raise BadInput(f"semantics {self.name!r}: efficiency is {self.efficiency!r}; expected above 0, at most 1")

    def before_s(self, nbytes: ArrayLike) -> Values:
        """Seconds before the first byte is on the wire."""
        size = np.asarray(nbytes, np.float64)
        fragments = np.ceil(size / self.fragment_bytes) if self.fragment_bytes else np.minimum(size, 1.0)
        return np.asarray(self.overhead_s + self.fragment_s * fragments + self.copies * size / self.copy_bytes_per_s)

    def wire_bytes(self, nbytes: ArrayLike) -> Values:
        """Bytes that the wires carry for so many of payload."""
        return np.asarray(np.asarray(nbytes, np.float64) / self.efficiency)


class Router(Protocol):
    """Finds ways by arithmetic."""

    def paths(self, src: Ids, dst: Ids, salt: int) -> Paths: ...


@dataclass(frozen=True)
class Network:
    """Endpoints and resources; `topologies` makes them.

    `role` numbers each resource's role in `roles`. `switches` counts switches by class, `cables` counts cables by role
    (one for both directions; `links` has their class), for money and watts. `whole_messages`: every hop
    stores a message and forwards it, one after the other on each link.
    """

    name: str
    endpoints: int
    router: Router = field(repr=False)
    roles: tuple[str, ...]
    role: NDArray[np.int16] = field(repr=False)
    capacity_bytes_per_s: Values = field(repr=False)
    latency_s: Values = field(repr=False)
    links: Mapping[str, LinkClass] = field(repr=False)
    cables: Mapping[str, int]
    switches: Mapping[SwitchClass, int]
    whole_messages: bool = False
    dimensions: tuple[int, ...] = ()
    name_of: Callable[[int], str] = field(default=lambda i: f"endpoint{i}", repr=False)
    direct: bool = False
    """Some endpoints pass on what is for others: there are links between endpoints without a switch."""
    reducing: tuple[bool, ...] = ()
    """Of each dimension (or of all, where there is none): whether the switches that join it reduce what passes."""
    reconfiguration_s: tuple[float, ...] = ()
    """Of each dimension, where circuits are switched: how long it takes to join an endpoint with another one."""
    orbit: Ids | None = field(default=None, repr=False)
    """Where every endpoint sees the same network: which resources moving all endpoints makes of one another."""
    relay: str = ""
    """The role of links into an endpoint that sends on what is for others, where a way goes on in other roles."""
    memories: int = 0
    """The last so many endpoints hold memory and compute nothing: no ranks run there."""
    places: tuple[tuple[str, int, int, int], ...] = field(default=(), repr=False)
    """Memory that is modelled: (role, first endpoint, endpoint after the last, resource of the first)."""

    @property
    def resources(self) -> int:
        return len(self.capacity_bytes_per_s)

    @property
    def ranks(self) -> int:
        """Endpoints that compute: the first ones."""
        return self.endpoints - self.memories

    def resource_role(self, resource: int) -> str:
        return self.roles[int(self.role[resource])]

    def path(self, src: int, dst: int, salt: int = 0) -> Ids:
        """The resources from one endpoint to another, in order; none to itself."""
        return self.paths([src], [dst], salt)[1]

    def paths(self, src: ArrayLike, dst: ArrayLike, salt: int = 0) -> Paths:
        """The paths of many pairs at once: (indptr, indices)."""
        sources, targets = np.asarray(src, np.int64).ravel(), np.asarray(dst, np.int64).ravel()
        if len(sources) != len(targets):
            raise BadInput(f"{len(sources)} sources and {len(targets)} targets; expected as many of each")
        self._require(sources)
        self._require(targets)
        return self.router.paths(sources, targets, salt)

    def relay_s_per_byte(self, at: Ids, path: Ids) -> Values:
        """Of each path, the seconds a byte that an endpoint on it takes in a message for, before it sends that on."""
        made = np.zeros(len(at) - 1)
        if not self.relay:
            return made
        inside = self.role[path] == self.roles.index(self.relay)
        row = np.repeat(np.arange(len(made)), np.diff(at))
        np.maximum.at(made, row[inside], 1 / self.capacity_bytes_per_s[path[inside]])
        made[np.bincount(row[~inside], minlength=len(made)) == 0] = 0.0  # it ends where that endpoint is
        return made

    def place(self, endpoint: int, what: str) -> int:
        """The resource of reading (`read`) or writing (`write`) an endpoint's memory."""
        self._require(np.asarray([endpoint]))
        for role, low, high, first in self.places:
            if role.endswith(f".{what}") and low <= endpoint < high:
                return first + endpoint - low
        raise BadInput(f"{what}s of the memory of {self.name_of(endpoint)!r} are not modelled; see `with_memory`")

    def around(self, src: ArrayLike, dst: ArrayLike, dead: Ids, salt: int = 0) -> Paths:
        """Paths as ECMP has them when it knows that some resources are dead: another of the equal ways.

        Where all of them are dead a pair keeps its path. Some equal ways may be missed: `_TURNS` hashes are tried.
        """
        sources, targets = np.asarray(src, np.int64).ravel(), np.asarray(dst, np.int64).ravel()
        at, path = self.paths(sources, targets, salt)
        gone = np.zeros(self.resources, bool)
        gone[dead] = True
        rows = [path[at[i] : at[i + 1]] for i in range(len(sources))]
        hit = np.array([i for i, row in enumerate(rows) if gone[row].any()], np.int64)
        for turn in range(1, _TURNS + 1):
            if not len(hit):
                break
            own_at, own = self.paths(sources[hit], targets[hit], salt + turn)
            left = []
            for number, i in enumerate(hit.tolist()):
                row = own[own_at[number] : own_at[number + 1]]
                if gone[row].any():
                    left.append(i)
                else:
                    rows[i] = row
            hit = np.array(left, np.int64)
        indptr = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=indptr[1:])
        return indptr, np.concatenate(rows) if rows else path

    def named(self, name: str) -> int:
        """The resource of a name: `leaf-spine:5` is the sixth of its role, `0>8:1` the second from endpoint 0 to 8."""
        role, _, number = name.rpartition(":")
        ends = role.split(">")
        if len(ends) == 2 and all(each.isdigit() for each in (*ends, number)):
            path = self.path(int(ends[0]), int(ends[1]))
            if int(number) >= len(path):
                raise BadInput(f"{name!r}: the way from {ends[0]} to {ends[1]} has {len(path)} links, numbered from 0")
            return int(path[int(number)])
        if role not in self.roles or not number.isdigit():
            raise BadInput(
                f"no resource is named {name!r}; expected ROLE:NUMBER with a role of {', '.join(self.roles)}, such as "
                f"{self.roles[0]}:0, or SOURCE>TARGET:NUMBER, the links on a way from 0"
            )
        own = np.flatnonzero(self.role == self.roles.index(role))
        if int(number) >= len(own):
            raise BadInput(f"{name!r}: there are {len(own)} of role {role!r}, numbered from 0")
        return int(own[int(number)])

    def storing(self) -> Network:
        """The same network with every hop storing whole messages."""
        return replace(self, whole_messages=True)

    def describe(self) -> dict[str, Any]:
        """The counts, as plain values for `json`."""
        return {
            "name": self.name,
            "endpoints": self.endpoints,
            "memories": self.memories,
            "resources": self.resources,
            "dimensions": list(self.dimensions),
            "switches": {each.name: count for each, count in self.switches.items()},
            "cables": dict(self.cables),
            "whole_messages": self.whole_messages,
        }

    def _require(self, ids: Ids) -> None:
        bad = ids[(ids < 0) | (ids >= self.endpoints)]
        if len(bad):
            raise BadInput(f"endpoint {int(bad[0])} is not in {self.name!r}, which has 0 to {self.endpoints - 1}")


def _check_latency(what: str, latency_s: float) -> None:
    if not (math.isfinite(latency_s) and latency_s >= 0):
        raise BadInput(f"{what}: latency is {latency_s!r} s; expected 0 or more")
