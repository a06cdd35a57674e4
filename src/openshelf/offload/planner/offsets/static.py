"""Offsets for moves as they are: all lifetimes are seen at once, where `sweep` sees one after the other.

`space.place` takes quadratic time, so this is for programs of moderate length, and may find no way within the budget.
Where there are few lifetimes, and the budget is tight, what did not fit is placed first the next time, some dozens of
times.
"""

from __future__ import annotations

from collections.abc import Sequence

from openshelf.offload.planner.gaps import Schedule
from openshelf.offload.planner.prefetch import DETACH, PREFETCH, RUN, STORE, Move
from openshelf.offload.program.lifetimes import ALIGNMENT, padded
from openshelf.offload.program.steps import Detach, Prefetch, Run, Step, Store, Wait
from openshelf.space import place

MOST = 3000  # lifetimes
FEW = 100  # so many that trying again costs little
TRIES = 40


def place_at_once(schedule: Schedule, moves: Sequence[Move], budget: int) -> list[Step] | None:
    """Steps with exactly these moves, or None if the offsets that are found do not fit."""
    ops, sizes = schedule.program.ops, schedule.sizes
    begins: dict[int, int] = {}  # storage -> its lifetime's number
    lifetimes: list[list[int]] = []  # size, first move, last move
    numbers: list[list[int]] = []  # for each move the lifetimes that begin with it
    for at, (kind, which) in enumerate(moves):
        numbers.append([])
        sizes_here: list[tuple[int, int]] = []
        if kind == PREFETCH:
            sizes_here = [(which, sizes[which])]
        elif kind == RUN:
            sizes_here = [(s, sizes[s]) for s in ops[which].makes]
            if ops[which].workspace:
                sizes_here.append((-1, padded(ops[which].workspace)))
        elif kind == DETACH:
            lifetimes[begins.pop(which)][2] = at
        for s, size in sizes_here:
            begins[s] = len(lifetimes)
            numbers[-1].append(len(lifetimes))
            lifetimes.append([size, at, at])
    if len(lifetimes) > MOST:
        return None
    offsets = _squeeze(lifetimes, budget) if len(lifetimes) <= FEW else _place(lifetimes, budget)
    if offsets is None:
        return None
    return _steps(schedule, moves, [tuple(offsets[number] for number in one) for one in numbers])


def _place(lifetimes: Sequence[Sequence[int]], budget: int) -> Sequence[int] | None:
    placement = place([(size, first, last) for size, first, last in lifetimes], ALIGNMENT)
    return placement.offsets if placement.peak <= budget else None


def _squeeze(lifetimes: Sequence[Sequence[int]], budget: int) -> Sequence[int] | None:
    """The largest first, each at the lowest free offset; what does not fit goes to the front, and all over again."""
    count = len(lifetimes)
    meets = [
        [b for b in range(count) if lifetimes[a][1] <= lifetimes[b][2] and lifetimes[b][1] <= lifetimes[a][2]]
        for a in range(count)
    ]
    order = sorted(range(count), key=lambda number: -lifetimes[number][0])
    for _ in range(TRIES):
        offsets = [-1] * count
        for number in order:
            size, offset = lifetimes[number][0], 0
            for start, end in sorted(
                (offsets[b], offsets[b] + lifetimes[b][0]) for b in meets[number] if offsets[b] >= 0
            ):
                if start - offset >= size:
                    break
                offset = max(offset, end)
            if offset + size > budget:
                order.remove(number)
                order.insert(0, number)
                break
            offsets[number] = offset
        else:
            return offsets
    return None


def _steps(schedule: Schedule, moves: Sequence[Move], offsets: Sequence[tuple[int, ...]]) -> list[Step]:
    found: list[Step] = []
    coming: set[int] = set()
    for (kind, which), here in zip(moves, offsets, strict=True):
        if kind == PREFETCH:
            found.append(Prefetch(which, here[0]))
            coming.add(which)
        elif kind == RUN:
            for s in schedule.program.ops[which].touches:
                if s in coming:
                    coming.discard(s)
                    found.append(Wait(s))
            found.append(Run(which, here))
        else:
            found.append(Store(which) if kind == STORE else Detach(which))
    return found
