"""The shortest time of a small program, solved exactly by HiGHS: what plans are measured against.

A mixed-integer model of all that steps can do, but for running again and for fragmentation: which storages stay in each
gap, at which operator each read begins and each storage leaves, and the order on each lane. It grows with the square of
the transfers, so it is for programs of some ten operators.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from openshelf.errors import BadInput, MissingExtra
from openshelf.offload.planner.gaps import Schedule
from openshelf.offload.program.program import Op, Program
from openshelf.offload.program.rates import Rates


def least_seconds(program: Program, budget: int, rates: Rates, *, time_limit: float = 60.0) -> float:
    """Seconds of the best plan with all homes on flash; BadInput if it is not found within the time limit."""
    if rates.slowdown != 1 or rates.call_s:
        raise BadInput(f"the exact model has a slowdown of 1 and a call_s of 0, got {rates.slowdown}, {rates.call_s}")
    try:
        import highspy
    except ImportError as error:
        raise MissingExtra("solving needs HiGHS: pip install openshelf[offload]") from error
    model = _Model(highspy, Schedule.of(_with_pauses(program)), budget, rates)
    return model.solve(time_limit)


def _with_pauses(program: Program) -> Program:
    """With an operator that does nothing before each: one more place where transfers can begin."""
    ops: list[Op] = []
    for op in program.ops:
        ops.append(Op(len(ops), "", ()))
        ops.append(dataclasses.replace(op, index=len(ops)))
    return Program(tuple(ops), program.storages, program.key)


class _Model:
    def __init__(self, highspy: Any, schedule: Schedule, budget: int, rates: Rates) -> None:
        self.highspy, self.schedule, self.rates = highspy, schedule, rates
        self.model = highspy.Highs()
        self.model.silent()
        program = schedule.program
        self.count = len(schedule.order)
        longest = sum(
            (rates.flash_read.seconds(x.nbytes) + rates.flash_write.seconds(x.nbytes)) * len(schedule.uses[x.index])
            for x in program.storages
        )
        self.unit = sum(op.seconds for op in program.ops) or 1.0  # times in the model are of the order of 1
        self.far = (longest + self.unit) / self.unit
        self.end = [self.time() for _ in range(self.count)]  # of each operator
        self.slot = [self.time() for _ in range(self.count)]  # when transfers before it can be asked for
        self.total = self.time()
        self.reads: list[tuple[Any, float, Any]] = []  # start, seconds, how much of it happens
        self.writes: list[tuple[Any, float, Any]] = []
        self.present: list[list[tuple[int, Any]]] = [[] for _ in range(self.count)]  # (bytes, 0 to 1) besides `must`
        for s in range(len(schedule.sizes)):
            if schedule.uses[s]:
                self.storage(s)
        for position, number in enumerate(schedule.order):
            self.add(self.slot[position] >= (self.end[position - 1] if position else 0))
            self.add(self.end[position] >= self.slot[position] + program.ops[number].seconds / self.unit)
            pages = sum(size / 4096 * there for size, there in self.present[position])
            if self.present[position]:
                self.add(pages <= (budget - int(schedule.must[position])) // 4096)
        self.add(self.total >= self.end[-1])
        self.in_turn(self.reads)
        self.in_turn(self.writes)

    def time(self) -> Any:
        return self.model.addVariable(lb=0)

    def add(self, constraint: Any) -> None:
        self.model.addConstr(constraint)

    def storage(self, s: int) -> None:
        """All absences of one storage, and the stores that they need."""
        uses, kept = self.schedule.uses[s], self.schedule.program.storages[s].kept
        if self.schedule.program.storages[s].given:
            back = self.by_position(0, uses[0].position, 1)
            self.read(s, uses[0].position, back, 1)
            for position, there in self.up_to(back, uses[0].position):
                self.present[position].append((self.schedule.sizes[s], there))
        gaps = {gap.before: gap for gap in self.schedule.gaps if gap.storage == s}
        changed, left = -1, 0.0  # the last change, and how often it has left since
        for use in uses:
            if use.changed:
                changed, left = use.position, 0.0
            gap = gaps.get(use.position)
            if gap is not None:
                leaves = self.model.addBinary()
                away = self.by_position(gap.before + 1, gap.after - 1, leaves)
                back = self.by_position(gap.before + 1, gap.after, leaves)
                self.read(s, gap.after, back, leaves)
                gone, came = dict(self.up_to(away, gap.after)), dict(self.up_to(back, gap.after))
                for position in range(gap.before + 1, gap.after):
                    self.present[position].append((self.schedule.sizes[s], 1 - gone[position] + came[position]))
                    self.add(gone[position] >= came[position])
                if changed >= 0:
                    self.store(s, changed, leaves - left, away)
                left = left + leaves
        if kept and changed >= 0:
            away = self.by_position(uses[-1].position + 1, self.count, 1)
            for position, gone_by in self.up_to(away, self.count):
                self.present[position].append((self.schedule.sizes[s], 1 - gone_by))
            self.store(s, changed, 1 - left, away)

    def by_position(self, first: int, last: int, total: Any) -> dict[int, Any]:
        """One yes among these positions if `total` is 1, none if it is 0."""
        found = {position: self.model.addBinary() for position in range(first, last + 1)}
        self.add(sum(found.values()) == total)
        return found

    def up_to(self, chosen: dict[int, Any], end: int) -> list[tuple[int, Any]]:
        """For each position before `end`: was it chosen there or before?"""
        found, so_far = [], 0.0
        for position in range(min(chosen), end):
            so_far = so_far + chosen[position] if position in chosen else so_far
            found.append((position, so_far))
        return found

    def read(self, s: int, use: int, back: dict[int, Any], happens: Any) -> None:
        start = self.time()
        seconds = self.rates.flash_read.seconds(self.schedule.program.storages[s].nbytes) / self.unit
        for position, here in back.items():
            self.add(start >= self.slot[position] - self.far * (1 - here))
        self.add(self.end[use] - self.seconds(use) >= start + seconds - self.far * (1 - happens))
        self.reads.append((start, seconds, happens))

    def store(self, s: int, changed: int, needed: Any, away: dict[int, Any]) -> None:
        happens = self.model.addBinary()
        self.add(happens >= needed)
        start = self.time()
        seconds = self.rates.flash_write.seconds(self.schedule.program.storages[s].nbytes) / self.unit
        self.add(start >= self.end[changed])
        for position, here in away.items():
            if position < self.count:
                self.add(self.slot[position] >= start + seconds - self.far * (2 - here - happens))
        self.add(self.total >= start + seconds - self.far * (1 - happens))
        self.writes.append((start, seconds, happens))

    def seconds(self, position: int) -> float:
        return self.schedule.program.ops[self.schedule.order[position]].seconds / self.unit

    def in_turn(self, transfers: Sequence[tuple[Any, float, Any]]) -> None:
        """One after the other, in any order."""
        for at, (start, seconds, happens) in enumerate(transfers):
            for other_start, other_seconds, other_happens in transfers[:at]:
                before = self.model.addBinary()
                slack = self.far * (2 - happens - other_happens)
                self.add(other_start >= start + seconds - self.far * (1 - before) - slack)
                self.add(start >= other_start + other_seconds - self.far * before - slack)

    def solve(self, time_limit: float) -> float:
        self.model.setOptionValue("time_limit", time_limit)
        self.model.setOptionValue("threads", 1)
        self.model.setOptionValue("mip_rel_gap", 1e-4)
        self.model.minimize(self.total)
        status = self.model.getModelStatus()
        if status != self.highspy.HighsModelStatus.kOptimal:
            raise BadInput(f"no optimum within {time_limit:g} s: {self.model.modelStatusToString(status)}")
        return float(self.model.val(self.total)) * self.unit
