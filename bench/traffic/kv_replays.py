"""The peers of bench/kv_trace.py: LRU, S3-FIFO, ARC and an offline bound, replayed in Python; and the trace itself.

A request is a list of block ids, a prompt's in order. Its hit is the longest prefix that is there; then all of it is
used and put. Blocks are used from the last to the first, so that the first ones, without which the others are worth
nothing, are the youngest: a little better for every policy here than the other way round.
"""

from __future__ import annotations

import heapq
import json
import random
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from itertools import takewhile

from kit.data import DATA

Trace = list[list[int]]
NAME = "mooncake_conversation_trace.jsonl"
PATH = DATA / NAME


def load() -> tuple[Trace, str]:
    """The trace and what to say about it: a synthetic one where the file is missing."""
    if PATH.exists():
        with PATH.open() as lines:
            return [json.loads(line)["hash_ids"] for line in lines], ""
    return synthetic(), f"synthetic conversations; the real trace is skipped: no {PATH}"


def synthetic(conversations: int = 6000, seed: int = 1) -> Trace:
    """Conversations that begin at random, go on with a chance that grows with every turn, and grow by some blocks.

    Every prompt begins with one common block, and ends with one that is its own (a last block is seldom full).
    """
    chance, fresh, requests = random.Random(seed), iter(range(1, 1 << 40)), []
    for _ in range(conversations):
        at, prompt = chance.uniform(0, 3600), [0]
        for turn in range(100):
            added = int(chance.lognormvariate(2.2, 1.1)) if turn == 0 else int(chance.expovariate(0.4))
            prompt = prompt + [next(fresh) for _ in range(min(added, 200))]
            requests.append((at, [*prompt, next(fresh)]))
            if chance.random() > min(0.8, 0.35 + 0.1 * turn):
                break
            at += chance.lognormvariate(4.8, 1.0)
    return [prompt for _, prompt in sorted(requests)]


class Replay(ABC):
    """A cache of `room` blocks."""

    def __init__(self, room: int) -> None:
        self.room = room

    @abstractmethod
    def __contains__(self, block: int) -> bool: ...

    @abstractmethod
    def use(self, block: int) -> None:
        """Puts it where it is missing."""

    def request(self, prompt: list[int]) -> int:
        hit = sum(1 for _ in takewhile(self.__contains__, prompt))
        for block in reversed(prompt):
            self.use(block)
        return hit


class LRU(Replay):
    def __init__(self, room: int) -> None:
        super().__init__(room)
        self.blocks: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self.blocks

    def use(self, block: int) -> None:
        self.blocks[block] = None
        self.blocks.move_to_end(block)
        if len(self.blocks) > self.room:
            self.blocks.popitem(last=False)


class S3FIFO(Replay):
    """Yang et al., SOSP 2023: a small queue of a tenth, a main queue, and ghosts."""

    def __init__(self, room: int) -> None:
        super().__init__(room)
        self.small: deque[int] = deque()
        self.main: deque[int] = deque()
        self.ghosts: OrderedDict[int, None] = OrderedDict()
        self.uses: dict[int, int] = {}

    def __contains__(self, block: int) -> bool:
        return block in self.uses

    def use(self, block: int) -> None:
        if block in self.uses:
            self.uses[block] = min(3, self.uses[block] + 1)
            return
        while len(self.uses) >= self.room:
            self.evict()
        self.uses[block] = 0
        if block in self.ghosts:
            del self.ghosts[block]
            self.main.append(block)
        else:
            self.small.append(block)

    def evict(self) -> None:
        if len(self.small) >= max(1, self.room // 10) or not self.main:
            while self.small:
                block = self.small.popleft()
                if self.uses[block] == 0:
                    del self.uses[block]
                    self.ghosts[block] = None
                    if len(self.ghosts) > self.room:
                        self.ghosts.popitem(last=False)
                    return
                self.uses[block] = 0
                self.main.append(block)
        while self.main:
            block = self.main.popleft()
            if self.uses[block] == 0:
                del self.uses[block]
                return
            self.uses[block] -= 1
            self.main.append(block)


class ARC(Replay):
    """Megiddo and Modha, FAST 2003: seen once, seen again, and the ghosts of both, which move the border."""

    def __init__(self, room: int) -> None:
        super().__init__(room)
        self.once, self.again, self.once_ghosts, self.again_ghosts = (OrderedDict[int, None]() for _ in range(4))
        self.target = 0

    def __contains__(self, block: int) -> bool:
        return block in self.once or block in self.again

    def use(self, block: int) -> None:
        once, again, ghosts, again_ghosts = self.once, self.again, self.once_ghosts, self.again_ghosts
        if block in self:
            (once if block in once else again).pop(block)
        elif block in ghosts:
            self.target = min(self.room, self.target + max(len(again_ghosts) // len(ghosts), 1))
            self.replace(False)
            del ghosts[block]
        elif block in again_ghosts:
            self.target = max(0, self.target - max(len(ghosts) // len(again_ghosts), 1))
            self.replace(True)
            del again_ghosts[block]
        else:
            self.make_room()
            once[block] = None
            return
        again[block] = None

    def make_room(self) -> None:
        if len(self.once) + len(self.once_ghosts) == self.room:
            if len(self.once) == self.room:
                self.once.popitem(last=False)
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
        if size and (size > self.target or (of_again and size == self.target) or not self.again):
            self.once_ghosts[self.once.popitem(last=False)[0]] = None
        else:
            self.again_ghosts[self.again.popitem(last=False)[0]] = None


class Bound(Replay):
    """Belady's MIN, which knows what comes and need not put what comes late. Blocks count without those before them."""

    def __init__(self, room: int, trace: Trace) -> None:
        super().__init__(room)
        self.next_use: dict[int, int] = {}
        self.furthest: list[tuple[int, int]] = []
        self.at = 0
        self.uses: dict[int, deque[int]] = {}
        for at, prompt in enumerate(trace):
            for block in prompt:
                self.uses.setdefault(block, deque()).append(at)

    def __contains__(self, block: int) -> bool:
        return block in self.next_use

    def use(self, block: int) -> None:
        uses = self.uses[block]
        while uses and uses[0] <= self.at:
            uses.popleft()
        self.next_use.pop(block, None)
        if uses:
            self.next_use[block] = uses[0]
            heapq.heappush(self.furthest, (-uses[0], block))

    def request(self, prompt: list[int]) -> int:
        hit = sum(block in self for block in prompt)
        for block in prompt:
            self.use(block)
        while len(self.next_use) > self.room:
            at, block = heapq.heappop(self.furthest)
            if self.next_use.get(block) == -at:
                del self.next_use[block]
        self.at += 1
        return hit
