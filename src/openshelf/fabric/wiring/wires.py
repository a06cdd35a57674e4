"""Kinds of wires and switches: what a topology is built of, as data.

A wire is one cable or trace between two ends, made of lanes, in some medium, of some length, spoken over by some
protocol. How long a bit takes along it follows from medium and length, unless it is given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from openshelf.fabric import yaml_reader
from openshelf.fabric.fields import Checked, Problem, above_zero, nearest, not_empty
from openshelf.fabric.model import Figure, Link
from openshelf.fabric.wiring.media import DATA, Medium
from openshelf.fabric.wiring.network import LinkClass, SwitchClass


@dataclass(frozen=True)
class Wire(Checked):
    """A kind of wire: `bandwidth_bytes_per_s` is raw, of each lane and direction."""

    name: str = field(metadata=not_empty)
    protocol: str = field(metadata=not_empty)
    bandwidth_bytes_per_s: Figure
    lanes: int = field(default=1, metadata=above_zero)
    medium: str = ""
    length_m: Figure | None = None
    latency_s: Figure | None = None
    price_usd: Figure | None = None
    note: str = ""

    def problems(self) -> list[Problem]:
        found = super().problems()
        if not found and not self.medium and not self.latency_s:
            found.append(((), f"wire {self.name!r} has neither latency_s nor medium and length_m, which would give it"))
        return found

    @property
    def total_bytes_per_s(self) -> float:
        """Raw, all lanes, one direction."""
        return self.bandwidth_bytes_per_s.value * self.lanes


@dataclass(frozen=True)
class Switch(Checked):
    """A kind of switch: `packet`, or `circuit` (light is not looked at: no latency, but time to reconfigure).

    One that `reduces` adds up what passes through it, and copies what goes to many (NVLS, SHARP).
    """

    name: str = field(metadata=not_empty)
    ports: int = field(metadata=above_zero)
    port_bandwidth_bytes_per_s: Figure
    kind: Literal["packet", "circuit"] = "packet"
    note: str = ""
    latency_s: Figure | None = None
    power_w: Figure | None = None
    price_usd: Figure | None = None
    failures_fit: Figure | None = None
    reconfiguration_s: Figure | None = None
    forwarding: Literal["cut-through", "store-and-forward"] = "cut-through"
    reduces: bool = False

    def problems(self) -> list[Problem]:
        found = super().problems()
        if not found and self.kind == "circuit" and not self.reconfiguration_s:
            found.append(((), f"switch {self.name!r} switches circuits: reconfiguration_s is needed"))
        if not found and self.kind == "packet" and self.reconfiguration_s:
            found.append((("reconfiguration_s",), "expected with `kind: circuit` only: packets need none"))
        if not found and self.kind == "circuit" and self.reduces:
            found.append((("reduces",), "expected with `kind: packet` only: light is not looked at"))
        return found

    def compiled(self) -> SwitchClass:
        """For a topology's generator."""
        return SwitchClass(
            self.name,
            self.ports,
            self.latency_s.value if self.latency_s else 0.0,
            self.forwarding == "store-and-forward",
            self.reduces,
            self.port_bandwidth_bytes_per_s.value,
            self.reconfiguration_s.value if self.reconfiguration_s else 0.0,
        )


@dataclass(frozen=True)
class _Switches(Checked):
    switches: tuple[Switch, ...] = field(metadata=not_empty)


@cache
def switches() -> dict[str, Switch]:
    """The switches that come with the package, by name."""
    path = DATA / "switches.yaml"
    return {each.name: each for each in yaml_reader.parse(_Switches, path.read_bytes(), str(path)).switches}


def latency_of(wire: Wire | Link, media: dict[str, Medium]) -> Figure | None:
    """One way along a wire or link, given or from its medium and length; None if neither is known."""
    if wire.latency_s or not wire.medium or not wire.length_m:
        return wire.latency_s
    return media[wire.medium].latency(wire.length_m.value)


def compiled(wire: Wire, media: dict[str, Medium]) -> LinkClass:
    """For a topology's generator."""
    latency = latency_of(wire, media)
    return LinkClass(wire.name, wire.total_bytes_per_s, latency.value if latency else 0.0)


def medium_problems(wire: Wire | Link, media: dict[str, Medium]) -> list[Problem]:
    """A medium that is unknown, a length that is missing, a reach that is exceeded or not known."""
    medium = media.get(wire.medium)
    if medium is None:
        known = sorted(media)
        message = f"no medium is named {wire.medium!r}; expected one of {', '.join(known)}{nearest(wire.medium, known)}"
        return [(("medium",), message)]
    if wire.length_m is None:
        return [((), f"length_m is missing: how far does {wire.name!r} go? {medium.name} has a reach")]
    if medium.reach_m is None:
        message = (
            f"the reach of {medium.name} is not known, so a length of {wire.length_m.value:g} m cannot be checked; "
            "give the medium under `media:` with a reach_m (`source: assumed` if it is a guess)"
        )
        return [(("medium",), message)]
    if wire.length_m.value > medium.reach_m.value:
        farther = [each.name for each in media.values() if each.reach_m and each.reach_m.value >= wire.length_m.value]
        message = (
            f"{wire.length_m.value:g} m is beyond the reach of {medium.name}, {medium.reach_m.value:g} m"
            f" ({medium.reach_m.source}); these reach it: {', '.join(farther) or 'none'}"
        )
        return [(("length_m",), message)]
    return []
