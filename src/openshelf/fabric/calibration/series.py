"""Measured rows: series of a collective by bytes, and phases of MoE exchanges by tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from openshelf.fabric.laws.tokens import Tokens, remote_copies

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
NAMES = {"sendrecv": "send_recv", "alltoall": "all_to_all"}
"""What nccl-tests call otherwise."""


@dataclass(frozen=True)
class Series:
    """One collective on some ranks, `per_node` of them on each node: (bytes, seconds) in rising order of bytes."""

    machine: str
    collective: str
    ranks: int
    per_node: int
    points: tuple[tuple[int, float], ...]
    library: str = ""

    @property
    def name(self) -> str:
        what = "send_recv" if self.collective == "send_recv" else f"{self.collective} of {self.ranks}"
        by = f" by {self.library}" if self.library else ""
        return f"{self.machine} {what}{by}, {self.per_node} a node"

    @property
    def channels(self) -> int:
        """Ways out of a node: every accelerator is taken to have a card of its own."""
        return self.per_node if self.where == "between" else 1

    @property
    def where(self) -> str:
        """`within` a node, or `between` nodes."""
        return "within" if self.ranks <= self.per_node else "between"

    @property
    def falls(self) -> tuple[int, ...]:
        """Sizes that took less time than a smaller one did: a sign of noise, or of another regime."""
        longest, found = 0.0, []
        for nbytes, seconds in self.points:
            if seconds < longest:
                found.append(nbytes)
            longest = max(longest, seconds)
        return tuple(found)


@dataclass(frozen=True)
class TokenRow:
    """One measured phase of an MoE exchange: so many tokens a rank, to `topk` of `experts` over `units`.

    A unit is a rank where one domain joins all, and a node where several are joined. `setting` is what else the
    kernel was told.
    """

    machine: str
    kernel: str
    phase: str
    setting: str
    units: int
    tokens: int
    hidden: int
    topk: int
    experts: int
    value_bytes: float
    sent_to: Literal["units", "experts"]
    seconds: float

    @property
    def load(self) -> Tokens:
        away = remote_copies(self.units, self.topk, self.experts, self.sent_to == "experts")
        return Tokens(self.tokens, self.units, away * self.hidden * self.value_bytes, self.one_sided)

    @property
    def over_nodes(self) -> bool:
        """Whether a unit is a node."""
        return self.kernel.startswith("DeepEP")

    @property
    def one_sided(self) -> bool:
        return "onesided" in self.kernel.lower()

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.kernel, self.phase, self.setting) if part)
