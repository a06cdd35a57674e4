"""Which units leave a full memory: the known policies, simulated, for bench/tiers_policy.py.

A policy here sees every miss. Of the hits it sees all (window=None), or only what a keeper can see: uses of the
`window` units at the end of each of its queues, which are taken out of the page tables (armed) when they come there,
and only the first use of each, for that one puts it back. `seen` counts these uses: each costs the program a minor
fault.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Sequence


class Queue:
    """Units from the oldest to the newest; uses of the `window` oldest can be seen."""

    def __init__(self, window: int | None) -> None:
        self.window = window
        self.fresh: OrderedDict[int, None] = OrderedDict()
        self.watched: OrderedDict[int, bool] = OrderedDict()  # still armed?

    def __len__(self) -> int:
        return len(self.fresh) + len(self.watched)

    def __contains__(self, unit: int) -> bool:
        return unit in self.fresh or unit in self.watched

    def push(self, unit: int) -> None:
        if self.window is None:
            self.watched[unit] = True
        else:
            self.fresh[unit] = None

    def pop(self) -> int:
        """The oldest. What comes into the window is armed now, so one that leaves was watched while `window` left."""
        while self.fresh and len(self.watched) <= (self.window or 0):
            self.watched[self.fresh.popitem(last=False)[0]] = True
        return self.watched.popitem(last=False)[0]

    def remove(self, unit: int) -> None:
        if self.watched.pop(unit, None) is None:
            del self.fresh[unit]

    def sees(self, unit: int) -> bool:
        """Whether a use of this unit, just now, is seen."""
        armed = self.watched.get(unit, False)
        if armed and self.window is not None:
            self.watched[unit] = False
        return armed


class Policy(ABC):
    """A memory of `room` units."""

    def __init__(self, room: int, window: int | None = None) -> None:
        self.room, self.window = room, window
        self.seen = 0

    @abstractmethod
    def use(self, unit: int) -> bool:
        """Whether it was there. It is, afterwards."""

    def hits(self, trace: Sequence[int]) -> int:
        return sum(map(self.use, trace))


class LRU(Policy):
    """With a window: the segmented FIFO of VMS (Turner and Levy, SIGMETRICS 1981)."""

    def __init__(self, room: int, window: int | None = None) -> None:
        super().__init__(room, window)
        self.units = Queue(window)

    def use(self, unit: int) -> bool:
        found = unit in self.units
        if found:
            if not self.units.sees(unit):
                return True
            self.seen += 1
            self.units.remove(unit)
        elif len(self.units) >= self.room:
            self.units.pop()
        self.units.push(unit)
        return found


class S3FIFO(Policy):
    """Yang et al., SOSP 2023: a small queue of a tenth, a main queue, and ghosts."""

    def __init__(self, room: int, window: int | None = None) -> None:
        super().__init__(room, window)
        self.small, self.main = Queue(window), Queue(window)
        self.ghosts: OrderedDict[int, None] = OrderedDict()
        self.uses: dict[int, int] = {}

    def use(self, unit: int) -> bool:
        if unit in self.uses:
            if self.small.sees(unit) or self.main.sees(unit):
                self.seen += 1
                self.uses[unit] = min(3, self.uses[unit] + 1)
            return True
        while len(self.uses) >= self.room:
            self.evict()
        self.uses[unit] = 0
        if unit in self.ghosts:
            del self.ghosts[unit]
            self.main.push(unit)
        else:
            self.small.push(unit)
        return False

    def evict(self) -> None:
        if len(self.small) >= max(1, self.room // 10) or not len(self.main):
            while len(self.small):
                unit = self.small.pop()
                if self.uses[unit] == 0:
                    del self.uses[unit]
                    self.ghosts[unit] = None
                    if len(self.ghosts) > self.room:
                        self.ghosts.popitem(last=False)
                    return
                self.uses[unit] = 0
                self.main.push(unit)
        while len(self.main):
            unit = self.main.pop()
            if self.uses[unit] == 0:
                del self.uses[unit]
                return
            self.uses[unit] -= 1
            self.main.push(unit)


class ARC(Policy):
    """Megiddo and Modha, FAST 2003: seen once, seen again, and the ghosts of both, which move the border."""

    def __init__(self, room: int, window: int | None = None) -> None:
        super().__init__(room, window)
        self.once, self.again = Queue(window), Queue(window)
        self.once_ghosts: OrderedDict[int, None] = OrderedDict()
        self.again_ghosts: OrderedDict[int, None] = OrderedDict()
        self.target = 0

    def use(self, unit: int) -> bool:
        ghosts, again_ghosts = self.once_ghosts, self.again_ghosts
        for queue in (self.again, self.once):
            if unit in queue:
                if queue.sees(unit):
                    self.seen += 1
                    queue.remove(unit)
                    self.again.push(unit)
                return True
        if unit in ghosts:
            self.target = min(self.room, self.target + max(len(again_ghosts) // len(ghosts), 1))
            self.replace(False)
            del ghosts[unit]
            self.again.push(unit)
        elif unit in again_ghosts:
            self.target = max(0, self.target - max(len(ghosts) // len(again_ghosts), 1))
            self.replace(True)
            del again_ghosts[unit]
            self.again.push(unit)
        else:
            self.make_room()
            self.once.push(unit)
        return False

    def make_room(self) -> None:
        if len(self.once) + len(self.once_ghosts) == self.room:
            if len(self.once) == self.room:
                self.once.pop()
                return
            self.once_ghosts.popitem(last=False)
            self.replace(False)
            return
        known = len(self.once) + len(self.again) + len(self.once_ghosts) + len(self.again_ghosts)
        if known >= self.room:
            if known == 2 * self.room:
                self.again_ghosts.popitem(last=False)
            self.replace(False)

    def replace(self, of_again: bool) -> None:
        size = len(self.once)
        if size and (size > self.target or (of_again and size == self.target) or not len(self.again)):
            self.once_ghosts[self.once.pop()] = None
        else:
            self.again_ghosts[self.again.pop()] = None


class SIEVE(Policy):
    """Zhang et al., NSDI 2024: one list, and a hand that goes from its old end to its new end and lets used units pass.

    Units that are still before the hand are in `ahead`.
    """

    def __init__(self, room: int, window: int | None = None) -> None:
        super().__init__(room, window)
        self.ahead, self.passed = Queue(window), list[int]()
        self.used: dict[int, bool] = {}

    def use(self, unit: int) -> bool:
        if unit in self.used:
            # With all uses seen, those of units behind the hand count too: they are of the next round.
            if self.window is None or self.ahead.sees(unit):
                self.seen += 1
                self.used[unit] = True
            return True
        if len(self.used) >= self.room:
            self.evict()
        self.ahead.push(unit)
        self.used[unit] = False
        return False

    def evict(self) -> None:
        while True:
            if not len(self.ahead):
                for unit in self.passed:
                    self.ahead.push(unit)
                self.passed.clear()
            unit = self.ahead.pop()
            if not self.used[unit]:
                del self.used[unit]
                return
            self.used[unit] = False
            self.passed.append(unit)


class ClockPro(Policy):
    """Jiang, Chen and Zhang, USENIX ATC 2005: hot and cold units and ghosts on one clock.

    A cold unit is on trial until the hand of the hot ones has passed it, in memory or as a ghost; used in that time
    it becomes hot, and cold ones get more room. The clock is kept as queues, for a unit that a hand lets pass is the
    newest from that hand's view; `place` is the order on the clock, by which the hand of the hot units ends trials.
    """

    def __init__(self, room: int, window: int | None = None) -> None:
        super().__init__(room, window)
        self.cold, self.hot = Queue(window), Queue(window)
        self.used: dict[int, bool] = {}  # in memory
        self.trials: OrderedDict[int, None] = OrderedDict()  # by place
        self.place: dict[int, int] = {}
        self.ghosts: OrderedDict[int, None] = OrderedDict()
        self.now = 0
        self.cold_room = max(1, room // 100)

    def use(self, unit: int) -> bool:
        if unit in self.used:
            if self.cold.sees(unit) or self.hot.sees(unit):
                self.seen += 1
                self.used[unit] = True
            return True
        while len(self.used) >= self.room:
            self.run_cold()
        # Making room may have ended its trial.
        if unit in self.ghosts:
            del self.ghosts[unit]
            self.cold_room = min(self.room - 1, self.cold_room + 1)
            self.promote(unit)
        else:
            self.begin_trial(unit)
        self.used[unit] = False
        return False

    def stamp(self, unit: int) -> None:
        self.now += 1
        self.place[unit] = self.now

    def begin_trial(self, unit: int) -> None:
        self.stamp(unit)
        self.cold.push(unit)
        self.trials[unit] = None

    def end_trial(self, unit: int) -> None:
        """Not used in time: cold ones have too much room."""
        del self.trials[unit]
        self.ghosts.pop(unit, None)
        self.cold_room = max(1, self.room // 100, self.cold_room - 1)

    def promote(self, unit: int) -> None:
        self.trials.pop(unit, None)
        self.stamp(unit)
        self.hot.push(unit)
        while len(self.hot) > self.room - self.cold_room:
            self.run_hot()

    def run_cold(self) -> None:
        if not len(self.cold):
            self.run_hot()
            return
        unit = self.cold.pop()
        if not self.used[unit]:
            del self.used[unit]
            if unit in self.trials:
                self.ghosts[unit] = None
            if len(self.ghosts) > self.room:
                self.end_trial(next(iter(self.ghosts)))
            return
        self.used[unit] = False
        if unit in self.trials:
            self.cold_room = min(self.room - 1, self.cold_room + 1)
            self.promote(unit)
        else:
            self.begin_trial(unit)

    def run_hot(self) -> None:
        unit = self.hot.pop()
        while self.trials and self.place[first := next(iter(self.trials))] < self.place[unit]:
            self.end_trial(first)
        if self.used.get(unit):
            self.used[unit] = False
            self.stamp(unit)
            self.hot.push(unit)
        else:
            self.cold.push(unit)


class Frequency(Policy):
    """The units that are used most in the whole trace stay for ever: what counting alone could reach at best."""

    def hits(self, trace: Sequence[int]) -> int:
        return sum(count - 1 for _, count in Counter(trace).most_common(self.room))

    def use(self, unit: int) -> bool:
        raise NotImplementedError("it has to see the whole trace first")


class MIN(Policy):
    """Belady, IBM Systems Journal 1966: out goes what is used again last. The best that anybody can do, knowing all."""

    def hits(self, trace: Sequence[int]) -> int:
        never = len(trace)
        upcoming: dict[int, int] = {}
        next_use = [never] * never
        for at in range(never - 1, -1, -1):
            next_use[at] = upcoming.get(trace[at], never)
            upcoming[trace[at]] = at
        inside: dict[int, int] = {}
        furthest: list[tuple[int, int]] = []
        hits = 0
        for unit, following in zip(trace, next_use, strict=True):
            hits += unit in inside
            if unit not in inside and len(inside) >= self.room:
                while True:
                    at, out = heapq.heappop(furthest)
                    if inside.get(out) == -at:
                        del inside[out]
                        break
            inside[unit] = following
            heapq.heappush(furthest, (-following, unit))
        return hits

    def use(self, unit: int) -> bool:
        raise NotImplementedError("it has to see the whole trace first")
