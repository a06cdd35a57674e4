"""A candidate: a choice of what stays, what is made anew and when reads begin, worked out to steps and their times."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from openshelf.offload.planner.gaps import Schedule
from openshelf.offload.planner.offsets.static import place_at_once
from openshelf.offload.planner.offsets.sweep import sweep
from openshelf.offload.planner.prefetch import moves_for
from openshelf.offload.planner.simulate import Times, simulate
from openshelf.offload.program.rates import Rates, Tier
from openshelf.offload.program.steps import Step


@dataclasses.dataclass(frozen=True)
class Choice:
    """All that is chosen; the rest follows."""

    schedule: Schedule
    homes: tuple[Tier, ...]
    stays: tuple[bool, ...]  # for each gap of the schedule
    starts: Mapping[tuple[int, int], int]  # (storage, position of use) -> where its read may begin; 0 if missing
    room: int  # bytes that may be filled: less than the budget leaves some against fragmentation
    long: int  # what is in the arena for more moves than this goes to its low end
    later: Mapping[tuple[int, int], int] = dataclasses.field(default_factory=dict)
    """(storage, last use) -> the position to store it at, if that is not as soon as it can be."""
    others: frozenset[int] = frozenset()  # storages that go to the other end than `long` says


@dataclasses.dataclass(frozen=True)
class Candidate:
    choice: Choice
    steps: list[Step]
    times: Times
    repairs: int  # storages that had to move because there was no room in one piece

    @property
    def score(self) -> tuple[float, int]:
        """Time first; then fewer bytes that move."""
        return round(self.times.seconds, 9), sum(self.times.moved.values())


def work_out(choice: Choice, rates: Rates, budget: int) -> Candidate:
    """The steps for a choice, whatever it is, within the budget; the budget is at least the least and aligned."""
    schedule, homes = choice.schedule, choice.homes
    residencies = schedule.residencies(choice.stays)
    if choice.later:
        residencies = [
            dataclasses.replace(one, stored=max(one.stored, choice.later.get((one.storage, one.last), 0)))
            if one.stored >= 0
            else one
            for one in residencies
        ]
    moves = moves_for(schedule, residencies, rates, homes, choice.room, choice.starts)
    steps, repairs = sweep(schedule, moves, homes, budget, choice.long, choice.others)
    found = Candidate(choice, steps, simulate(schedule.program, steps, rates, homes), repairs)
    if repairs and (static := place_at_once(schedule, moves, budget)) is not None:
        other = Candidate(choice, static, simulate(schedule.program, static, rates, homes), 0)
        found = min(found, other, key=lambda one: one.score)
    return found
