"""How early a read has to begin: as late as possible, but early enough that its lane is done in time.

Reads that begin earlier than that only take room, and break it up. Reckoned backwards from the times at which storages
are needed, if nothing waits: where the lane cannot keep up all reads come out as early as can be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openshelf.offload.planner.gaps import Residency, Schedule
from openshelf.offload.program.rates import Rates, Tier


def latest_starts(
    schedule: Schedule, residencies: Sequence[Residency], rates: Rates, homes: Sequence[Tier], margin: float
) -> dict[tuple[int, int], int]:
    """(storage, position of use) -> the position to read it at; `margin` seconds before it would be too late."""
    seconds = np.array([schedule.program.ops[number].seconds for number in schedule.order])
    clock = np.concatenate([[0.0], np.cumsum(seconds)])  # when the operator at each position begins
    found: dict[tuple[int, int], int] = {}
    starts: list[tuple[int, int, float]] = []
    idle_from: dict[Tier, float] = {"flash": float("inf"), "dram": float("inf")}
    for one in sorted((one for one in residencies if one.loaded), key=lambda one: one.first, reverse=True):
        home = homes[one.storage]
        end = min(float(clock[one.first]), idle_from[home])
        idle_from[home] = end - rates.read(home).seconds(schedule.program.storages[one.storage].nbytes)
        starts.append((one.storage, one.first, idle_from[home] - margin))
    positions = np.searchsorted(clock, np.array([start for _, _, start in starts]), side="right") - 1
    for (s, first, _), position in zip(starts, positions.tolist(), strict=True):
        found[s, first] = max(0, position)
    return found
