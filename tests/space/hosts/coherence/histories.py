"""Histories of shared words, and whether they could have happened on one memory.

A history is what processes did and when: every operation with the times of its call and its answer, on a clock that all
hosts of one machine share. It is linearizable if all its operations could have happened one after the other, each at a
moment between its two times. That is so exactly if it is so for each word alone (Herlihy and Wing), and implies that
each word is sequentially consistent. Words that are only loaded and stored, every value once, are decided by the zones
of Gibbons and Korach in n log n; words with atomic operations by the search of Wing and Gong, in which a state that
was reached before is not tried again. An operation without an answer may have happened at any later time, or never.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

_MASK = (1 << 64) - 1
NEVER = math.inf


class Violation(Exception):
    """No single memory could have given these answers."""


class Operation(NamedTuple):
    """`read` has a result, `write` an argument, `add` and `swap` both, `cas` (expected, new) and (done, before)."""

    process: int
    kind: str
    argument: Any
    result: Any
    start: float
    end: float = NEVER

    def __str__(self) -> str:
        answer = "no answer" if self.end == NEVER else f"{self.result} at {self.end}"
        return f"[{self.process}] {self.kind}({self.argument}) called at {self.start}, {answer}"


def _tell(text: str, operations: Sequence[Operation]) -> Violation:
    return Violation("\n".join([text, *[f"  {o}" for o in sorted(operations, key=lambda o: o.start)]]))


def check_word(operations: Sequence[Operation], initial: int = 0) -> None:
    """Raises Violation unless the operations on one word are linearizable."""
    written = [o.argument for o in operations if o.kind == "write"]
    simple = all(o.kind in ("read", "write") for o in operations)
    if simple and len(set(written)) == len(written) and initial not in written:
        check_zones(operations, initial)
    else:
        search(operations, initial)


def check_zones(operations: Sequence[Operation], initial: int = 0) -> None:
    """For reads and writes of values that are written once each.

    All operations of one value are a cluster, its write first. It must hold the word from its earliest answer to its
    latest call: a forward zone, if that is any time at all. Two forward zones cannot overlap, and a cluster whose
    operations all have a moment in common (a backward zone) must have some of them outside every forward zone.
    """
    clusters: dict[int, list[Operation]] = {initial: [Operation(-1, "write", initial, None, -NEVER, -NEVER)]}
    for write in operations:
        if write.kind == "write":
            clusters[write.argument] = [write]
    for read in operations:
        if read.kind == "read" and read.end != NEVER:
            if read.result not in clusters:
                raise _tell(f"{read} returned what nobody wrote", operations)
            clusters[read.result].append(read)
    forward: list[tuple[float, float, int]] = []
    backward: list[tuple[float, float, int]] = []
    for value, cluster in clusters.items():
        write = cluster[0]
        if write.end == NEVER and len(cluster) == 1:
            continue  # it may never have happened
        for read in cluster[1:]:
            if read.end < write.start:
                raise _tell(f"{read} returned a value before it was written by {write}", operations)
        low, high = min(o.end for o in cluster), max(o.start for o in cluster)
        (forward if low < high else backward).append((min(low, high), max(low, high), value))
    forward.sort()
    for (_, end, one), (start, _, two) in itertools.pairwise(forward):
        if start < end:
            raise _tell(f"{one} and {two} must both have been in the word at {start}", operations)
    place = 0
    for start, end, value in sorted(backward):
        while place < len(forward) and forward[place][1] < start:
            place += 1
        # The zone that covers the start of this one is the only that could cover all of it.
        if place < len(forward) and forward[place][0] < start and end < forward[place][1]:
            other = forward[place][2]
            raise _tell(f"{value} was only read or written while {other} must have been in the word", operations)


def _apply(value: int, operation: Operation) -> int | None:
    """The word after the operation, or None if its answer is not what the word would have given."""
    kind, argument, result = operation.kind, operation.argument, operation.result
    open_ = operation.end == NEVER
    if kind == "read":
        return value if open_ or result == value else None
    if kind == "write":
        return int(argument)
    if kind == "cas":
        done = value == argument[0]
        if not open_ and result != (done, value):
            return None
        return int(argument[1]) if done else value
    if not open_ and result != value:
        return None
    return (value + argument) & _MASK if kind == "add" else int(argument)


def search(operations: Sequence[Operation], initial: int = 0) -> None:
    """For any operations: looks for an order in which all answers are right."""
    lines = _lines(operations)
    count = len(lines)
    wanted = sum(o.end != NEVER for o in operations)
    best: tuple[int, tuple[int, ...]] = (-1, ())
    seen = set()
    stack = [((0,) * count, initial)]
    while stack:
        state = stack.pop()
        state = _settle(lines, *state)
        if state in seen:
            continue
        seen.add(state)
        at, value = state
        done = sum(at)
        best = max(best, (done, at))
        heads = [line[place] if place < len(line) else None for line, place in zip(lines, at, strict=True)]
        first_end = min((o.end for o in heads if o is not None), default=NEVER)
        if first_end == NEVER and _answered(lines, at) == wanted:
            return
        for number, head in enumerate(heads):
            if head is not None and head.start <= first_end:
                after = _apply(value, head)
                if after is not None:
                    stack.append(((*at[:number], at[number] + 1, *at[number + 1 :]), after))
    stuck = [line[place] for line, place in zip(lines, best[1], strict=True) if place < len(line)]
    raise _tell("no order explains all answers; the search came to\n" + "\n".join(map(str, stuck)), operations)


def _lines(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Operations that followed each other. One without an answer ends its line: its process may have gone on."""
    lines: list[list[Operation]] = []
    current: dict[int, list[Operation]] = {}
    for operation in sorted(operations, key=lambda o: o.start):
        line = current.get(operation.process)
        if line is None or line[-1].end > operation.start:
            line = current[operation.process] = []
            lines.append(line)
        line.append(operation)
    return lines


def _answered(lines: list[list[Operation]], at: tuple[int, ...]) -> int:
    return sum(o.end != NEVER for line, place in zip(lines, at, strict=True) for o in line[:place])


def _settle(lines: list[list[Operation]], at: tuple[int, ...], value: int) -> tuple[tuple[int, ...], int]:
    """Takes all operations that may come now, fit, and change nothing: taking them at once is never wrong."""
    places = list(at)
    moved = True
    while moved:
        moved = False
        heads = [line[place] if place < len(line) else None for line, place in zip(lines, places, strict=True)]
        first_end = min((o.end for o in heads if o is not None), default=NEVER)
        for number, head in enumerate(heads):
            if head is None or head.end == NEVER or head.start > first_end:
                continue
            if head.kind in ("read", "cas") and _apply(value, head) == value:
                places[number] += 1
                moved = True
    return tuple(places), value


class Section(NamedTuple):
    """Between acquire and release: what the process read in the words that the lock protects, and wrote there."""

    process: int
    acquire_start: float
    acquire_end: float
    release_start: float
    release_end: float
    read: int
    written: int


def check_lock(sections: Sequence[Section], refused: Sequence[Operation] = (), initial: int = 0) -> None:
    """Raises Violation unless one process at a time was in, each saw what the one before wrote, and none was refused
    a lock that nobody had."""
    ordered = sorted(sections, key=lambda s: s.acquire_end)
    before = initial
    for one, two in itertools.pairwise(ordered):
        if two.acquire_end < one.release_start:
            raise Violation(f"two processes held the lock at once: {one} and {two}")
    for section in ordered:
        if section.read != before:
            raise Violation(f"{section} should have found {before}, as the one before it left")
        before = section.written
    for attempt in refused:
        # Another held it, or was about to.
        if not any(s.acquire_start <= attempt.end and s.release_end >= attempt.start for s in sections):
            raise Violation(f"{attempt} was refused, though nobody had the lock")


def check_coherence(operations: Sequence[Operation], initial: int = 0) -> None:
    """The weaker law, without clocks: one order of a word's writes that every process's own steps follow."""
    after: dict[int, set[int]] = {initial: set()}
    for operation in operations:
        if operation.kind == "write":
            after[operation.argument] = set()
    for process in {o.process for o in operations}:
        last = initial
        for operation in sorted((o for o in operations if o.process == process), key=lambda o: o.start):
            value = operation.argument if operation.kind == "write" else operation.result
            if value not in after:
                raise _tell(f"{operation} returned what nobody wrote", operations)
            if value != last:
                after[last].add(value)
                last = value
    if any(initial in later for later in after.values()) or _has_cycle(after):
        raise _tell("no order of the writes is the one that all processes saw", operations)


def _has_cycle(after: dict[int, set[int]]) -> bool:
    before = dict.fromkeys(after, 0)
    for later in after.values():
        for value in later:
            before[value] += 1
    free = [value for value, count in before.items() if count == 0]
    done = 0
    while free:
        done += 1
        for value in after[free.pop()]:
            before[value] -= 1
            if before[value] == 0:
                free.append(value)
    return done < len(after)
