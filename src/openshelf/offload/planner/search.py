"""The search for a good plan: greedy candidates with a few settings, the best of them refined.

The greedy rule has settings that no rule gives: how much room to leave for reads ahead, how early these are, how dear
running again is. The search tries a handful of them, the likely ones first, until a candidate is as good as any could
be or the time is over: that of the processor, so that a busy machine finds the same plans. A candidate costs a second
for a training step of 80 layers, so that is what time allows. Small programs are refined further (`refine.py`).
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np

from openshelf.offload.planner.candidate import Candidate, Choice, work_out
from openshelf.offload.planner.deadlines import latest_starts
from openshelf.offload.planner.gaps import Schedule
from openshelf.offload.planner.keep import choose_stays, crowding
from openshelf.offload.planner.milp import solve_stays
from openshelf.offload.planner.recompute import with_reruns
from openshelf.offload.planner.refine import refine, shake
from openshelf.offload.program.lifetimes import lifetimes
from openshelf.offload.program.program import Program
from openshelf.offload.program.rates import Rates, Tier
from openshelf.offload.program.steps import Prefetch, Store

STARTS = 4  # candidates that are refined
GOOD = 1.005  # a candidate this close to the bound is not worth more search


def search(
    program: Program, budget: int, rates: Rates, dram: int, time_limit: float, homes: tuple[Tier, ...] | None = None
) -> tuple[Candidate, list[str]]:
    """The best candidate found, and how it was found; `budget` is at least what `lifetimes` calls the least.

    With `homes` these are where storages live; else flash is, and `dram` bytes of host memory.
    """
    deadline = time.thread_time() + time_limit
    flash: tuple[Tier, ...] = homes or tuple("flash" for _ in program.storages)
    schedule = Schedule.of(program)
    notes: list[str] = []
    candidates = _greedy(schedule, budget, rates, flash, deadline)
    if dram and homes is None:
        candidates = _greedy(schedule, budget, rates, _homes(candidates[0], rates, dram), deadline)
    best = candidates[0]
    limit = GOOD * bound(program, rates, best.choice.homes)
    if best.times.seconds > limit:
        until = time.thread_time() + (deadline - time.thread_time()) / 2
        best = min((refine(one, rates, budget, until) for one in candidates), key=lambda one: one.score)
        notes.append("refined")
    if best.times.seconds > limit:
        solved, note = solve_stays(best, rates, budget, deadline)
        notes.append(note)
        best = min([best, *(refine(one, rates, budget, deadline) for one in solved)], key=lambda one: one.score)
    if best.times.seconds > limit:
        best = shake(best, rates, budget, deadline)
    return best, notes


def bound(program: Program, rates: Rates, homes: Sequence[Tier]) -> float:
    """Seconds that no plan is below.

    Each operator runs after everything given that was used so far has been read, with all other operators yet to run;
    and everything that is wanted is written after its last change. While bytes move, operators are slower.
    """
    seconds = np.array([op.seconds for op in program.ops])
    count = len(seconds)
    known = lifetimes(program)
    back = set(known.written_back(program))
    least = float(seconds.sum())
    for home in ("flash", "dram"):
        reads, writes = np.zeros(count + 1), np.zeros(count + 1)
        for s, uses in enumerate(known.uses):
            if homes[s] != home or not uses:
                continue
            nbytes = program.storages[s].nbytes
            if program.storages[s].given:
                reads[uses[0].position] += rates.read(home).seconds(nbytes)
            if s in back:
                writes[max(use.position for use in uses if use.changed)] += rates.write(home).seconds(nbytes)
        before = np.concatenate([[0.0], np.cumsum(seconds)])
        done = np.cumsum(reads)
        slowed = (done[-1] - done) * (1 - 1 / rates.slowdown)
        least = max(least, float((done + before[-1] - before + slowed).max()))
        least = max(least, float((np.cumsum(writes[::-1])[::-1][:count] + before[1:]).max(initial=0.0)))
    return least


@dataclasses.dataclass(frozen=True)
class _Setting:
    reserve: float  # part of the budget that is left for reads ahead
    ahead: float  # how many of the longest reads a read begins before it would be too late
    long: int
    full: float  # part of the budget to fill
    again: float  # the weight of seconds for running again; 0: never


def _settings() -> Iterator[_Setting]:
    """The likely ones first."""
    yield _Setting(0.1, 8, 50, 1.0, 0)
    yield _Setting(0.1, 8, 50, 1.0, 1)
    yield _Setting(0.0, float("inf"), 0, 1.0, 0)
    tries = itertools.product((50, 0), (1.0, 0.92), (0.1, 0.25, 0.0, 0.5), (2, 8, float("inf"), 0), (0, 1, 4))
    for long, full, reserve, ahead, again in tries:
        yield _Setting(reserve, ahead, long, full, again)


def _greedy(schedule: Schedule, budget: int, rates: Rates, homes: tuple[Tier, ...], deadline: float) -> list[Candidate]:
    """The best of the settings, the very best first; half of the time at the most."""
    limit = GOOD * bound(schedule.program, rates, homes)
    until = time.thread_time() + (deadline - time.thread_time()) / 2
    crowded = (crowding(schedule, budget) > 0).tolist()
    schedules: dict[float, Schedule] = {0: schedule}
    best: dict[tuple[float, int], Candidate] = {}  # by score
    for setting in _settings():
        if best and (min(best)[0] <= limit or time.thread_time() > until):
            break
        if setting.again not in schedules:
            schedules[setting.again] = with_reruns(schedule, rates, homes, crowded, setting.again)
        now = schedules[setting.again]
        if setting.again and now is schedule:
            continue
        room = max(int(budget * setting.full), int(now.must.max(initial=0)))
        stays = choose_stays(now, rates, homes, room, int(budget * setting.reserve))
        starts: dict[tuple[int, int], int] = {}
        if setting.ahead < float("inf"):
            longest = max(
                (rates.read(homes[s]).seconds(x.nbytes) for s, x in enumerate(schedule.program.storages)), default=0.0
            )
            starts = latest_starts(now, now.residencies(stays), rates, homes, setting.ahead * longest)
        found = work_out(Choice(now, homes, tuple(stays), starts, room, setting.long), rates, budget)
        best[found.score] = found
        if len(best) > STARTS:
            del best[max(best)]
    return [best[score] for score in sorted(best)]


def _homes(best: Candidate, rates: Rates, dram: int) -> tuple[Tier, ...]:
    """Host memory for what saves the most time there for its bytes, as long as it lasts; flash for the rest."""
    storages = best.choice.schedule.program.storages
    saved = [0.0] * len(storages)
    for step in best.steps:
        nbytes = storages[step.storage].nbytes if isinstance(step, Prefetch | Store) else 0
        if isinstance(step, Prefetch):
            saved[step.storage] += rates.flash_read.seconds(nbytes) - rates.dram_read.seconds(nbytes)
        elif isinstance(step, Store):
            saved[step.storage] += rates.flash_write.seconds(nbytes) - rates.dram_write.seconds(nbytes)
    homes: list[Tier] = ["flash"] * len(storages)
    sizes = best.choice.schedule.sizes
    for s in sorted(range(len(storages)), key=lambda s: -saved[s] / max(1, sizes[s])):
        if saved[s] > 0 and sizes[s] <= dram:
            homes[s] = "dram"
            dram -= sizes[s]
    return tuple(homes)
