"""A process that does random things to shared words and writes down what it was answered, and when.

A history has plain words, which are loaded, stored, got and put, every value once; atomic words, to which everything
is done; and a lock with two words that only its holder touches. Words are never used twice, so each begins as zero;
those of one history share units with each other, and units keep the state that the histories before left them in.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from openshelf import Space
from openshelf.errors import UnknownName
from tests.elf import sanitizer
from tests.processes import State
from tests.space.hosts.harness import worker
from tests.space.hosts.harness.worker import WORDS

UNITS = 4  # of each host
MOST = WORDS // 8  # histories in one array

Word = tuple[int, int]  # home, index
Event = tuple[str, Word, Any, Any, int, int]  # kind, word, argument, result, call, answer

# How often each is done, per hundred.
MIX = {
    "load": 30, "store": 17, "get": 4, "put": 4,
    "a_load": 5, "a_store": 3, "add": 8, "cas": 6, "swap": 3, "plain_load": 4, "plain_store": 2,
    "section": 6, "try": 2, "prefetch": 3, "pause": 3,
}  # fmt: skip


class Plan(NamedTuple):
    """What one history is about; the same for all its processes."""

    plain: list[Word]
    atomic: list[Word]
    lock: int
    guarded: list[Word]


def plan(seed: int, history: int, hosts: int) -> Plan:
    chance = random.Random(f"{seed}/{history}")
    unit = chance.randrange(UNITS)

    def word(place: int) -> Word:
        """Most are in one unit of each host."""
        at = unit if chance.random() < 0.8 else chance.randrange(UNITS)
        return chance.randrange(hosts), at * WORDS + place * MOST + history % MOST

    return Plan([word(0), word(1), word(2)], [word(3), word(4)], chance.randrange(hosts), [word(5), word(6)])


def begin(state: State, where: str, host: int, first: bool) -> None:
    worker.enter(state, where)
    if first:
        worker.make(state, f"words{host}", UNITS)
        state["space"].lock(f"lock{host}")
    state["out"] = np.zeros(1, "uint64")


def _find(space: Space, name: str) -> Any:
    """A look-up skips hosts that do not answer, as one behind a bad link may not on a busy machine."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return space[name]
        except UnknownName:
            if time.monotonic() > deadline:
                raise


def meet(state: State, hosts: int) -> None:
    """When all have begun: every process maps everything."""
    state["arrays"] = [_find(state["space"], f"words{host}") for host in range(hosts)]
    state["locks"] = [state["space"].lock(f"lock{host}") for host in range(hosts)]
    state["views"] = [array.numpy() for array in state["arrays"]]
    state["explicit"] = hasattr(state["space"], "hosts")  # a space of one host has no get and put by address
    worker.quiet(state)


class _Hand:
    """The operations of one process in one history."""

    def __init__(self, state: State, process: int, seed: int, history: int, hosts: int) -> None:
        self.plan = plan(seed, history, hosts)
        self.chance = random.Random(f"{seed}/{history}/{process}")
        self.space, self.views, self.out = state["space"], state["views"], state["out"]
        self.arrays, self.lock = state["arrays"], state["locks"][self.plan.lock]
        self.explicit = state["explicit"]
        self.words = {w: self.arrays[w[0]].atomic(w[1]) for w in self.plan.atomic}
        self.next = (process + 1) << 32
        self.events: list[Event] = []
        self.sections: list[tuple[int, ...]] = []
        self.refused: list[tuple[int, int]] = []
        self.seen: dict[Word, int] = {}

    def fresh(self) -> int:
        self.next += 1
        return self.next

    def note(self, kind: str, word: Word, argument: Any, result: Any, start: int) -> None:
        self.events.append((kind, word, argument, result, start, time.monotonic_ns()))

    def load(self, words: list[Word] | None = None) -> None:
        word = self.chance.choice(words or self.plan.plain)
        view, index = self.views[word[0]], word[1]
        start = time.monotonic_ns()
        value = int(view[index])
        self.note("read", word, None, value, start)

    def store(self, words: list[Word] | None = None) -> None:
        word, value = self.chance.choice(words or self.plan.plain), self.fresh()
        view, index = self.views[word[0]], word[1]
        start = time.monotonic_ns()
        view[index] = value
        self.note("store", word, value, None, start)

    def plain_load(self) -> None:
        self.load(self.plan.atomic)

    def plain_store(self) -> None:
        self.store(self.plan.atomic)

    def get(self) -> None:
        word = self.chance.choice(self.plan.plain)
        address = self.arrays[word[0]].address + 8 * word[1]
        start = time.monotonic_ns()
        self.space.get(address, self.out).wait(20)
        self.note("read", word, None, int(self.out[0]), start)

    def put(self) -> None:
        word, value = self.chance.choice(self.plan.plain), self.fresh()
        address = self.arrays[word[0]].address + 8 * word[1]
        self.out[0] = value
        start = time.monotonic_ns()
        self.space.put(address, self.out).wait(20)
        self.note("write", word, value, None, start)

    def a_load(self) -> None:
        word = self.chance.choice(self.plan.atomic)
        start = time.monotonic_ns()
        self.seen[word] = self.words[word].load()
        self.note("read", word, None, self.seen[word], start)

    def a_store(self) -> None:
        word, value = self.chance.choice(self.plan.atomic), self.fresh()
        start = time.monotonic_ns()
        self.words[word].store(value)
        self.note("write", word, value, None, start)

    def add(self) -> None:
        word, more = self.chance.choice(self.plan.atomic), self.chance.randrange(1, 9)
        start = time.monotonic_ns()
        before = self.words[word].add(more)
        self.note("add", word, more, before, start)

    def swap(self) -> None:
        word, value = self.chance.choice(self.plan.atomic), self.fresh()
        start = time.monotonic_ns()
        before = self.words[word].exchange(value)
        self.note("swap", word, value, before, start)

    def cas(self) -> None:
        word, value = self.chance.choice(self.plan.atomic), self.fresh()
        expected = self.seen.get(word, 0)
        start = time.monotonic_ns()
        done, before = self.words[word].compare_and_swap(expected, value)
        self.note("cas", word, (expected, value), (bool(done), before), start)
        self.seen[word] = before

    def section(self, timeout: float | None = 20.0) -> None:
        start = time.monotonic_ns()
        if not self.lock.acquire(timeout):
            if timeout:
                raise TimeoutError("the lock was not to be had in 20 s")
            self.refused.append((start, time.monotonic_ns()))
            return
        held = time.monotonic_ns()
        views = [(self.views[home], index) for home, index in self.plan.guarded]
        read = [int(view[index]) for view, index in views]
        if len(set(read)) > 1:
            raise AssertionError(f"the words {self.plan.guarded} that a lock protects hold {read}, not one value")
        value = self.fresh()
        for view, index in views:
            view[index] = value
        let_go = time.monotonic_ns()
        self.lock.release()
        self.sections.append((start, held, let_go, time.monotonic_ns(), read[0], value))

    def try_(self) -> None:
        self.section(0)

    def prefetch(self) -> None:
        array = self.chance.choice(self.arrays)
        if self.explicit:
            array.prefetch(write=self.chance.random() < 0.3)

    def pause(self) -> None:
        time.sleep(self.chance.random() * 0.001)


def act(
    state: State, process: int, seed: int, history: int, hosts: int, steps: int, moment_ns: int
) -> tuple[list[Event], list[tuple[int, ...]], list[tuple[int, int]]]:
    """One process's part of a history."""
    hand = _Hand(state, process, seed, history, hosts)
    whole = hand.explicit and not sanitizer()  # ASan's memmove copies byte by byte: it tears words that are put or got
    doable: dict[str, Callable[[], None]] = {
        name: getattr(hand, "try_" if name == "try" else name) for name in MIX if whole or name not in ("get", "put")
    }
    todo = hand.chance.choices(list(doable.values()), [MIX[name] for name in doable], k=steps)
    worker.wait_until(moment_ns)
    for step in todo:
        step()
    return hand.events, hand.sections, hand.refused
