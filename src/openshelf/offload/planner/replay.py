"""What happens when the steps of a plan are followed, one event after the other. The rules of steps are stated here.

    TAKE    s, offset    s has its room in the arena from now on: its read has just begun, or it is about to be made
    READ    s, offset    a transfer of s from its home begins
    ARRIVE  s, offset    operators wait until that has ended
    RUN     op, offset   the operator runs, its workspace at offset, or -1; what it makes was taken before
    WRITE   s, offset    a transfer of s to its home begins
    LAND    s, offset    operators wait until that has ended
    LEAVE   s, offset    the room of s is free again

Wait and Detach hold operators up only while a transfer of their storage is under way. Whoever runs a plan, for real, in
virtual time or on the twin, or asks what it needs, goes by these events. The checker of plans does not: it has rules of
its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from openshelf.offload.program.program import Program
from openshelf.offload.program.steps import Detach, Prefetch, Run, Step, Store

TAKE, READ, ARRIVE, RUN, WRITE, LAND, LEAVE = range(7)
Event = tuple[int, int, int]  # what, the storage or operator, offset; a plain tuple, for planners replay very often


class Replay:
    """Steps in their order: `at` says where each storage is that is in the arena now, `number` is the step's."""

    def __init__(self, program: Program, steps: Iterable[Step]) -> None:
        self.at: dict[int, int] = {}
        self.number = -1
        self._program, self._steps = program, steps

    def __iter__(self) -> Iterator[Event]:
        ops, steps, at = self._program.ops, self._steps, self.at
        under_way: dict[int, int] = {}  # how the wait for a storage's transfer is called
        for self.number, step in enumerate(steps):
            if isinstance(step, Run):
                op = ops[step.op]
                for s, offset in zip(op.makes, step.offsets, strict=False):
                    at[s] = offset
                    yield TAKE, s, offset
                yield RUN, step.op, step.offsets[-1] if op.workspace else -1
            elif isinstance(step, Prefetch):
                s, offset = step.storage, step.offset
                at[s], under_way[s] = offset, ARRIVE
                yield READ, s, offset
                yield TAKE, s, offset
            elif isinstance(step, Store):
                s = step.storage
                under_way[s] = LAND
                yield WRITE, s, at[s]
            else:
                s = step.storage
                if s in under_way:
                    yield under_way.pop(s), s, at[s]
                if isinstance(step, Detach):
                    yield LEAVE, s, at.pop(s)
