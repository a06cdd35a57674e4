"""What a fabric's topology takes: pieces, watts, money, failures. What is not known is listed, never counted as 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openshelf.fabric.model import Figure, Source, weakest
from openshelf.fabric.wiring.media import Medium
from openshelf.fabric.wiring.wires import Wire

if TYPE_CHECKING:
    from openshelf.fabric.fabric import Fabric

HOURS_PER_YEAR = 8766
QUANTITIES = ("watts", "usd", "failures_per_year")


@dataclass(frozen=True)
class Item:
    """So many of one piece, and what all of them take; None is not known."""

    what: str
    count: float
    watts: float | None
    usd: float | None
    failures_per_year: float | None
    source: Source | None


@dataclass(frozen=True)
class Bill:
    """The pieces; totals are of what is known, and `unknown` says what is missing from each."""

    items: tuple[Item, ...]

    def total(self, quantity: str) -> float | None:
        """The sum of what is known of `watts`, `usd` or `failures_per_year`; None if nothing is."""
        known = [value for item in self.items if (value := getattr(item, quantity)) is not None]
        return sum(known) if known else None

    def unknown(self, quantity: str) -> list[str]:
        """The pieces that are missing from a total."""
        return [item.what for item in self.items if getattr(item, quantity) is None]


def bill(fabric: Fabric) -> Bill:
    """Endpoints, switches and wires of a fabric's topology."""
    network = fabric.network
    items = []
    computes = {each.name: each for each in fabric.compute}
    if fabric.endpoint:
        compute = computes[fabric.endpoint]
        items.append(_item(fabric.endpoint, network.ranks, compute.power_w, compute.price_usd, compute.failures_fit))
    else:
        items.append(_item("endpoints", network.ranks))
    if network.memories:
        items.append(_item(fabric.memory_endpoint or "memory nodes", network.memories))
    for kind, count in network.switches.items():
        switch = fabric.known_switches[kind.name]
        items.append(_item(switch.name, count, switch.power_w, switch.price_usd, switch.failures_fit))
    wires = {each.name: each for each in fabric.wires}
    for role, count in network.cables.items():
        wire = wires[network.links[role].name]
        items.append(_cables(wire, role, count, fabric.known_media.get(wire.medium)))
    return Bill(tuple(items))


def _item(
    what: str,
    count: float,
    power_w: Figure | None = None,
    price_usd: Figure | None = None,
    failures_fit: Figure | None = None,
) -> Item:
    used = [each.source for each in (power_w, price_usd, failures_fit) if each]
    watts, usd, fit = (each.value * count if each else None for each in (power_w, price_usd, failures_fit))
    failures = None if fit is None else fit * HOURS_PER_YEAR / 1e9
    return Item(what, count, watts, usd, failures, weakest(used) if used else None)


def _cables(wire: Wire, role: str, count: float, medium: Medium | None) -> Item:
    """Both ends of every cable, at its full rate."""
    bits = wire.total_bytes_per_s * 8
    modules = bits / medium.rate_bit_per_s if medium and medium.rate_bit_per_s else None

    def of(figure: Figure | None, per_end: Callable[[float], float]) -> float | None:
        return None if figure is None else 2 * count * per_end(figure.value)

    energy = medium.joules_per_bit if medium else None
    price = medium.price_usd if medium and modules else None
    failures = medium.failures_fit if medium and modules else None
    usd = of(price, lambda value: value * (modules or 0))
    if wire.price_usd:
        price, usd = wire.price_usd, wire.price_usd.value * count
    used = [each.source for each in (energy, price, failures) if each]
    return Item(
        what=f"{wire.name} ({role})",
        count=count,
        watts=of(energy, lambda value: value * bits),
        usd=usd,
        failures_per_year=of(failures, lambda value: value * (modules or 0) * HOURS_PER_YEAR / 1e9),
        source=weakest(used) if used else None,
    )
