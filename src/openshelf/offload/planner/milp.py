"""Which storages stay, solved by HiGHS: the choice that moves the fewest seconds of bytes, within the room there is.

A yes or no for each gap, and for each stretch of operators a limit of bytes. Long programs are solved in groups of
neighbouring gaps, a few layers each, with all others as they are. When the lanes are free and what reads ahead need is
not in it: several reserves are tried, and the times of the candidates decide.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from openshelf.offload.planner.candidate import Candidate, work_out
from openshelf.offload.planner.gaps import Schedule
from openshelf.offload.planner.keep import crowding, gain
from openshelf.offload.program.lifetimes import Numbers
from openshelf.offload.program.rates import Rates

GROUP = 600  # gaps that are solved at once
RESERVES = (0.0, 0.1, 0.25)  # parts of the budget that are left for reads ahead


def solve_stays(best: Candidate, rates: Rates, budget: int, deadline: float) -> tuple[list[Candidate], str]:
    """Candidates with solved choices, and a note on how it went; no candidates without HiGHS or time."""
    try:
        import highspy
    except ImportError:
        return [], "not solved: HiGHS is not installed, pip install highspy"
    found: list[Candidate] = []
    choice = best.choice
    gains = [gain(choice.schedule, gap, rates, choice.homes) for gap in choice.schedule.gaps]
    for reserve in RESERVES:
        if time.thread_time() > deadline:
            break
        room = _room(choice.schedule, choice.room, int(budget * reserve))
        stays = _solve(highspy, choice.schedule, gains, list(choice.stays), room, deadline)
        found.append(work_out(dataclasses.replace(choice, stays=tuple(stays)), rates, budget))
    return found, f"HiGHS solved which storages stay, with {len(found)} of {len(RESERVES)} reserves"


def _room(schedule: Schedule, budget: int, reserve: int) -> Numbers:
    room = np.maximum(0, budget - schedule.must)
    return np.where(crowding(schedule, budget) > 0, np.maximum(0, room - reserve), room)


def _solve(
    highspy: Any, schedule: Schedule, gains: Sequence[float], stays: list[bool], room: Numbers, deadline: float
) -> list[bool]:
    order = sorted(range(len(schedule.gaps)), key=lambda number: schedule.gaps[number].before)
    sizes = [schedule.sizes[gap.storage] for gap in schedule.gaps]
    groups = [order[at : at + GROUP] for at in range(0, len(order), GROUP)]
    for group in groups:
        seconds = deadline - time.thread_time()
        if seconds <= 0:
            break
        left = room.copy()
        chosen = set(group)
        for number, gap in enumerate(schedule.gaps):
            if stays[number] and number not in chosen:
                left[gap.before + 1 : gap.after] -= sizes[number]
        for number, stay in zip(group, _solve_group(highspy, schedule, gains, group, left, seconds), strict=True):
            stays[number] = stay
    return stays


def _solve_group(
    highspy: Any, schedule: Schedule, gains: Sequence[float], group: Sequence[int], room: Numbers, seconds: float
) -> list[bool]:
    gaps = [schedule.gaps[number] for number in group]
    model = highspy.Highs()
    model.silent()
    model.setOptionValue("time_limit", max(0.1, min(seconds, 5.0)))
    model.setOptionValue("threads", 1)
    model.setOptionValue("mip_rel_gap", 1e-3)
    scale = max((gains[number] for number in group), default=1.0) or 1.0
    stay = [model.addBinary(obj=-gains[number] / scale) for number in group]
    # Between two of these positions the same gaps are open: one limit each, the least room in between.
    edges = sorted({gap.before + 1 for gap in gaps} | {gap.after for gap in gaps})
    page = 4096.0
    for first, last in pairwise(edges):
        open_ = [at for at, gap in enumerate(gaps) if gap.before < first and gap.after >= last]
        limit = max(0, int(room[first:last].min()))
        if sum(schedule.sizes[gaps[at].storage] for at in open_) > limit:
            values = np.array([schedule.sizes[gaps[at].storage] / page for at in open_])
            columns = np.array([stay[at].index for at in open_], np.int32)
            model.addRow(-highspy.kHighsInf, limit / page, len(open_), columns, values)
    model.run()
    solution = model.getSolution().col_value
    if len(solution) != len(group):
        return [False] * len(group)
    return [value > 0.5 for value in solution]
