"""Rates: how fast bytes go between the arena and the homes of storages, as a planner counts it.

Four lanes, reading and writing for each kind of home. What is asked of a lane is done in the order in which it is
asked, one after the other; lanes do not disturb each other. Computing may be slower while bytes move: on a CPU both
use the same memory. To begin a transfer may take time of the thread that computes.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from openshelf.errors import BadInput
from openshelf.fabric import Fabric

Tier = Literal["flash", "dram"]
TIERS: tuple[Tier, ...] = ("flash", "dram")
LANES = ("flash_read", "flash_write", "dram_read", "dram_write")
_PROBE = 1 << 28  # bytes: long enough that the way which is fastest for large transfers is found


@dataclasses.dataclass(frozen=True)
class Lane:
    """One direction of one link: a transfer takes `latency_s` and its bytes at `bytes_per_s`."""

    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.bytes_per_s > 0 and math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise BadInput(f"a lane has bytes_per_s above 0 and latency_s 0 or more, got {self}")

    def seconds(self, nbytes: int) -> float:
        return self.latency_s + nbytes / self.bytes_per_s


@dataclasses.dataclass(frozen=True)
class Rates:
    """The lanes of flash and host memory; how many times longer operators take while bytes move; seconds of a call."""

    flash_read: Lane
    flash_write: Lane
    dram_read: Lane
    dram_write: Lane
    slowdown: float = 1.0
    call_s: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.slowdown) and self.slowdown >= 1):
            raise BadInput(f"slowdown is how many times longer operators take, 1 or more, got {self.slowdown!r}")
        if not (math.isfinite(self.call_s) and self.call_s >= 0):
            raise BadInput(f"call_s is the seconds that it takes to begin a transfer, 0 or more, got {self.call_s!r}")

    @classmethod
    def of(cls, fabric: Fabric, *, slowdown: float = 1.0) -> Rates:
        """The rates of a fabric: its first flash and DRAM places, to and from its device, or DRAM if it has none."""
        first = {place.tier: place.name for place in reversed(fabric.places)}
        if "dram" not in first or "flash" not in first:
            raise BadInput(
                f"a plan needs a place of tier dram and one of tier flash; fabric {fabric.name!r} has "
                f"{', '.join(f'{place.name} ({place.tier})' for place in fabric.places)}"
            )
        arena = first.get("device", first["dram"])

        def lane(source: str, target: str) -> Lane:
            cost = fabric.cost(_PROBE, source, target)
            return Lane(_PROBE / cost.transfer_s, cost.latency_s)

        return cls(
            lane(first["flash"], arena), lane(arena, first["flash"]),
            lane(first["dram"], arena), lane(arena, first["dram"]), slowdown,
        )  # fmt: skip

    def read(self, home: Tier) -> Lane:
        return self.flash_read if home == "flash" else self.dram_read

    def write(self, home: Tier) -> Lane:
        return self.flash_write if home == "flash" else self.dram_write

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Rates:
        return cls(**{lane: Lane(**plain[lane]) for lane in LANES}, slowdown=plain["slowdown"], call_s=plain["call_s"])
