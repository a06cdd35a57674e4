"""From residencies to moves: each read begins as early as there is room, in the order in which it is needed.

A walk along the operators. Where the arena has room between now and the use of what is needed next, it is read now: the
lane is never idle while there is room, and many reads are outstanding. What is stored leaves once its Store has ended,
as far as the clock of the walk can tell, or when its room is needed. Moves have no offsets yet.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from openshelf.offload.planner.gaps import Residency, Schedule
from openshelf.offload.program.lifetimes import Numbers
from openshelf.offload.program.rates import Rates, Tier

PASSED = 8  # reads that may be overtaken
PREFETCH, RUN, STORE, DETACH = range(4)


class Move(NamedTuple):
    kind: int
    number: int  # of the storage, or of the operator


def moves_for(
    schedule: Schedule,
    residencies: Sequence[Residency],
    rates: Rates,
    homes: Sequence[Tier],
    budget: int,
    not_before: Mapping[tuple[int, int], int],
) -> list[Move]:
    """The moves for these residencies. `not_before`: (storage, position of use) -> the earliest position to read at."""
    return _Prefetcher(schedule, residencies, rates, homes, budget, not_before).moves()


class _Prefetcher:
    def __init__(
        self,
        schedule: Schedule,
        residencies: Sequence[Residency],
        rates: Rates,
        homes: Sequence[Tier],
        budget: int,
        not_before: Mapping[tuple[int, int], int],
    ) -> None:
        self.schedule, self.rates, self.homes, self.not_before = schedule, rates, homes, not_before
        self.room: Numbers = budget - schedule.occupied(residencies)
        self.leave: list[list[int]] = [[] for _ in schedule.order]  # storages whose residency ends after a position
        self.store: list[list[int]] = [[] for _ in schedule.order]
        self.queues: dict[Tier, deque[tuple[int, int, int]]] = {"flash": deque(), "dram": deque()}
        gone: dict[int, int] = {}  # where the residency before ended
        for one in sorted(residencies, key=lambda one: one.first):
            if one.loaded:
                self.queues[homes[one.storage]].append((one.first, one.storage, gone.get(one.storage, -1) + 1))
            gone[one.storage] = one.last
            self.leave[one.last].append(one.storage)
            if one.stored >= 0:
                self.store[one.stored].append(one.storage)
        self.now = self.moving_until = 0.0
        self.read_end: dict[Tier, float] = {"flash": 0.0, "dram": 0.0}
        self.write_end: dict[Tier, float] = {"flash": 0.0, "dram": 0.0}
        self.arrives: dict[int, float] = {}
        self.stores: dict[int, float] = {}  # when the Store of what is in the arena ends
        self.linger: list[tuple[float, int]] = []  # a heap: left but for its Store
        self.lingering = 0  # bytes
        self.out: list[Move] = []

    def moves(self) -> list[Move]:
        ops, sizes = self.schedule.program.ops, self.schedule.sizes
        slower = self.rates.slowdown
        for position, number in enumerate(self.schedule.order):
            self.flush(self.now)
            for home, queue in self.queues.items():
                self.pump(home, queue, position)
            while self.linger and self.room[position] < self.lingering:
                self.flush(self.linger[0][0])
            op = ops[number]
            for s in op.touches:
                self.now = max(self.now, self.arrives.pop(s, 0.0))
            seconds = op.seconds
            if slower > 1 and self.moving_until > self.now:
                seconds += min(self.moving_until - self.now, seconds * slower) * (1 - 1 / slower)
            self.now += seconds
            self.out.append(Move(RUN, number))
            for s in self.store[position]:
                self.begin_store(s)
            for s in self.leave[position]:
                if self.stores.get(s, 0.0) > self.now:
                    heapq.heappush(self.linger, (self.stores[s], s))
                    self.lingering += sizes[s]
                else:
                    self.detach(s)
        self.flush(float("inf"))
        return self.out

    def pump(self, home: Tier, queue: deque[tuple[int, int, int]], position: int) -> None:
        """Begin all reads for which it is time and there is room."""
        lane = self.rates.read(home)
        at = 0  # those before it are still in use, and not to be waited for
        while at < min(len(queue), PASSED):
            use, s, earliest = queue[at]
            if use > position and position < earliest:
                at += 1
                continue
            size = self.schedule.sizes[s]
            if use > position:
                if position < self.not_before.get((s, use), 0):
                    return
                window = self.room[position:use]
                if int(window.min()) < size or window[0] < size + self.lingering:
                    return
                window -= size
            if any(one == s for _, one in self.linger):
                if use > position:
                    window += size
                    return
                self.flush(self.stores[s])
            del queue[at]
            self.now += self.rates.call_s
            start = max(self.now, self.read_end[home])
            self.arrives[s] = self.read_end[home] = start + lane.seconds(self.schedule.program.storages[s].nbytes)
            self.moving_until = max(self.moving_until, self.read_end[home])
            self.out.append(Move(PREFETCH, s))

    def begin_store(self, s: int) -> None:
        home = self.homes[s]
        self.now += self.rates.call_s
        start = max(self.now, self.write_end[home])
        end = start + self.rates.write(home).seconds(self.schedule.program.storages[s].nbytes)
        self.stores[s] = self.write_end[home] = end
        self.moving_until = max(self.moving_until, end)
        self.out.append(Move(STORE, s))

    def flush(self, until: float) -> None:
        """Let go of everything whose Store ends by then."""
        while self.linger and self.linger[0][0] <= until:
            end, s = heapq.heappop(self.linger)
            self.lingering -= self.schedule.sizes[s]
            if until < float("inf"):
                self.now = max(self.now, end)
            self.detach(s)

    def detach(self, s: int) -> None:
        self.stores.pop(s, None)
        self.out.append(Move(DETACH, s))
