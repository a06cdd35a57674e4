"""What a fabric's parts have to do with each other: names that must exist, reaches, and the topology they make."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from openshelf.errors import BadInput, OpenshelfError
from openshelf.fabric.cost import Cost, Leg, along, busy_s, require_size, through
from openshelf.fabric.fields import Path, Problem, nearest
from openshelf.fabric.model import Link, Place, Source, weakest
from openshelf.fabric.wiring.network import Ids, Network, Semantics
from openshelf.fabric.wiring.protocols import Access, MessageProtocol, beyond
from openshelf.fabric.wiring.protocols import semantics as semantics_of
from openshelf.fabric.wiring.wires import Wire, compiled, latency_of, medium_problems

if TYPE_CHECKING:
    from openshelf.fabric.fabric import Fabric


def network(fabric: Fabric) -> Network:
    """The compiled topology of a fabric."""
    from openshelf.fabric.wiring import topology

    if fabric.topology is None:
        raise BadInput(f"fabric {fabric.name!r} has no topology; add one under `topology:` (see docs/fabric.md)")
    wires = {each.name: compiled(each, fabric.known_media) for each in fabric.wires}
    switches = {name: each.compiled() for name, each in fabric.known_switches.items()}
    made = topology.compile(fabric.topology, wires, switches)
    if made.memories and not fabric.memory_endpoint and fabric.endpoint:
        raise BadInput(
            f"{made.memories} endpoints are memory only, and nothing says which: name a place as `memory_endpoint`"
        )
    if fabric.memory_endpoint:
        if not made.memories:
            raise BadInput(f"memory_endpoint is {fabric.memory_endpoint!r}, and the topology has no memory endpoints")
        made = _with_place(fabric, made, fabric.place(fabric.memory_endpoint), "memories", made.ranks)
    place = _place(fabric, made, 0)
    if place and made.ranks > 1:
        width = _ports_bytes_per_s(made)
        if min(place.read_bandwidth_bytes_per_s.value, place.write_bandwidth_bytes_per_s.value) < width:
            made = _with_place(fabric, made, place, "ranks", 0)
    return made


def _with_place(fabric: Fabric, made: Network, place: Place, which: str, endpoint: int) -> Network:
    """The network with a place at some endpoints: what is read and written there shares its bandwidth."""
    from openshelf.fabric.topologies import with_memory

    # Resources carry bytes with their framing, and a memory has none.
    last = int(made.path(1 if endpoint == 0 else 0, endpoint)[-1])
    wire = next(each for each in fabric.wires if each.name == made.links[made.resource_role(last)].name)
    share = semantics_of(fabric.known_protocols[wire.protocol], 1, 0.0).efficiency
    read, write = place.read_bandwidth_bytes_per_s.value / share, place.write_bandwidth_bytes_per_s.value / share
    return with_memory(made, read, write, 0.0, which)


def _ports_bytes_per_s(made: Network) -> float:
    """What the links that leave an endpoint carry together, as ways to some others show."""
    others = np.unique(np.linspace(1, made.endpoints - 1, min(256, made.endpoints - 1)).astype(np.int64))
    at, path = made.paths(np.zeros(len(others), np.int64), others)
    return float(made.capacity_bytes_per_s[np.unique(path[at[:-1]])].sum())


def crossed(fabric: Fabric, path: Ids) -> list[Wire]:
    """The wires of the resources on a path."""
    joined = fabric.network
    wires = {each.name: each for each in fabric.wires}
    return [wires[joined.links[joined.resource_role(each)].name] for each in _wired(joined, path).tolist()]


def _wired(joined: Network, path: Ids) -> Ids:
    """The part of a path that is wires, not memories."""
    return np.array([each for each in path.tolist() if joined.resource_role(each) in joined.links], np.int64)


def semantics(fabric: Fabric, nbytes: int, source: int, target: int, access: Access) -> Semantics:
    """See `Fabric.semantics`."""
    require_size(nbytes)
    path = fabric.network.path(source, target)
    path_s = float(fabric.network.latency_s[path].sum())
    names = list(dict.fromkeys(wire.protocol for wire in crossed(fabric, path)))
    width = float(fabric.network.capacity_bytes_per_s[path].min(initial=math.inf))
    place, parts = _place(fabric, fabric.network, source), []
    for name in names:
        protocol = fabric.known_protocols[name]
        memory_s = busy_s(place, protocol, path_s, width, access) if place else 0.0
        made = semantics_of(protocol, nbytes, path_s, access, memory_s)
        if isinstance(protocol, MessageProtocol) and len(names) > 1:
            # What is unacknowledged is so only along the wires that speak this protocol.
            own_s = _segment_s(fabric, path, name)
            made = replace(made, rate_cap_bytes_per_s=protocol.semantics(nbytes, own_s).rate_cap_bytes_per_s)
        parts.append(made)
    if not parts:
        return Semantics("none")
    if len(parts) == 1:
        return parts[0]
    # Each part counts the way of a load's request, which goes once.
    again_s = (len(names) - 1) * path_s if access == "load" else 0.0
    copied = sum(each.copies / each.copy_bytes_per_s for each in parts)
    split = max(parts, key=lambda each: each.fragment_s)
    return Semantics(
        name=" + ".join(each.name for each in parts),
        overhead_s=sum(each.overhead_s for each in parts) - again_s,
        fragment_s=split.fragment_s,
        fragment_bytes=split.fragment_bytes,
        copies=1.0 if copied else 0.0,
        copy_bytes_per_s=1 / copied if copied else float("inf"),
        rate_cap_bytes_per_s=min(each.rate_cap_bytes_per_s for each in parts),
        efficiency=min(each.efficiency for each in parts),
    )


def _segment_s(fabric: Fabric, path: Ids, protocol: str) -> float:
    own = _wired(fabric.network, path)
    speaks = [wire.protocol == protocol for wire in crossed(fabric, path)]
    return float(fabric.network.latency_s[own[np.array(speaks, bool)]].sum())


def send(fabric: Fabric, nbytes: int, source: int, target: int, access: Access) -> Cost:
    """See `Fabric.send`."""
    costs = semantics(fabric, nbytes, source, target, access)
    joined, path = fabric.network, fabric.network.path(source, target)
    if not len(path):
        raise BadInput(f"source and target are both endpoint {source}: nothing crosses the network")
    legs = []
    for resource in path.tolist():
        if joined.resource_role(resource) not in joined.links:
            place = _place(fabric, joined, source if resource == int(path[0]) else target)
            assert place is not None
            role, width = joined.resource_role(resource), float(joined.capacity_bytes_per_s[resource])
            figure = place.read_bandwidth_bytes_per_s if role.endswith("read") else place.write_bandwidth_bytes_per_s
            legs.append(Leg(f"{place.name} ({role})", 0.0, through(nbytes, width, 0.0, costs)[1], figure.source))
    for wire, resource in zip(crossed(fabric, path), _wired(joined, path).tolist(), strict=True):
        width = float(joined.capacity_bytes_per_s[resource])
        _, bandwidth = through(nbytes, width, 0.0, costs)
        label = f"{wire.name} ({joined.resource_role(int(resource))})"
        far = beyond(fabric.known_protocols[wire.protocol], nbytes)
        late = float(joined.latency_s[resource])
        legs.append(Leg(label, late, bandwidth, _source(fabric, wire, late), far))
    relayed = 0.0 if joined.whole_messages else joined.relay_s_per_byte(np.array([0, len(path)]), path)[0]
    before_s = float(costs.before_s(nbytes) + relayed * costs.wire_bytes(nbytes))
    before = Leg(costs.name, before_s, float("inf"), weakest(leg.source for leg in legs))
    cost = along(nbytes, [before, *legs])
    if joined.whole_messages and nbytes:  # every hop takes in all bytes before it sends any on
        transfer_s = sum(nbytes / leg.bandwidth_bytes_per_s for leg in legs)
        cost = replace(cost, seconds=cost.latency_s + transfer_s, transfer_s=transfer_s)
    return cost


def _place(fabric: Fabric, joined: Network, endpoint: int) -> Place | None:
    """The memory at an endpoint; None if the fabric does not say what is there."""
    if endpoint >= joined.ranks:
        return fabric.place(fabric.memory_endpoint) if fabric.memory_endpoint else None
    places = [each.place for each in fabric.compute if each.name == fabric.endpoint]
    return fabric.place(places[0]) if places else None


def _source(fabric: Fabric, wire: Wire, late_s: float) -> Source:
    """The weakest figure in a wire, its protocol, and the switch that it leaves, if one is in its latency."""
    latency = latency_of(wire, fabric.known_media)
    figures = [wire.bandwidth_bytes_per_s, *([latency] if latency else [])]
    more_s = late_s - (latency.value if latency else 0.0)
    for kind in fabric.network.switches:
        own = fabric.known_switches[kind.name].latency_s
        if own and math.isclose(own.value, more_s, rel_tol=1e-6):
            figures.append(own)
    return weakest([*(figure.source for figure in figures), fabric.known_protocols[wire.protocol].source])


def problems(fabric: Fabric) -> list[Problem]:
    """Everything wrong between the parts of a fabric."""
    if fabric.include:
        return [(("include",), "include is for files: Fabric.load joins them; here give the parts themselves")]
    found: list[Problem] = []
    named: list[tuple[Path, Link | Wire]] = [(("links", i), link) for i, link in enumerate(fabric.links)]
    named += [(("wires", i), wire) for i, wire in enumerate(fabric.wires)]
    for where, thing in named:
        if thing.medium:
            found += [((*where, *inner), message) for inner, message in medium_problems(thing, fabric.known_media)]
        plain = ["memory", "message"] if isinstance(thing, Link) else []
        if thing.protocol not in plain and thing.protocol not in fabric.known_protocols:
            names = [*plain, *sorted(fabric.known_protocols)]
            message = f"expected one of {', '.join(names)}; {thing.protocol!r} came{nearest(thing.protocol, names)}"
            found.append(((*where, "protocol"), message))
    computes, places = [each.name for each in fabric.compute], [each.name for each in fabric.places]
    for key, names in (("endpoint", computes), ("memory_endpoint", places)):
        name = getattr(fabric, key)
        if name and name not in names:
            message = f"no such name {name!r}; expected one of {', '.join(names) or '(none)'}{nearest(name, names)}"
            found.append(((key,), message))
    if fabric.library:
        found += fabric.library.wire_problems([each.name for each in fabric.wires])
    return found or _topology_problems(fabric)


def _topology_problems(fabric: Fabric) -> list[Problem]:
    if fabric.topology is None:
        return []
    from openshelf.fabric.wiring import topology

    known = {"wires": [each.name for each in fabric.wires], "switches": sorted(fabric.known_switches)}
    found: list[Problem] = []
    for where, kind, name in topology.names_used(fabric.topology):
        if name not in known[kind]:
            message = f"no such name {name!r} among {kind}; expected one of {', '.join(known[kind]) or '(none)'}"
            found.append((("topology", *where), message + nearest(name, known[kind])))
    if not found:
        try:
            _ = fabric.network  # kept: made once
        except OpenshelfError as error:
            found.append((("topology", fabric.topology.generator), str(error)))
        except MemoryError as error:
            found.append((("topology", fabric.topology.generator), f"too large for this machine's memory: {error}"))
    return found
