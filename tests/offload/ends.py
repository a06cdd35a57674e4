"""The two plans at the ends: everything stays once it is there, and nothing given stays for longer than one operator.

The first needs the most memory and no time for transfers, the second is the least that is possible while all that
operators make stays. Both are placed by `place`.
"""

from __future__ import annotations

from openshelf.offload.program.program import Program
from openshelf.offload.program.steps import Detach, Prefetch, Run, Step, Store, Wait
from openshelf.space import place

Span = tuple[int, int, int]  # storage, first and last operator


def stay(program: Program) -> tuple[list[Step], int]:
    """All given storages are fetched before the first operator, nothing comes twice; steps and bytes of the arena."""
    first, last = _uses(program)
    spans = []
    for storage in program.storages:
        if storage.index in first:
            begin = 0 if storage.given else first[storage.index]
            spans.append((storage.index, begin, last[storage.index]))
    return _steps(program, spans, early=True)


def least(program: Program) -> tuple[list[Step], int]:
    """Given storages come right before each operator that touches them, and go right after it."""
    first, last = _uses(program)
    spans = [(one.index, first[one.index], last[one.index]) for one in program.storages
             if one.index in first and not one.given]  # fmt: skip
    spans += [(one, op.index, op.index) for op in program.ops for one in op.touches if program.storages[one].given]
    return _steps(program, spans, early=False)


def _uses(program: Program) -> tuple[dict[int, int], dict[int, int]]:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for op in program.ops:
        for one in op.touches:
            first.setdefault(one, op.index)
            last[one] = op.index
    return first, last


def _steps(program: Program, spans: list[Span], early: bool) -> tuple[list[Step], int]:
    rooms = [(op.workspace, op.index, op.index) for op in program.ops if op.workspace]
    placed = place([(program.storages[one].nbytes, begin, end) for one, begin, end in spans] + rooms, 64)
    coming: dict[int, list[tuple[int, int]]] = {}
    going: dict[int, list[int]] = {}
    for (one, begin, end), offset in zip(spans, placed.offsets, strict=False):
        coming.setdefault(begin, []).append((one, offset))
        going.setdefault(end, []).append(one)
    workspaces = iter(placed.offsets[len(spans) :])
    changed = {one for op in program.ops for one in op.changes}
    steps: list[Step] = []
    for op in program.ops:
        given = [(one, offset) for one, offset in coming.get(op.index, ()) if program.storages[one].given]
        steps += [Prefetch(one, offset) for one, offset in given]
        steps += [Wait(one) for one, _ in given]
        made = dict(coming.get(op.index, ()))
        room = (next(workspaces),) if op.workspace else ()
        steps.append(Run(op.index, tuple(made[one] for one in op.makes) + room))
        for one in going.get(op.index, ()):
            storage = program.storages[one]
            if storage.kept and (one in (changed if early else op.changes) or not storage.given):
                steps.append(Store(one))
            steps.append(Detach(one))
    return steps, placed.peak
