"""Which storages stay in the arena between two uses: the greedy choice.

Staying saves a read, and a write if the storage has changed; it costs room for as long as the gap lasts, where room is
short. The gaps that save the most for what they cost stay, as long as all fit: with equal sizes and lanes that is
Belady's rule, the one that is used again last leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openshelf.offload.planner.gaps import Gap, Schedule
from openshelf.offload.program.lifetimes import Numbers
from openshelf.offload.program.rates import Rates, Tier


def gain(schedule: Schedule, gap: Gap, rates: Rates, homes: Sequence[Tier]) -> float:
    """Seconds of transfers that are saved if the storage stays."""
    nbytes, home = schedule.program.storages[gap.storage].nbytes, homes[gap.storage]
    return rates.read(home).seconds(nbytes) + (rates.write(home).seconds(nbytes) if gap.dirty else 0.0)


def crowding(schedule: Schedule, budget: int) -> Numbers:
    """Bytes over the budget at each position if everything stayed."""
    return np.maximum(0, schedule.occupied(schedule.residencies([True] * len(schedule.gaps))) - budget)


def choose_stays(schedule: Schedule, rates: Rates, homes: Sequence[Tier], budget: int, reserve: int) -> list[bool]:
    """For each gap whether the storage stays; `reserve` bytes are left for reads ahead."""
    gaps = schedule.gaps
    if not gaps:
        return []
    room = np.maximum(0, budget - schedule.must)
    over = crowding(schedule, budget)
    if not over.any():
        return [True] * len(gaps)
    room = np.where(over > 0, np.maximum(0, room - reserve), room)
    crowded = np.concatenate([[0.0], np.cumsum(over / float(over.max()))])
    before = np.array([gap.before for gap in gaps])
    after = np.array([gap.after for gap in gaps])
    sizes = np.array([schedule.sizes[gap.storage] for gap in gaps], np.float64)
    gains = np.array([gain(schedule, gap, rates, homes) for gap in gaps])
    price = sizes * (crowded[after] - crowded[before + 1])
    worth = np.full(len(gaps), np.inf)
    np.divide(gains, price, out=worth, where=price > 0)
    stays = [False] * len(gaps)
    for number in np.lexsort((after - before, -worth)).tolist():
        size, window = int(sizes[number]), room[before[number] + 1 : after[number]]
        if int(window.min()) >= size:
            window -= size
            stays[number] = True
    return stays
