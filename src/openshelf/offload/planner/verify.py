"""Is a list of steps a right way to run a program? A second opinion on every plan, which shares nothing with planners.

Each storage has a version: the operator that last made or changed it, or GIVEN. Running the program plainly gives the
version that each operator must see; here the versions in the arena and at home are followed along the steps. A plan
that loses bytes, reads old ones or puts two storages in one place is found at the step where it goes wrong.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Sequence
from typing import NoReturn

from openshelf.errors import BadInput
from openshelf.offload.program.lifetimes import ALIGNMENT, padded
from openshelf.offload.program.program import Op, Program
from openshelf.offload.program.steps import Detach, Prefetch, Run, Step, Store, Wait

GIVEN = -1
NOTHING = -2


@dataclasses.dataclass
class _Resident:
    offset: int
    version: int
    coming: bool = False  # its Prefetch has no Wait yet
    stored: bool = False  # there was a Store since it came


class _Arena:
    """The steps so far, and the rules for the next one."""

    def __init__(self, program: Program, budget: int) -> None:
        self.program, self.budget = program, budget
        self.number, self.step = -1, None  # type: tuple[int, Step | None]
        self.here: dict[int, _Resident] = {}
        self.taken: list[tuple[int, int]] = []  # (offset, end), sorted; nothing of no bytes
        self.home = [GIVEN if storage.given else NOTHING for storage in program.storages]
        self.plain = list(self.home)  # versions after the operators that have run for the first time
        self.saw: list[dict[int, int]] = []  # what each of these operators saw

    def wrong(self, why: str) -> NoReturn:
        raise BadInput(f"not a plan for program {self.program.key!r}: step {self.number}, {self.step}: {why}")

    def name(self, s: int) -> str:
        return f"storage {s} ({self.program.storages[s].name})"

    def take(self, offset: int, nbytes: int, what: str) -> None:
        end = offset + padded(nbytes)
        if offset < 0 or offset % ALIGNMENT or end > self.budget:
            self.wrong(f"{what} at {offset} to {end} is not in the arena of {self.budget} bytes, or not aligned")
        if not nbytes:
            return
        at = bisect_left(self.taken, (offset, end))
        around = self.taken[max(0, at - 1) : at + 1]
        if any(offset < other_end and start < end for start, other_end in around):
            self.wrong(f"{what} at {offset} to {end} overlaps {around}, which is in use")
        self.taken.insert(at, (offset, end))

    def give(self, offset: int, nbytes: int) -> None:
        if nbytes:
            self.taken.pop(bisect_left(self.taken, (offset, offset + padded(nbytes))))

    def ready(self, s: int) -> _Resident:
        one = self.here.get(s)
        if one is None:
            self.wrong(f"{self.name(s)} is not in the arena")
        if one.coming:
            self.wrong(f"{self.name(s)} is still being read: a Wait is missing")
        return one

    def prefetch(self, s: int, offset: int) -> None:
        if s in self.here:
            self.wrong(f"{self.name(s)} is in the arena already")
        if self.home[s] == NOTHING:
            self.wrong(f"{self.name(s)} was never stored")
        self.take(offset, self.program.storages[s].nbytes, self.name(s))
        self.here[s] = _Resident(offset, self.home[s], coming=True)

    def wait(self, s: int) -> None:
        if s not in self.here or not self.here[s].coming:
            self.wrong(f"nobody reads {self.name(s)}")
        self.here[s].coming = False

    def store(self, s: int) -> None:
        one = self.ready(s)
        if one.stored:
            self.wrong(f"{self.name(s)} was stored before, and cannot have changed since")
        one.stored = True
        self.home[s] = one.version

    def detach(self, s: int) -> None:
        one = self.ready(s)
        self.give(one.offset, self.program.storages[s].nbytes)
        del self.here[s]

    def run(self, number: int, offsets: tuple[int, ...]) -> None:
        op = self.program.ops[number]
        again = number < len(self.saw)
        if number > len(self.saw):
            self.wrong(f"operator {len(self.saw)} has not run yet")
        if again and (not op.again or op.changes):
            self.wrong(f"operator {op.name!r} must not run again")
        if len(offsets) != len(op.makes) + (op.workspace > 0):
            self.wrong(f"{len(op.makes)} offsets for what it makes, and one for a workspace of {op.workspace} bytes")
        if not again:
            self.saw.append({s: self.plain[s] for s in dict.fromkeys(op.reads + op.changes)})
        for s, version in self.saw[number].items():
            found = self.ready(s).version
            if found != version:
                self.wrong(f"{self.name(s)} has the bytes of operator {found}, expected those of {version}")
        self._results(op, offsets, again)

    def _results(self, op: Op, offsets: tuple[int, ...], again: bool) -> None:
        for s in op.changes:
            if self.here[s].stored:
                self.wrong(f"{self.name(s)} changes after it was stored")
            self.here[s].version = self.plain[s] = op.index
        for s, offset in zip(op.makes, offsets, strict=False):
            if s in self.here:
                self.wrong(f"{self.name(s)} is made, but is in the arena already")
            self.take(offset, self.program.storages[s].nbytes, self.name(s))
            self.here[s] = _Resident(offset, op.index)
            if not again:
                self.plain[s] = op.index
        if op.workspace:
            self.take(offsets[-1], op.workspace, "workspace")
            self.give(offsets[-1], op.workspace)

    def finish(self) -> None:
        self.number, self.step = self.number + 1, None
        if len(self.saw) != len(self.program.ops):
            self.wrong(f"it ends after {len(self.saw)} of {len(self.program.ops)} operators")
        if self.here:
            self.wrong(f"it ends with {', '.join(self.name(s) for s in self.here)} in the arena")
        for storage in self.program.storages:
            if storage.kept and self.home[storage.index] != self.plain[storage.index]:
                self.wrong(f"it ends without the last bytes of {self.name(storage.index)} at home")


def check_steps(program: Program, steps: Sequence[Step], budget: int) -> None:
    """Raises BadInput, naming step and reason, unless these steps run the program within `budget` bytes."""
    arena = _Arena(program, budget)
    for arena.number, step in enumerate(steps):
        arena.step = step
        match step:
            case Run():
                arena.run(step.op, step.offsets)
            case Prefetch():
                arena.prefetch(step.storage, step.offset)
            case Wait():
                arena.wait(step.storage)
            case Store():
                arena.store(step.storage)
            case Detach():
                arena.detach(step.storage)
    arena.finish()
