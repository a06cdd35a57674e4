"""What the simulation of a collective came to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from openshelf.twin.load import Load


@dataclass(frozen=True)
class Collective:
    """A collective's time, simulated; `how` says by what means, `load` what it did to the links."""

    kind: str
    algorithm: str
    ranks: int
    nbytes: float
    seconds: float
    how: str
    flows: int
    load: tuple[Load, ...]
    source: str = ""
    """The least trustworthy kind of figure that went into it, where a fabric says."""
    beyond: tuple[str, ...] = ()
    """Which sizes were extrapolated."""
    chunks: int = 1
    """In how many parts it went."""
    regime: str = ""
    """The regime of the fabric's library that it was run in, if any."""

    @property
    def approximate(self) -> bool:
        """It was too large to simulate flow by flow, and no step could stand for others."""
        return self.how.endswith("approximate")

    @property
    def bytes_per_s(self) -> float:
        """Bytes of the collective by its time: what nccl-tests call algorithm bandwidth."""
        return self.nbytes / self.seconds if self.seconds else math.inf

    @property
    def bus_bytes_per_s(self) -> float:
        """What nccl-tests call bus bandwidth: comparable with a link's."""
        parts = {"all_reduce": 2 * (self.ranks - 1) / self.ranks, "broadcast": 1.0, "send_recv": 1.0}
        return self.bytes_per_s * parts.get(self.kind, (self.ranks - 1) / self.ranks)

    def plain(self) -> dict[str, Any]:
        """Plain values for `json`."""
        return {
            "kind": self.kind, "algorithm": self.algorithm, "chunks": self.chunks, "ranks": self.ranks,
            "bytes": self.nbytes, "seconds": self.seconds, "bytes_per_s": self.bytes_per_s,
            "bus_bytes_per_s": self.bus_bytes_per_s,
            "how": self.how, "approximate": self.approximate, "flows": self.flows, "source": self.source,
            "beyond": list(self.beyond), "regime": self.regime,
            "load": [each.plain() for each in self.load],
        }  # fmt: skip
