"""Offsets for moves as they are, from `space.place`: it sees all lifetimes at once, where the sweep of _arena sees one.

It takes quadratic time, so it is for programs of moderate length, and it may find no way within the budget.
"""

from __future__ import annotations

from collections.abc import Sequence

from openshelf.offload._course import Course
from openshelf.offload._lifetimes import ALIGNMENT, padded
from openshelf.offload._steps import Detach, Prefetch, Run, Step, Store, Wait
from openshelf.offload._walk import DETACH, PREFETCH, RUN, STORE, Move
from openshelf.space import place

MOST = 3000  # lifetimes


def settle_static(course: Course, moves: Sequence[Move], budget: int) -> list[Step] | None:
    """Steps with exactly these moves, or None if the offsets that are found do not fit."""
    ops, sizes = course.program.ops, course.sizes
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
    placement = place([(size, first, last) for size, first, last in lifetimes], ALIGNMENT)
    if placement.peak > budget:
        return None
    return _steps(course, moves, [tuple(placement.offsets[number] for number in one) for one in numbers])


def _steps(course: Course, moves: Sequence[Move], offsets: Sequence[tuple[int, ...]]) -> list[Step]:
    found: list[Step] = []
    coming: set[int] = set()
    for (kind, which), here in zip(moves, offsets, strict=True):
        if kind == PREFETCH:
            found.append(Prefetch(which, here[0]))
            coming.add(which)
        elif kind == RUN:
            for s in course.program.ops[which].touches:
                if s in coming:
                    coming.discard(s)
                    found.append(Wait(s))
            found.append(Run(which, here))
        else:
            found.append(Store(which) if kind == STORE else Detach(which))
    return found
