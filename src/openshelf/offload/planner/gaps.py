"""A schedule: the operators of a program in the order in which they run, some perhaps again, and the gaps between uses.

A gap is the time between two uses of a storage in which nothing touches it. In each the storage stays in the arena or
leaves it; that, for all gaps, is the choice which a plan consists of. What follows from it without any choice are the
residencies: when each storage is in the arena at the least, and where it has to be stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from openshelf.offload.program.lifetimes import Numbers, Use, padded, uses_along
from openshelf.offload.program.program import Program


@dataclasses.dataclass(frozen=True)
class Gap:
    """Storage `storage` is used at the positions `before` and `after`, and not in between.

    `dirty`: to leave means to store, which would not be necessary otherwise.
    """

    storage: int
    before: int
    after: int
    dirty: bool


@dataclasses.dataclass(frozen=True)
class Residency:
    """A storage is in the arena from the use at `first` to that at `last`; `loaded`: its bytes come from its home.

    `stored`: the position after which it can be stored, the last that changes it; -1: it is not stored.
    """

    storage: int
    first: int
    last: int
    loaded: bool
    stored: int


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Operators in order, with what follows from it. `must`: bytes that are needed at each position at the least."""

    program: Program
    order: tuple[int, ...]
    sizes: tuple[int, ...]
    uses: tuple[tuple[Use, ...], ...]
    gaps: tuple[Gap, ...]
    must: Numbers

    @classmethod
    def of(cls, program: Program, order: Sequence[int] | None = None) -> Schedule:
        order = tuple(range(len(program.ops)) if order is None else order)
        uses = uses_along(program, order)
        sizes = tuple(padded(storage.nbytes) for storage in program.storages)
        gaps = [gap for s, along in enumerate(uses) for gap in _gaps(s, along, program.storages[s].kept)]
        needs = [sum(sizes[s] for s in op.touches) + padded(op.workspace) for op in program.ops]
        return cls(program, order, sizes, uses, tuple(gaps), np.array([needs[number] for number in order], np.int64))

    def residencies(self, stays: Sequence[bool]) -> list[Residency]:
        """When each storage is in the arena, if in these gaps (in the order of `gaps`) it stays."""
        leaves = {(gap.storage, gap.after) for gap, stay in zip(self.gaps, stays, strict=True) if not stay}
        found: list[Residency] = []
        for s, along in enumerate(self.uses):
            if along:
                found += _residencies(s, along, leaves, self.program.storages[s].kept)
        return found

    def occupied(self, residencies: Sequence[Residency]) -> Numbers:
        """Bytes in the arena at each position."""
        change = np.zeros(len(self.order) + 1, np.int64)
        for one in residencies:
            change[one.first] += self.sizes[one.storage]
            change[one.last + 1] -= self.sizes[one.storage]
        work = np.array([padded(self.program.ops[number].workspace) for number in self.order], np.int64)
        return np.cumsum(change)[: len(self.order)] + work


def _gaps(s: int, uses: Sequence[Use], kept: bool) -> list[Gap]:
    changes = [use.position for use in uses if use.changed]
    last_change = changes[-1] if changes else -1
    found = []
    changed = False
    for before, after in pairwise(uses):
        changed = changed or before.changed
        if after.position > before.position + 1 and not after.made:
            stored_anyway = kept and before.position >= last_change
            found.append(Gap(s, before.position, after.position, changed and not stored_anyway))
            changed = False
        elif after.made:
            changed = False
    return found


def _residencies(s: int, uses: Sequence[Use], leaves: set[tuple[int, int]], kept: bool) -> list[Residency]:
    found: list[Residency] = []
    first, loaded, changed, dirty = uses[0], not uses[0].made, -1, False
    for at, use in enumerate(uses):
        if use.changed:
            changed, dirty = use.position, True
        after = uses[at + 1] if at + 1 < len(uses) else None
        if after is not None and not after.made and (s, after.position) not in leaves:
            continue
        wanted = kept if after is None else not after.made
        found.append(Residency(s, first.position, use.position, loaded, changed if dirty and wanted else -1))
        if after is not None:
            dirty = dirty and not wanted
            first, loaded, changed = after, not after.made, -1
    return found
