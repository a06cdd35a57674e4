"""Walking a plan: where every storage is at each step, and whether each step may be done there.

A plan that breaks a rule of `_steps` is refused with the step that breaks it, before anything runs: an operator on
bytes that are not there would give wrong results, silently.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from openshelf.errors import BadInput
from openshelf.offload._program import Program
from openshelf.offload._steps import Detach, Prefetch, Run, Step, Store, Wait

ALIGNMENT = 64  # torch's own: kernels may take other paths, with other rounding, for other alignments


def follow(program: Program, steps: Iterable[Step], size: int) -> Iterator[tuple[Step, dict[int, int], bool]]:
    """Each step, where storages are after it, and, of a Detach, whether a Store was under way.

    The dict is valid until the next step. BadInput if a step may not come where it is.
    """
    arena = _Arena(program, size)
    for number, step in enumerate(steps):
        problem = arena.refused(step)
        if problem:
            raise BadInput(f"step {number} of this plan, {step}, cannot be done: {problem}")
        storing = isinstance(step, Detach) and step.storage in arena.storing
        arena.do(step)
        yield step, arena.at, storing
    missing = [one.name for one in program.storages if one.kept and one.index in arena.unsaved]
    if missing or arena.ran != len(program.ops):
        raise BadInput(
            f"this plan runs {arena.ran} of {len(program.ops)} operators, and loses what is to be kept: {missing[:5]}"
        )


class _Arena:
    def __init__(self, program: Program, size: int) -> None:
        self.program, self.size = program, size
        self.at: dict[int, int] = {}
        self.storing: set[int] = set()
        self.unsaved: set[int] = {one.index for one in program.storages if one.kept and not one.given}
        self.ran = 0
        self._arriving: set[int] = set()
        self._ran: set[int] = set()
        self._taken: list[tuple[int, int]] = []  # (begin, end), sorted

    def refused(self, step: Step) -> str:
        """Why this step cannot be done now, "" if it can."""
        if isinstance(step, Run):
            return self._refused_run(step)
        storage = self.program.storages[step.storage]
        if isinstance(step, Prefetch):
            if step.storage in self.at:
                return f"{storage.name} is in the arena already"
            return self._refused_room(storage.name, step.offset, storage.nbytes)
        if step.storage not in self.at:
            return f"{storage.name} is not in the arena"
        if isinstance(step, Wait):
            return "" if step.storage in self._arriving else f"{storage.name} is not on its way"
        return f"{storage.name} is still on its way" if step.storage in self._arriving else ""

    def _refused_run(self, step: Run) -> str:
        op, storages = self.program.ops[step.op], self.program.storages
        for one in (*op.reads, *op.changes):
            if one not in self.at or one in self._arriving:
                return f"{op.name} needs {storages[one].name}, which is not in the arena"
        for one in op.changes:
            if one in self.storing:
                return f"{op.name} changes {storages[one].name}, which is being stored"
        if step.op in self._ran and not op.again:
            return f"{op.name} may run once only"
        if len(step.offsets) != len(op.makes) + bool(op.workspace):
            return f"{op.name} makes {len(op.makes)} storages and needs {op.workspace} bytes beside"
        wanted = [(storages[one].name, storages[one].nbytes) for one in op.makes] + [("its workspace", op.workspace)]
        begun: list[tuple[int, int]] = []
        for (name, nbytes), offset in zip(wanted, step.offsets, strict=False):
            problem = self._refused_room(name, offset, nbytes)
            if problem or any(offset < end and begin < offset + nbytes for begin, end in begun):
                return problem or f"{name} is where something else is made"
            begun.append((offset, offset + nbytes))
        again = [storages[one].name for one in op.makes if one in self.at]
        return f"{again} is in the arena already" if again else ""

    def _refused_room(self, name: str, offset: int, nbytes: int) -> str:
        if offset % ALIGNMENT or offset < 0 or offset + nbytes > self.size:
            return f"{name} ({nbytes} bytes) at {offset}: not in an arena of {self.size}, or no multiple of {ALIGNMENT}"
        index = bisect_left(self._taken, (offset + nbytes, 0)) - 1
        if nbytes and index >= 0 and self._taken[index][1] > offset:
            return f"{name} ({nbytes} bytes) at {offset} would be where something else is"
        return ""

    def do(self, step: Step) -> None:
        if isinstance(step, Run):
            op = self.program.ops[step.op]
            for one, offset in zip(op.makes, step.offsets, strict=False):
                self._put(one, offset)
            for one in (*op.makes, *op.changes):
                if self.program.storages[one].kept:
                    self.unsaved.add(one)
            self.ran += step.op not in self._ran
            self._ran.add(step.op)
        elif isinstance(step, Prefetch):
            self._put(step.storage, step.offset)
            self._arriving.add(step.storage)
        elif isinstance(step, Wait):
            self._arriving.remove(step.storage)
        elif isinstance(step, Store):
            self.storing.add(step.storage)
            self.unsaved.discard(step.storage)
        else:
            offset = self.at.pop(step.storage)
            self.storing.discard(step.storage)
            nbytes = self.program.storages[step.storage].nbytes
            if nbytes:
                self._taken.remove((offset, offset + nbytes))

    def _put(self, storage: int, offset: int) -> None:
        self.at[storage] = offset
        nbytes = self.program.storages[storage].nbytes
        if nbytes:
            insort(self._taken, (offset, offset + nbytes))
