"""Operators of a program at any length: measured at two lengths, and between these along a straight line."""

from __future__ import annotations

import dataclasses

from openshelf.offload.capture.affine import Lengths
from openshelf.offload.measure.operators import measured


@dataclasses.dataclass(frozen=True)
class TimedLengths:
    """`ends` are the seconds of each operator at the shortest and at the longest length that were captured.

    `outside`: the most bytes that torch takes beside the arena.
    """

    lengths: Lengths
    ends: tuple[tuple[float, float], ...]
    outside: int

    @classmethod
    def of(cls, lengths: Lengths, time_limit: float) -> TimedLengths:
        """`time_limit`: seconds for both."""
        high = measured(lengths.captured, time_limit=time_limit / 2)
        low = measured(lengths.low, time_limit=time_limit / 2) if lengths.shortest < lengths.longest else high
        ends = [(one.seconds, two.seconds) for one, two in zip(low.program.ops, high.program.ops, strict=True)]
        return cls(lengths, tuple(ends), max(high.outside, default=0))

    def seconds(self, op: int, length: int) -> float:
        """Never much less than at either end: a line through two measured times may go below zero."""
        low, high = self.ends[op]
        share = (length - self.lengths.shortest) / max(1, self.lengths.longest - self.lengths.shortest)
        return max(low + (high - low) * share, min(low, high) / 10)
