"""From moves to steps: every storage gets its offset in the arena.

A sweep along the moves with the list of free holes. What lives long goes to the low end, what is soon gone to the high
end, so that neither leaves holes in the other. If there is room in all but not in one piece, an early read is put off;
for what is needed now others leave for a while, at the least cost; and if all else fails the arena is emptied and
filled from the bottom with what one operator needs. So there is a result for every budget from the least on, and the
better the moves are, the less of that happens.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from openshelf.offload.planner.gaps import Schedule
from openshelf.offload.planner.offsets.free_list import FreeList, cheapest_room
from openshelf.offload.planner.prefetch import DETACH, PREFETCH, RUN, STORE, Move
from openshelf.offload.program.lifetimes import padded
from openshelf.offload.program.program import Op
from openshelf.offload.program.rates import Tier
from openshelf.offload.program.steps import Detach, Prefetch, Run, Step, Store, Wait


@dataclasses.dataclass
class _Block:
    offset: int
    size: int
    dirty: bool  # its home does not have these bytes
    coming: bool


def sweep(
    schedule: Schedule, moves: Sequence[Move], homes: Sequence[Tier], budget: int, long: int, others: frozenset[int]
) -> tuple[list[Step], int]:
    """Steps with offsets, and how many storages had to leave or to come later than in the moves.

    What is in the arena for more than `long` moves goes to its low end; for `others` it is the other way round.
    """
    found = _Sweep(schedule, moves, homes, budget, long, others)
    return found.steps(), found.repairs


class _Sweep:
    def __init__(
        self,
        schedule: Schedule,
        moves: Sequence[Move],
        homes: Sequence[Tier],
        budget: int,
        long: int,
        others: frozenset[int],
    ) -> None:
        self.schedule, self.given, self.homes, self.long, self.others = schedule, moves, homes, long, others
        self.budget = budget
        self.free = FreeList(budget)
        self.here: dict[int, _Block] = {}
        self.late: dict[Tier, deque[tuple[int, int]]] = {"flash": deque(), "dram": deque()}
        self.out: list[Step] = []
        self.repairs = 0
        self.at = 0
        self.leaves: list[list[int]] = [[] for _ in schedule.sizes]  # the moves that detach a storage
        self.used: list[list[int]] = [[] for _ in schedule.sizes]  # the moves that touch it
        for number, (kind, which) in enumerate(moves):
            if kind == DETACH:
                self.leaves[which].append(number)
            elif kind == RUN:
                for s in schedule.program.ops[which].touches:
                    self.used[s].append(number)

    def steps(self) -> list[Step]:
        ops = self.schedule.program.ops
        for at, (kind, which) in enumerate(self.given):
            self.at = at
            if kind == RUN:
                self.run(ops[which])
            elif kind == PREFETCH:
                self.late[self.homes[which]].append((which, self.at))
                self.begin_reads()
            elif kind == STORE:
                if which in self.here and self.here[which].dirty:
                    self.store(which)
            elif which in self.here:
                self.detach(which)
                self.begin_reads()
        return self.out

    def begin_reads(self) -> None:
        for queue in self.late.values():
            while queue and self.load(queue[0][0]):
                self.repairs += queue.popleft()[1] != self.at

    def load(self, s: int) -> bool:
        """Begin to read a storage, if there is a hole for it."""
        if s in self.here:
            return True
        offset = self.hole(s)
        if offset is None:
            return False
        self.here[s] = _Block(offset, self.schedule.sizes[s], dirty=False, coming=True)
        self.out.append(Prefetch(s, offset))
        return True

    def hole(self, s: int) -> int | None:
        stays = self.next_leave(s) - self.at
        return self.free.take(self.schedule.sizes[s], high=(stays <= self.long) != (s in self.others))

    def run(self, op: Op) -> None:
        needed = tuple(dict.fromkeys(op.reads + op.changes))
        offsets = self.fetch(needed) and self.offsets(op)
        if not offsets:
            for s in list(self.here):
                self.evict(s)
            offsets = self.fetch(needed) and self.offsets(op)
            assert offsets, "the budget is at least what one operator needs"
        for s in needed:
            if self.here[s].coming:
                self.out.append(Wait(s))
                self.here[s].coming = False
        self.out.append(Run(op.index, offsets[0]))
        for s in op.changes:
            self.here[s].dirty = True
        self.free.give(*offsets[1])

    def fetch(self, needed: Sequence[int]) -> bool:
        """Begin to read what the operator needs and is not there; False if its own storages are in the way."""
        for s in needed:
            if s in self.here:
                continue
            for queue in self.late.values():
                for one in [one for one in queue if one[0] == s]:
                    queue.remove(one)
            while not self.load(s):
                self.repairs += 1
                if not self.make_room(self.schedule.sizes[s], needed):
                    return False
        return True

    def offsets(self, op: Op) -> tuple[tuple[int, ...], tuple[int, int]] | None:
        """Where what the operator makes goes, and its workspace; None if its own storages are in the way."""
        touched = op.touches
        found: list[int] = []
        for s in op.makes:
            while (offset := self.hole(s)) is None:
                self.repairs += 1
                if not self.make_room(self.schedule.sizes[s], touched):
                    self.undo(op.makes[: len(found)])
                    return None
            self.here[s] = _Block(offset, self.schedule.sizes[s], dirty=True, coming=False)
            found.append(offset)
        work = padded(op.workspace)
        while (offset := self.free.take(work, high=True)) is None:
            self.repairs += 1
            if not self.make_room(work, touched):
                self.undo(op.makes)
                return None
        if op.workspace:
            found.append(offset)
        return tuple(found), (offset, work)

    def undo(self, made: Sequence[int]) -> None:
        for s in made:
            block = self.here.pop(s)
            self.free.give(block.offset, block.size)

    def make_room(self, size: int, needed: Sequence[int]) -> bool:
        """Let others leave so that `size` bytes in a row are free; False if that is not possible."""
        blocks = [
            (block.offset, block.size, float("inf") if s in needed else self.price(s, block), s)
            for s, block in self.here.items()
        ]
        chosen = cheapest_room(self.budget, size, blocks)
        if chosen is None:
            return False
        for s in chosen:
            self.evict(s)
        return True

    def price(self, s: int, block: _Block) -> float:
        """Bytes to move, and a little more the sooner it is used again."""
        used = self.used[s]
        at = bisect_left(used, self.at)
        if at == len(used) or (self.next_leave(s) < used[at]):
            return 0.0  # it has only to end its Store
        moved = block.size * (1 + block.dirty)
        return moved * (1 + 1 / (1 + used[at] - self.at))

    def next_leave(self, s: int) -> int:
        leaves = self.leaves[s]
        at = bisect_left(leaves, self.at)
        return leaves[at] if at < len(leaves) else len(self.given)

    def evict(self, s: int) -> None:
        block = self.here[s]
        if block.coming:
            self.out.append(Wait(s))
        if block.dirty:
            self.store(s)
        self.detach(s)

    def store(self, s: int) -> None:
        self.out.append(Store(s))
        self.here[s].dirty = False

    def detach(self, s: int) -> None:
        block = self.here.pop(s)
        if block.coming and self.out and not isinstance(self.out[-1], Wait):
            raise AssertionError("what nobody waited for does not leave")
        self.out.append(Detach(s))
        self.free.give(block.offset, block.size)
