"""Media: what carries bits between two ends, how far, at what power, price and rate of failures.

The figures come with the package as data (`data/media.yaml`), and a fabric may bring or replace its own. Most published
tables have holes; a hole here is an absent key, and whoever needs it is told which one. Nothing is filled in silently.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from openshelf.fabric import yaml_reader
from openshelf.fabric.fields import Checked, Problem, above_zero, not_empty
from openshelf.fabric.model import Figure, weakest

DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True)
class Medium(Checked):
    """A kind of cable, module or wiring. Power, energy, price and failures are of one end: a link has two.

    `rate_bit_per_s` is what the power and the price are of; `failures_fit` counts failures in 10^9 hours.
    """

    name: str = field(metadata=not_empty)
    propagation_s_per_m: Figure
    note: str = ""
    rate_bit_per_s: float | None = field(default=None, metadata=above_zero)
    reach_m: Figure | None = None
    power_w: Figure | None = None
    energy_j_per_bit: Figure | None = None
    price_usd: Figure | None = None
    failures_fit: Figure | None = None
    end_latency_s: Figure | None = None

    def problems(self) -> list[Problem]:
        found = super().problems()
        if not found and self.rate_bit_per_s is None:
            for key in ("power_w", "price_usd"):
                if getattr(self, key):
                    found.append(((key,), "rate_bit_per_s is needed beside it: of which rate is it?"))
        if not found and self.power_w and self.energy_j_per_bit:
            found.append((("energy_j_per_bit",), "power_w is given too; one follows from the other, so leave one out"))
        return found

    @property
    def joules_per_bit(self) -> Figure | None:
        """Energy of one end per bit at full rate, given or derived from power; None if not known."""
        if self.energy_j_per_bit or not self.power_w or not self.rate_bit_per_s:
            return self.energy_j_per_bit
        watts = self.power_w
        note = f"{watts.value:g} W at {self.rate_bit_per_s / 1e9:g} Gb/s; {watts.note}"
        return Figure(watts.value / self.rate_bit_per_s, watts.source, note, watts.year)

    def latency(self, length_m: float) -> Figure:
        """One way through both ends and `length_m` of it; what the ends add is 0 if the medium does not say."""
        parts = [self.propagation_s_per_m, *([self.end_latency_s] if self.end_latency_s else [])]
        seconds = self.propagation_s_per_m.value * length_m + sum(2 * part.value for part in parts[1:])
        return Figure(seconds, weakest(part.source for part in parts), f"{length_m:g} m of {self.name}")


@dataclass(frozen=True)
class _Media(Checked):
    media: tuple[Medium, ...] = field(metadata=not_empty)


@cache
def media() -> dict[str, Medium]:
    """The media that come with the package, by name."""
    path = DATA / "media.yaml"
    return {each.name: each for each in yaml_reader.parse(_Media, path.read_bytes(), str(path)).media}
