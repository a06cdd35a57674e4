"""A fabric in short: counts, two sample ways, what it takes, where its figures are from, and what two differ in."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from openshelf.fabric.billing import QUANTITIES, bill
from openshelf.fabric.fields import Checked, shown
from openshelf.fabric.model import TRUST, Figure

if TYPE_CHECKING:
    from openshelf.fabric.fabric import Fabric

SAMPLES = (8, 4096, 1 << 20, 1 << 30)


def figures(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str, Figure]]:
    """Every figure in a value, and where it is."""
    if isinstance(value, Figure):
        return [(shown(path), value)]
    if isinstance(value, tuple):
        return [found for i, each in enumerate(value) for found in figures(each, (*path, i))]
    if isinstance(value, Checked):
        return [found for each in fields(value) for found in figures(getattr(value, each.name), (*path, each.name))]
    return []


def used_figures(fabric: Fabric) -> list[tuple[str, Figure]]:
    """The fabric's own figures, and those of the package's media, protocols and switches that it names."""
    found = figures(fabric)
    used = [(each.protocol, each.medium) for each in fabric.links]
    used += [(each.protocol, each.medium) for each in fabric.wires]
    named = {protocol for protocol, _ in used} - {"memory", "message"}
    own = set(fabric.protocols.all) if fabric.protocols else set()
    for name in sorted(named - own):
        found += figures(fabric.known_protocols[name], ("protocols", name))
    for name in sorted({medium for _, medium in used if medium}):
        if name not in {each.name for each in fabric.media}:
            found += figures(fabric.known_media[name], ("media", name))
    if fabric.topology:
        for kind in fabric.network.switches:
            if kind.name not in {each.name for each in fabric.switches}:
                found += figures(fabric.known_switches[kind.name], ("switches", kind.name))
    return found


def summary(fabric: Fabric) -> dict[str, Any]:
    """What `openshelf fabric show --json` prints."""
    counts = Counter(figure.source for _, figure in used_figures(fabric))
    made: dict[str, Any] = {
        "name": fabric.name,
        "note": fabric.note,
        "figures": {source: counts.get(source, 0) for source in TRUST},
        "places": [
            {
                "name": place.name,
                "tier": place.tier,
                "capacity_bytes": place.capacity_bytes.value,
                "read_bandwidth_bytes_per_s": place.read_bandwidth_bytes_per_s.value,
                "latency_s": place.latency_s.value,
            }
            for place in fabric.places
        ],
    }
    if fabric.library:
        made["library"] = fabric.library.name
    if fabric.topology is None:
        return made
    network, whole = fabric.network, bill(fabric)
    made |= {
        "topology": {"generator": fabric.topology.generator, "endpoint": fabric.endpoint, **network.describe()},
        "wires": [
            {
                "role": role,
                "wire": network.links[role].name,
                "cables": count,
                "bandwidth_bytes_per_s": network.links[role].bandwidth_bytes_per_s,
                "latency_s": network.links[role].latency_s,
            }
            for role, count in network.cables.items()
        ],
        "ways": [_way(fabric, label, target) for label, target in (("next", 1), ("farthest", network.ranks - 1))],
        "bill": {
            "items": [vars(item) for item in whole.items],
            **{key: {"known": whole.total(key), "unknown": whole.unknown(key)} for key in QUANTITIES},
        },
    }
    return made


def _way(fabric: Fabric, label: str, target: int) -> dict[str, Any]:
    costs = {nbytes: fabric.send(nbytes, 0, target) for nbytes in SAMPLES}
    return {
        "to": label,
        "endpoint": target,
        "semantics": fabric.semantics(SAMPLES[-1], 0, target).name,
        "hops": len(fabric.network.path(0, target)),
        "seconds": {str(nbytes): cost.seconds for nbytes, cost in costs.items()},
        "bottleneck": costs[SAMPLES[-1]].bottleneck,
        "source": costs[SAMPLES[-1]].source,
        "beyond": [text for cost in costs.values() for text in cost.beyond],
    }


def differences(one: Any, other: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str, Any, Any]]:
    """Where two plain values differ; entries of lists are matched by name where they have one."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = list(dict.fromkeys([*one, *other]))
        return [each for key in keys for each in differences(one.get(key), other.get(key), (*path, key))]
    if isinstance(one, list) and isinstance(other, list):
        named = [{_name(each, i): each for i, each in enumerate(items)} for items in (one, other)]
        return differences(named[0], named[1], path) if named[0] or named[1] else []
    return [] if one == other else [(".".join(str(part) for part in path), one, other)]


def _name(item: Any, i: int) -> str:
    return str(item["name"]) if isinstance(item, dict) and "name" in item else str(i)
