"""Networks of networks: dragonfly groups, sites joined by long links, and memories at the endpoints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from openshelf.errors import BadInput
from openshelf.fabric.topologies.parts import Piece, Table, choose, join, numbered, one, piece, require
from openshelf.fabric.wiring.network import Ids, LinkClass, Network, Paths, Router, SwitchClass

Routing = Literal["minimal", "valiant", "adaptive"]


def dragonfly(
    groups: int,
    routers_per_group: int,
    endpoints_per_router: int,
    global_links_per_router: int,
    host_link: LinkClass,
    local_link: LinkClass,
    global_link: LinkClass,
    switch: SwitchClass,
    routing: Literal["minimal", "valiant", "adaptive"] = "minimal",
) -> Network:
    """Groups of fully joined routers, every two groups joined by global links (Kim et al., 2008).

    `valiant`: by way of a third group, which a hash chooses, so that no pattern meets on few links. `adaptive`: the
    minimal way, but for flows that would be more than twice the mean on their global link; those go as Valiant's.
    """
    require("groups", groups, 2)
    require("routers_per_group", routers_per_group)
    require("endpoints_per_router", endpoints_per_router)
    require("global_links_per_router", global_links_per_router)
    ports = routers_per_group * global_links_per_router
    parallel = ports // (groups - 1)
    if not parallel:
        raise BadInput(
            f"{groups} groups need {groups - 1} global links from each; {routers_per_group} routers with "
            f"{global_links_per_router} have {ports}"
        )
    needed = endpoints_per_router + routers_per_group - 1 + global_links_per_router
    if needed > switch.ports:
        raise BadInput(f"a router of class {switch.name!r} has {switch.ports} ports and needs {needed}")
    table, routers = Table(), groups * routers_per_group
    total = routers * endpoints_per_router
    table.switch(switch, routers)
    first = (
        table.wires("host-router", total, host_link, enters=switch),
        table.wires("host-router", total, host_link, switch),
        table.wires("local", routers * routers_per_group, local_link, switch, switch,
                    routers * (routers_per_group - 1) / 2),
        table.wires("global", groups * ports, global_link, switch, switch, groups * parallel * (groups - 1) / 2),
    )  # fmt: skip
    if routing not in get_args(Routing):
        raise BadInput(f"routing is {routing!r}; expected one of {', '.join(get_args(Routing))}")
    shape = (groups, routers_per_group, endpoints_per_router, global_links_per_router, parallel)
    router = _Dragonfly(*shape, first, routing)
    sizes = (endpoints_per_router, routers_per_group, groups)
    return table.network(
        f"dragonfly of {total}", total, router, name_of=numbered("host"), dimensions=sizes,
        reducing=(switch.reduces, False, False),
    )  # fmt: skip


@dataclass(frozen=True)
class _Dragonfly:
    groups: int
    in_group: int
    each: int
    links: int
    parallel: int
    first: tuple[int, ...]
    routing: Routing = "minimal"

    def paths(self, src: Ids, dst: Ids, salt: int) -> Paths:
        router, to_router = src // self.each, dst // self.each
        group, to_group = router // self.in_group, to_router // self.in_group
        moved, far = src != dst, group != to_group
        # Around: by way of a third group, where there is one.
        around = np.zeros(len(src), bool)
        middle = to_group
        if self.groups > 2 and self.routing != "minimal":
            around = far & (self._crowded(group, to_group, far) if self.routing == "adaptive" else True)
            step = 1 + choose(dst, src, salt + 7, self.groups - 2)
            middle = np.where(
                around, (group + step + (step >= (to_group - group) % self.groups)) % self.groups, to_group
            )
        turn = choose(src, dst, salt, self.parallel) * (self.groups - 1)
        first, entry = self._leg(router, group, middle, to_router, far, turn)
        second, last = self._leg(entry, middle, to_group, to_router, around, turn)
        end = np.where(around, last, entry)
        return join([
            one(self.first[0] + src, moved), *first, *second,
            one(self.first[2] + end * self.in_group + to_router % self.in_group, end != to_router),
            one(self.first[1] + dst, moved),
        ])  # fmt: skip

    def _leg(
        self, router: Ids, group: Ids, to_group: Ids, to_router: Ids, where: NDArray[np.bool_], turn: Ids
    ) -> tuple[list[Piece], Ids]:
        """From a router to the group's gate and over its global link; gives the router where that ends."""
        port = np.where(where, (to_group - group - 1) % self.groups + turn, 0)
        back = np.where(where, (group - to_group - 1) % self.groups + turn, 0)
        gate = np.where(where, group * self.in_group + port // self.links, router)
        entry = np.where(where, to_group * self.in_group + back // self.links, router)
        local = one(self.first[2] + router * self.in_group + gate % self.in_group, router != gate)
        return [local, one(self.first[3] + group * self.in_group * self.links + port, where)], entry

    def _crowded(self, group: Ids, to_group: Ids, far: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Of each pair of groups, the flows beyond twice the mean of all pairs."""
        pair = group * self.groups + to_group
        order = np.argsort(pair, kind="stable")
        begins = np.searchsorted(pair[order], pair[order])
        place = np.empty(len(pair), np.int64)
        place[order] = np.arange(len(pair)) - begins
        mean = far.sum() / (self.groups * (self.groups - 1))
        return np.asarray(place >= max(1.0, 2 * mean))


def sites(site: Network, count: int, gateways: int, long_link: LinkClass) -> Network:
    """`count` copies of a network; each one's last `gateways` endpoints have a long link to every other site."""
    require("count", count, 2)
    require("gateways", gateways)
    if site.memories or gateways >= site.endpoints:
        raise BadInput(
            f"{site.name!r} has {site.endpoints} endpoints, {site.memories} of them memories: a site needs more "
            f"endpoints than its {gateways} gateways, and memories are added after joining sites"
        )
    table, inside = Table(), site.endpoints - gateways
    table.take(site, count)
    first = table.wires("long", count * count * gateways, long_link, cables=count * (count - 1) * gateways / 2)
    router = _Sites(site.router, count, inside, gateways, site.resources, first)
    made = table.network(
        f"{count} sites of {site.name}", count * inside, router, dimensions=(inside, count),
        name_of=lambda i: f"site{i // inside}.{site.name_of(i % inside)}",
    )  # fmt: skip
    return replace(made, whole_messages=site.whole_messages)


@dataclass(frozen=True)
class _Sites:
    site: Router
    count: int
    inside: int
    gateways: int
    each: int
    first: int

    def paths(self, src: Ids, dst: Ids, salt: int) -> Paths:
        (site, at), (to_site, to) = np.divmod(src, self.inside), np.divmod(dst, self.inside)
        far, near = site != to_site, site == to_site
        gate = choose(src, dst, salt, self.gateways)
        out = self.site.paths(at[far], self.inside + gate[far], salt)
        into = self.site.paths(self.inside + gate[far], to[far], salt)
        return join([
            piece(self.site.paths(at[near], to[near], salt), near, site[near] * self.each),
            piece(out, far, site[far] * self.each),
            one(self.first + (site * self.count + to_site) * self.gateways + gate, far),
            piece(into, far, to_site[far] * self.each),
        ])  # fmt: skip


def with_memory(
    network: Network,
    read_bytes_per_s: float,
    write_bytes_per_s: float,
    latency_s: float = 0.0,
    which: str = "all",
) -> Network:
    """The network with the memory of its endpoints as resources: a path begins with a read and ends with a write.

    `which`: `all` endpoints, the `ranks`, or the `memories`. For both kinds with different figures call it twice.
    """
    ranges = {
        "all": (0, network.endpoints),
        "ranks": (0, network.ranks),
        "memories": (network.ranks, network.endpoints),
    }
    if which not in ranges:
        raise BadInput(f"which is {which!r}; expected one of {', '.join(ranges)}")
    low, high = ranges[which]
    table = Table()
    table.take(network)
    word = "memory" if which == "memories" else "place"
    read = table.add(f"{word}.read", high - low, read_bytes_per_s, latency_s)
    write = table.add(f"{word}.write", high - low, write_bytes_per_s, latency_s)
    places = ((f"{word}.read", low, high, read), (f"{word}.write", low, high, write))
    made = table.network(network.name, network.endpoints, _Ends(network.router, low, high, read, write))
    return replace(
        made, memories=network.memories, dimensions=network.dimensions, name_of=network.name_of,
        reducing=network.reducing, reconfiguration_s=network.reconfiguration_s,
        whole_messages=network.whole_messages, direct=network.direct, places=(*network.places, *places),
    )  # fmt: skip


@dataclass(frozen=True)
class _Ends:
    inner: Router
    low: int
    high: int
    read: int
    write: int

    def paths(self, src: Ids, dst: Ids, salt: int) -> Paths:
        moved = src != dst
        reads = moved & (src >= self.low) & (src < self.high)
        writes = moved & (dst >= self.low) & (dst < self.high)
        middle = piece(self.inner.paths(src, dst, salt), np.ones(len(src), bool))
        return join([one(self.read + src - self.low, reads), middle, one(self.write + dst - self.low, writes)])
