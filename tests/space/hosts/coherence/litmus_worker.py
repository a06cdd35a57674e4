"""The threads of litmus tests: each does a few loads and stores per round, on words that are new in every round.

Rounds begin by the clock, which all processes share, so that nothing but the words themselves passes between them.
"""

from __future__ import annotations

import random
import time
from typing import Any

from tests.processes import State
from tests.space.hosts.harness import machine, worker
from tests.space.hosts.harness.worker import WORDS

Step = tuple[str, str, int]  # "w" or "r", variable, value


def begin(state: State, url: str, host: int, first: bool) -> None:
    worker.enter(state, url)
    if first:
        worker.make(state, f"litmus{host}", 4)


def rounds(
    state: State,
    steps: list[Step],
    places: dict[str, tuple[int, float]],
    first: int,
    count: int,
    moment_ns: int,
    step_ns: int,
    seed: int,
) -> list[tuple[int, ...]]:
    """What each round read. `places`: home and unit of every variable; the word in the unit is the round's number."""
    worker.quiet(state)
    views = {name: worker.view(state, f"litmus{home}")[int(unit * WORDS) :] for name, (home, unit) in places.items()}
    work = [(what == "w", views[name], value) for what, name, value in steps]
    chance = random.Random(seed)
    outcomes = []
    for index in range(first, first + count):
        rest = moment_ns + (index - first) * step_ns + chance.randrange(step_ns // 2) - time.monotonic_ns()
        if rest > 0:
            time.sleep(rest / 1e9)
        read = []
        for write, view, value in work:
            if write:
                view[index] = value
            else:
                read.append(int(view[index]))
        outcomes.append(tuple(read))
    return outcomes


def values(state: State, places: dict[str, tuple[int, float]], first: int, count: int) -> dict[str, list[int]]:
    """The words at the end."""
    return {
        name: worker.view(state, f"litmus{home}")[int(unit * WORDS) + first :][:count].tolist()
        for name, (home, unit) in places.items()
    }


def add_by_instruction(state: State, name: str, index: int, seconds: float, hold_gil: bool) -> int:
    """Adds one again and again by a plain locked instruction; how often."""
    view = worker.view(state, name)
    address, add = view.ctypes.data + 8 * index, machine.fetch_add(hold_gil)
    end, count, last = time.monotonic() + seconds, 0, -1
    while time.monotonic() < end:
        for _ in range(20):
            before = add(address, 1)
            if before <= last:
                raise AssertionError(f"the word went back from {last} to {before}")
            last = before
            count += 1
    return count


def add_by_call(state: State, name: str, index: int, seconds: float) -> list[int]:
    """Adds one by the package's atomics; all values that were there before."""
    word = worker.atomic(state, name, index)
    end, found = time.monotonic() + seconds, []
    while time.monotonic() < end:
        found.append(int(word.add(1)))
    return found


def add_under_lock(state: State, name: str, index: int, lock_name: str, seconds: float) -> int:
    view, lock = worker.view(state, name), state["space"].lock(lock_name)
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        with lock:
            view[index] += 1
        count += 1
    return count


def count_in_own_words(state: State, name: str, first: int, stride: int, seconds: float) -> int:
    """Adds to words that only this process writes, in a unit that others write too."""
    view: Any = worker.view(state, name)
    own = view[first : first + 64 * stride : stride]
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for _ in range(10):
            found = own.tolist()
            if found != [count] * 64:
                raise AssertionError(f"own words should all be {count}, found {found}")
            own += 1
            count += 1
    return count
