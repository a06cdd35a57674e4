"""Lifetimes: when each storage of a program is used, and how much memory that needs at the least.

Sizes are rounded up to whole pages here, once, for everybody: direct reads want page-aligned memory and whole pages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from openshelf.errors import BadInput
from openshelf.offload.program.program import Program

Numbers = np.ndarray[Any, np.dtype[np.int64]]

ALIGNMENT = 4096


def padded(nbytes: int) -> int:
    """The bytes that a storage takes in the arena."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclasses.dataclass(frozen=True)
class Use:
    """That the operator at `position` touches a storage; `changed`: its bytes are others afterwards, `made`: new."""

    position: int
    changed: bool
    made: bool


@dataclasses.dataclass(frozen=True)
class Lifetimes:
    """The uses of each storage, in the order of the operators, and the bytes that follow from them."""

    sizes: tuple[int, ...]  # padded
    uses: tuple[tuple[Use, ...], ...]
    needs: tuple[int, ...]  # bytes in the arena while each operator runs: what it touches, and workspace
    live_peak: int  # the most bytes alive at once if nothing ever moves

    @property
    def least(self) -> int:
        """The smallest budget for which there is a plan: everything else can be moved away for each operator."""
        return max(self.needs, default=0)

    @property
    def tightest(self) -> int:
        """The operator that needs the least budget; -1 if there is none."""
        return self.needs.index(self.least) if self.needs else -1

    def written_back(self, program: Program) -> list[int]:
        """Storages whose bytes at the end differ from those at home, and are wanted."""
        return [
            storage.index
            for storage, uses in zip(program.storages, self.uses, strict=True)
            if storage.kept and any(use.changed for use in uses)
        ]


def lifetimes(program: Program) -> Lifetimes:
    """Uses and least budget of a program; BadInput if an operator reads what nobody gave or made."""
    sizes = tuple(padded(storage.nbytes) for storage in program.storages)
    uses = uses_along(program, range(len(program.ops)))
    needs = tuple(sum(sizes[s] for s in op.touches) + padded(op.workspace) for op in program.ops)
    count = len(program.ops)
    change = np.zeros(count + 1, np.int64)
    for storage, touched in zip(program.storages, uses, strict=True):
        _check_uses(program, storage.index, touched)
        first = 0 if storage.given else touched[0].position if touched else count
        last = count - 1 if storage.kept else touched[-1].position if touched else first - 1
        change[first] += sizes[storage.index]
        change[max(last, first - 1) + 1] -= sizes[storage.index]
    work = np.array([padded(op.workspace) for op in program.ops], np.int64)
    alive = np.cumsum(change)[:count] + work
    return Lifetimes(sizes, uses, needs, int(alive.max(initial=0)))


def uses_along(program: Program, order: Sequence[int]) -> tuple[tuple[Use, ...], ...]:
    """The uses of each storage when operators run in this order, some of them perhaps again."""
    uses: list[list[Use]] = [[] for _ in program.storages]
    for position, number in enumerate(order):
        op = program.ops[number]
        for s in op.touches:
            made = s in op.makes
            uses[s].append(Use(position, made or s in op.changes, made))
    return tuple(tuple(one) for one in uses)


def _check_uses(program: Program, index: int, uses: Sequence[Use]) -> None:
    storage = program.storages[index]
    if storage.index != index:
        raise BadInput(f"storage {storage.name!r} is number {index} of its program but has the index {storage.index}")
    made = [use.position for use in uses if use.made]
    where = f"storage {storage.name!r} of program {program.key!r}"
    if storage.given and made:
        raise BadInput(f"{where} is given, but operator {program.ops[made[0]].name!r} makes it; expected one of both")
    if uses and not storage.given and (len(made) != 1 or made[0] != uses[0].position):
        raise BadInput(
            f"{where} is not given, so the first operator that touches it must make it, and no other; "
            f"{program.ops[uses[0].position].name!r} is the first, {len(made)} make it"
        )
