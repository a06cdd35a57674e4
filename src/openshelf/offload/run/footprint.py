"""What a process takes at most to plan, load and run a model: docs/offload.md, "Budgets", says what is counted."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from openshelf.offload.capture.captured import Captured
from openshelf.offload.measure.operators import measured_in
from openshelf.offload.planner.plan import Plan
from openshelf.space import format_size

PASSING = 32 << 20  # buffers through which weights, buffers and states come to flash
LIBRARIES = 48 << 20  # assumed: stacks of threads, packing for matrix products, Python's own


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Bytes: what the process had when plan() was called and when it was done, and what planning and a run take."""

    before: int
    planning: int
    now: int
    running: int

    @property
    def peak(self) -> int:
        return max(self.before + self.planning, self.now + self.running)

    def __str__(self) -> str:
        return (
            f"process  {format_size(self.peak)} at most: planning took up to {format_size(self.planning)} on top of "
            f"{format_size(self.before)}, a run takes {format_size(self.running)} on top of {format_size(self.now)}"
        )


def footprint(captured: Captured, plan: Plan, before: int, calibrated: int) -> Footprint:
    """`before` as resident() was; `calibrated`: bytes that measuring transfers took."""
    outputs = sum(one.nbytes for one in captured.program.storages if one.kind in ("input", "output"))
    running = plan.peak + max(captured.outside, default=0) + outputs + plan.dram + PASSING + LIBRARIES
    return Footprint(before, max(measured_in(captured), calibrated) + LIBRARIES, resident(), running)


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
