"""What a fabric's parts have to do with each other: names that must exist, reaches, and the topology they make."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from openshelf.errors import BadInput, OpenshelfError
from openshelf.fabric.cost import Cost, Leg, along, busy_s, require_size, through
from openshelf.fabric.fields import Path, Problem, nearest
from openshelf.fabric.model import Link, Place, Source, weakest
from openshelf.fabric.wiring.network import Ids, Network, Semantics
from openshelf.fabric.wiring.protocols import Access, beyond
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
    return topology.compile(fabric.topology, wires, switches)


def crossed(fabric: Fabric, path: Ids) -> list[Wire]:
    """The wires of the resources on a path."""
    joined = fabric.network
    wires = {each.name: each for each in fabric.wires}
    return [wires[joined.links[joined.resource_role(each)].name] for each in path.tolist()]


def semantics(fabric: Fabric, nbytes: int, source: int, target: int, access: Access) -> Semantics:
    """See `Fabric.semantics`."""
    require_size(nbytes)
    path = fabric.network.path(source, target)
    path_s = float(fabric.network.latency_s[path].sum())
    names = list(dict.fromkeys(wire.protocol for wire in crossed(fabric, path)))
    width = float(fabric.network.capacity_bytes_per_s[path].min(initial=math.inf))
    place, parts = _place(fabric, source), []
    for name in names:
        protocol = fabric.known_protocols[name]
        memory_s = busy_s(place, protocol, path_s, width, access) if place else 0.0
        parts.append(semantics_of(protocol, nbytes, path_s, access, memory_s))
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


def send(fabric: Fabric, nbytes: int, source: int, target: int, access: Access) -> Cost:
    """See `Fabric.send`."""
    costs = semantics(fabric, nbytes, source, target, access)
    joined, path = fabric.network, fabric.network.path(source, target)
    if not len(path):
        raise BadInput(f"source and target are both endpoint {source}: nothing crosses the network")
    legs = []
    for wire, resource in zip(crossed(fabric, path), path, strict=True):
        width = float(joined.capacity_bytes_per_s[resource])
        _, bandwidth = through(nbytes, width, 0.0, costs)
        label = f"{wire.name} ({joined.resource_role(int(resource))})"
        far = beyond(fabric.known_protocols[wire.protocol], nbytes)
        legs.append(Leg(label, float(joined.latency_s[resource]), bandwidth, _source(fabric, wire), far))
    before = Leg(costs.name, float(costs.before_s(nbytes)), float("inf"), weakest(leg.source for leg in legs))
    cost = along(nbytes, [before, *legs])
    if joined.whole_messages and nbytes:  # every hop takes in all bytes before it sends any on
        transfer_s = sum(nbytes / leg.bandwidth_bytes_per_s for leg in legs)
        cost = replace(cost, seconds=cost.latency_s + transfer_s, transfer_s=transfer_s)
    return cost


def _place(fabric: Fabric, endpoint: int) -> Place | None:
    """The memory at an endpoint; None if the fabric does not say what is there."""
    if endpoint >= fabric.network.ranks:
        return fabric.place(fabric.memory_endpoint) if fabric.memory_endpoint else None
    places = [each.place for each in fabric.compute if each.name == fabric.endpoint]
    return fabric.place(places[0]) if places else None


def _source(fabric: Fabric, wire: Wire) -> Source:
    latency = latency_of(wire, fabric.known_media)
    figures = [wire.bandwidth_bytes_per_s, *([latency] if latency else [])]
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
