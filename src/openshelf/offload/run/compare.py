"""A prediction and what came: a plan is run on made-up weights, timed, and its memory measured.

The arena is marked before, with some bytes behind it, and looked at after a step: how far was anything written? What
torch takes beside it is counted while each instruction of a step runs.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openshelf._core import DeviceArena
from openshelf.offload.capture.captured import Captured
from openshelf.offload.measure.operators import generators_as_before
from openshelf.offload.move.mover import Traffic
from openshelf.offload.planner.plan import Plan
from openshelf.offload.program.call import views_of
from openshelf.offload.program.lifetimes import ALIGNMENT
from openshelf.offload.program.progress import shown
from openshelf.offload.program.torch import arena_bytes, torch
from openshelf.offload.run.arena import LEAST
from openshelf.offload.run.runner import Runner
from openshelf.offload.weights.source import packed_state
from openshelf.space import format_size

MARK = 0xA5
BEHIND = 1 << 20  # marked bytes behind the arena: nothing may be written there


@dataclasses.dataclass(frozen=True)
class Check:
    """Seconds of one run; bytes of the arena and of what torch took beside it."""

    predicted_s: float
    measured_s: float
    predicted_peak: int
    measured_peak: int
    lanes: Mapping[str, Traffic]

    @property
    def error(self) -> float:
        """0.1: it took a tenth longer than predicted."""
        return self.measured_s / self.predicted_s - 1

    @property
    def peak_error(self) -> float:
        """0.1: it took a tenth more memory than predicted."""
        return self.measured_peak / self.predicted_peak - 1

    def __str__(self) -> str:
        predicted, measured = format_size(self.predicted_peak), format_size(self.measured_peak)
        return (
            f"predicted {self.predicted_s:.4f} s and {predicted}, measured {self.measured_s:.4f} s ({self.error:+.1%}) "
            f"and {measured} ({self.peak_error:+.1%})"
        )


@shown("running the plan")
def compare(
    captured: Captured,
    plan: Plan,
    batches: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
    repeats: int,
    folder: Path | str | None,
) -> Check:
    """Runs `plan`, and compares time and memory with what it says. Random state is as before."""
    arena = DeviceArena(max(plan.peak, LEAST) + BEHIND)
    marked = arena_bytes(arena).fill_(MARK)
    packed = packed_state(captured, _made_up_weights(captured), folder)
    with generators_as_before(captured), Runner(captured, plan, packed, folder=folder, arena=arena) as run:
        outside = run.outside(batches)
        written = _written(marked)
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            run.step(batches)
            times.append(time.perf_counter() - begin)
        lanes = run.lanes()
    predicted = plan.peak + max(captured.outside, default=0)
    return Check(plan.times.seconds, statistics.median(times), predicted, written + outside, lanes)


def _written(marked: Any) -> int:
    """Where the last byte is that was written, rounded up as storages are."""
    for end in range(marked.numel(), 0, -BEHIND):
        part = marked[max(0, end - BEHIND) : end]
        places = (part != MARK).nonzero()
        if len(places):
            return (end - int(part.numel()) + int(places[-1])) // ALIGNMENT * ALIGNMENT + ALIGNMENT
    return 0


def _made_up_weights(captured: Captured) -> dict[str, Any]:
    dtypes = {view.storage: view.dtype for call in captured.calls for view in views_of((call.args, call.kwargs))}
    return {
        names[0]: _made_up(captured.program.storages[index].nbytes, dtypes.get(index, torch.uint8))
        for index, names in captured.names.items()
        if index not in captured.values
    }


def _made_up(nbytes: int, dtype: Any) -> Any:
    """Bytes of a storage: small numbers, so that none overflows; zeros where they may be indices."""
    if not dtype.is_floating_point:
        return torch.zeros(nbytes, dtype=torch.uint8)
    made = torch.rand(nbytes // dtype.itemsize, generator=torch.Generator().manual_seed(0))
    return made.mul_(0.04).sub_(0.02).to(dtype).view(torch.uint8)
