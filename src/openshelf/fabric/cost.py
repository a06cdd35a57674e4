"""What a transfer or an access costs: the one model that planner and simulator share.

A transfer takes t = latency + bytes / bandwidth. Latency is the sum over every place and link on the way
(cut-through: the first byte meets each once). Bandwidth is the narrowest of: reading the source, each link in
its direction, writing the target, and, for a place in between, writing and reading it at once. Where a link names a
protocol, what that costs before the first byte is latency, and what headers and requests in flight leave of the
bandwidth is the bandwidth. Of all ways the one that is fastest for this many bytes is taken. Nothing here knows of
other traffic: contention is the simulator's.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from openshelf.errors import BadInput
from openshelf.fabric.model import Figure, Link, LoadedLatency, PageFigures, Place, Protocol, Source, weakest
from openshelf.fabric.wiring.media import Medium
from openshelf.fabric.wiring.network import Semantics
from openshelf.fabric.wiring.protocols import Access, MemoryProtocol, MessageProtocol, beyond, semantics
from openshelf.fabric.wiring.wires import latency_of


@dataclass(frozen=True)
class Leg:
    """One place or link on the way, and what it allows."""

    name: str
    latency_s: float
    bandwidth_bytes_per_s: float
    source: Source
    beyond: str = ""


@dataclass(frozen=True)
class Cost:
    """Seconds, and why: `latency_s` + `transfer_s`, the legs, and which of them is the narrowest.

    `source` is the least trustworthy kind of figure that went into it; `beyond` says which sizes were extrapolated.
    """

    seconds: float
    nbytes: int
    latency_s: float
    transfer_s: float
    bottleneck: str
    legs: tuple[Leg, ...]
    source: Source
    beyond: tuple[str, ...] = ()

    @property
    def bound(self) -> str:
        """`latency` or `bandwidth`, whichever takes the larger part."""
        return "latency" if self.latency_s > self.transfer_s else "bandwidth"


@dataclass(frozen=True)
class Rules:
    """What links mean by their names of protocols and media, and whether memory protocols load or store."""

    protocols: Mapping[str, MemoryProtocol | MessageProtocol] = field(default_factory=dict)
    media: dict[str, Medium] = field(default_factory=dict)
    access: Access = "store"

    def kind(self, name: str) -> Protocol:
        """The semantics of a protocol."""
        if name in ("memory", "message"):
            return "memory" if name == "memory" else "message"
        return "memory" if isinstance(self.protocols[name], MemoryProtocol) else "message"


def transfer(
    nbytes: int,
    source: Place,
    target: Place,
    places: Sequence[Place],
    links: Sequence[Link],
    protocol: Protocol | None,
    rules: Rules,
) -> Cost:
    """The cheapest way from `source` to `target` over links of `protocol` (any if None)."""
    require_size(nbytes)
    links = [link for link in links if protocol in (None, rules.kind(link.protocol))]
    if source.name == target.name:
        # Within a place bytes are copied; only who asks for messages goes through a link from it to itself.
        loops = [
            _link_leg(link, True, nbytes, source, rules)
            for link in links
            if link.from_place == link.to_place == source.name
        ]
        ends = _end_leg(source, "read"), _end_leg(source, "write")
        ways = [[ends[0], loop, ends[1]] for loop in loops] if protocol == "message" else [[_copy_leg(source)]]
    else:
        ways = _ways(nbytes, source, target, {place.name: place for place in places}, links, rules)
    if not ways:
        kind = f"{protocol} " if protocol else ""
        known = ", ".join(f"{link.name} ({link.from_place} - {link.to_place})" for link in links)
        raise BadInput(
            f"no {kind}way from {source.name!r} to {target.name!r}: the fabric has the {kind}links "
            f"{known or '(none)'}; add one between them, or ask `send` about endpoints of a topology"
        )
    return min((along(nbytes, way) for way in ways), key=lambda cost: cost.seconds)


def access(nbytes: int, place: Place, stride: int | None, page_bytes: int | None, load_bytes_per_s: float) -> Cost:
    """See `Fabric.access`."""
    require_size(nbytes)
    if stride is not None and stride < 1:
        raise BadInput(f"stride is {stride!r}; expected at least 1 byte, or None for random order")
    pages = _pages(place, page_bytes)
    latency, latency_source = pages.latency_s.value, pages.latency_s.source
    if load_bytes_per_s:
        latency, latency_source = _under_load(place, pages, load_bytes_per_s)
    line = place.line_bytes
    lines = -(-nbytes // max(line, stride or line))
    per_line_s = line / pages.read_bandwidth_bytes_per_s.value
    sources: list[Source] = [latency_source, pages.read_bandwidth_bytes_per_s.source]
    bottleneck = f"{place.name} bandwidth"
    if stride is None or stride >= pages.page_bytes:
        at_once = pages.parallel_loads
        if at_once:
            sources.append(at_once.source)
        wait_s = latency / max(1.0, at_once.value if at_once else 1.0)
        if wait_s > per_line_s:
            per_line_s, bottleneck = wait_s, f"{place.name} latency"
    worst = weakest(sources)
    leg = Leg(place.name, latency, line / per_line_s, worst)
    first_s = latency if lines else 0.0
    rest_s = max(0, lines - 1) * per_line_s
    return Cost(first_s + rest_s, nbytes, first_s, rest_s, bottleneck, (leg,), worst)


def require_size(nbytes: int) -> None:
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise BadInput(f"nbytes is {nbytes!r}; expected a whole number of bytes, 0 or more")


def along(nbytes: int, legs: Sequence[Leg]) -> Cost:
    """All latencies on a way, and the bytes over its narrowest leg."""
    narrowest = min(legs, key=lambda leg: leg.bandwidth_bytes_per_s)
    # Zero bytes are not sent at all.
    latency_s = sum(leg.latency_s for leg in legs) if nbytes else 0.0
    transfer_s = nbytes / narrowest.bandwidth_bytes_per_s
    source = weakest([leg.source for leg in legs])
    sizes = tuple(dict.fromkeys(leg.beyond for leg in legs if leg.beyond))
    return Cost(latency_s + transfer_s, nbytes, latency_s, transfer_s, narrowest.name, tuple(legs), source, sizes)


def _leg(name: str, latency: Figure | None, bandwidth: float, *figures: Figure) -> Leg:
    used = [*figures, latency] if latency else [*figures]
    return Leg(name, latency.value if latency else 0.0, bandwidth, weakest([figure.source for figure in used]))


def _end_leg(place: Place, what: str) -> Leg:
    figure = place.read_bandwidth_bytes_per_s if what == "read" else place.write_bandwidth_bytes_per_s
    return _leg(f"{place.name} {what}", place.latency_s, figure.value, figure)


def _through_leg(place: Place) -> Leg:
    """Staged in a place: every byte is written there and read again."""
    read, write = place.read_bandwidth_bytes_per_s, place.write_bandwidth_bytes_per_s
    return _leg(f"{place.name} write and read", place.latency_s, 1 / (1 / read.value + 1 / write.value), read, write)


def _copy_leg(place: Place) -> Leg:
    copy = place.copy_bandwidth_bytes_per_s
    if copy is None:
        return _through_leg(place)
    return _leg(f"{place.name} copy", place.latency_s, copy.value, copy)


def through(nbytes: int, bandwidth_bytes_per_s: float, latency_s: float, costs: Semantics) -> tuple[float, float]:
    """Latency and bandwidth of `nbytes` over so much of wire, with what the protocol costs in them."""
    wire = min(bandwidth_bytes_per_s, costs.rate_cap_bytes_per_s)
    return latency_s + float(costs.before_s(nbytes)), wire * costs.efficiency


def busy_s(
    place: Place,
    protocol: MemoryProtocol | MessageProtocol,
    path_s: float,
    bandwidth_bytes_per_s: float,
    access: Access,
) -> float:
    """The latency of a place under the load of the very loads that wait for it.

    More requests in flight load it more, and then each takes longer: the rate is where both agree. Without a curve of
    loaded latency, for stores and for messages it is the idle latency.
    """
    curve = place.loaded_latency
    if curve is None or access == "store" or not isinstance(protocol, MemoryProtocol):
        return place.latency_s.value
    low, high = 0.0, bandwidth_bytes_per_s
    for _ in range(60):
        rate = (low + high) / 2
        costs = protocol.semantics(1, path_s, access, _between(curve, rate))
        reached = min(bandwidth_bytes_per_s, costs.rate_cap_bytes_per_s) * costs.efficiency
        low, high = (rate, high) if reached > rate else (low, rate)
    return _between(curve, low)


def _link_leg(link: Link, forward: bool, nbytes: int, source: Place, rules: Rules) -> Leg:
    figure = link.bandwidth_bytes_per_s
    if not forward and link.back_bandwidth_bytes_per_s:
        figure = link.back_bandwidth_bytes_per_s
    latency, bandwidth = latency_of(link, rules.media), figure.value * link.lanes
    if link.protocol in ("memory", "message"):
        return _leg(f"{link.name} link", latency, bandwidth, figure)
    path_s = latency.value if latency else 0.0
    protocol = rules.protocols[link.protocol]
    memory_s = busy_s(source, protocol, path_s, bandwidth, rules.access)
    costs = semantics(protocol, nbytes, path_s, rules.access, memory_s)
    latency_s, bandwidth = through(nbytes, bandwidth, path_s, costs)
    worst = weakest([figure.source, protocol.source, *([latency.source] if latency else [])])
    return Leg(f"{link.name} link", latency_s, bandwidth, worst, beyond(protocol, nbytes))


def _ways(
    nbytes: int, source: Place, target: Place, places: dict[str, Place], links: Sequence[Link], rules: Rules
) -> list[list[Leg]]:
    """For each possible narrowest bandwidth, the way of least latency that is nowhere narrower.

    The fastest way for any number of bytes is among them: if its narrowest leg is b, the way found for b is
    as wide and has no more latency. So no list of all ways is needed, which would be exponential.
    """
    hops: dict[str, list[tuple[Leg, str]]] = {name: [] for name in places}
    for link in links:
        hops[link.from_place].append((_link_leg(link, True, nbytes, places[link.from_place], rules), link.to_place))
        hops[link.to_place].append((_link_leg(link, False, nbytes, places[link.to_place], rules), link.from_place))
    through = {name: _through_leg(place) for name, place in places.items()}
    widths = {leg.bandwidth_bytes_per_s for legs in hops.values() for leg, _ in legs}
    widths |= {leg.bandwidth_bytes_per_s for leg in through.values()}
    found = []
    for width in sorted(widths):
        middle = _least_latency(source.name, target.name, hops, through, width)
        if middle is None:
            break  # nor is there a wider way
        found.append([_end_leg(source, "read"), *middle, _end_leg(target, "write")])
    return found


def _least_latency(
    start: str,
    end: str,
    hops: dict[str, list[tuple[Leg, str]]],
    through: dict[str, Leg],
    width: float,
) -> list[Leg] | None:
    """Dijkstra's shortest path by latency, over links and intermediate places at least `width` wide."""
    queue: list[tuple[float, int, str, list[Leg]]] = [(0.0, 0, start, [])]
    done = set()
    pushed = 0  # breaks ties by age, so that the answer does not depend on how legs compare
    while queue:
        latency_s, _, at, way = heapq.heappop(queue)
        if at == end:
            return way
        if at in done:
            continue
        done.add(at)
        stage = [] if at == start else [through[at]]
        if any(leg.bandwidth_bytes_per_s < width for leg in stage):
            continue
        for hop, to in hops[at]:
            if to not in done and hop.bandwidth_bytes_per_s >= width:
                pushed += 1
                more_s = hop.latency_s + sum(leg.latency_s for leg in stage)
                heapq.heappush(queue, (latency_s + more_s, pushed, to, [*way, *stage, hop]))
    return None


def _pages(place: Place, page_bytes: int | None) -> Place | PageFigures:
    if page_bytes is None or page_bytes == place.page_bytes:
        return place
    for pages in place.other_pages:
        if pages.page_bytes == page_bytes:
            return pages
    known = [place.page_bytes, *(pages.page_bytes for pages in place.other_pages)]
    raise BadInput(f"place {place.name!r} has no figures for pages of {page_bytes} bytes, only for {known}")


def _under_load(place: Place, pages: Place | PageFigures, load: float) -> tuple[float, Source]:
    """The latency under load, drawn straight between the measured points and refused beyond them."""
    curve = place.loaded_latency
    if curve is None or pages is not place:
        raise BadInput(
            f"place {place.name!r} has no loaded latency for pages of {pages.page_bytes} bytes, "
            f"so its latency under {load:g} bytes/s is not known; ask without a load, or measure one"
        )
    first, last = curve.points[0], curve.points[-1]
    if not first.load_bytes_per_s <= load <= last.load_bytes_per_s:
        raise BadInput(
            f"a load of {load:g} bytes/s on {place.name!r} is outside the known range, "
            f"{first.load_bytes_per_s:g} to {last.load_bytes_per_s:g} bytes/s"
        )
    return _between(curve, load), curve.source


def _between(curve: LoadedLatency, load: float) -> float:
    """The latency at a load, drawn straight between points; before the first and after the last it is theirs."""
    if load <= curve.points[0].load_bytes_per_s:
        return curve.points[0].latency_s
    for low, high in pairwise(curve.points):
        if load <= high.load_bytes_per_s:
            part = (load - low.load_bytes_per_s) / (high.load_bytes_per_s - low.load_bytes_per_s)
            return low.latency_s + part * (high.latency_s - low.latency_s)
    return curve.points[-1].latency_s
