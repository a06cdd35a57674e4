"""The checker of histories: right about good and bad ones, made by hand, by chance, and by changing one answer."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from tests.space.hosts.coherence.histories import (
    NEVER,
    Operation,
    Section,
    Violation,
    check_coherence,
    check_lock,
    check_word,
    check_zones,
    search,
)


def _read(process: int, value: int, start: float, end: float = NEVER) -> Operation:
    return Operation(process, "read", None, value, start, end)


def _write(process: int, value: int, start: float, end: float = NEVER) -> Operation:
    return Operation(process, "write", value, None, start, end)


GOOD = {
    "nothing": [],
    "a read of what was written before": [_write(0, 1, 0, 1), _read(1, 1, 2, 3)],
    "either value during a write": [_write(0, 1, 0, 10), _read(1, 0, 1, 2), _read(1, 1, 3, 4)],
    "two writes at once, in one order for both": [
        _write(0, 1, 0, 10), _write(1, 2, 0, 10), _read(2, 2, 1, 2), _read(2, 1, 3, 4), _read(3, 1, 5, 6),
    ],
    "a write without an answer that happened": [_write(0, 1, 0), _read(1, 0, 1, 2), _read(1, 1, 3, 4)],
    "a write without an answer that did not": [_write(0, 1, 0), _read(1, 0, 1, 2), _read(1, 0, 3, 4)],
    "additions in any order": [
        Operation(0, "add", 1, 1, 0, 10), Operation(1, "add", 1, 0, 0, 10), _read(2, 2, 11, 12),
    ],
    "an addition without an answer that happened": [Operation(0, "add", 5, None, 0), _read(1, 5, 1, 2)],
    "an addition without an answer, and its process goes on": [
        Operation(0, "add", 5, None, 0), _read(0, 0, 1, 2), _read(0, 5, 3, 4),
    ],
    "a swap that failed and one that did not": [
        Operation(0, "cas", (0, 7), (True, 0), 0, 2), Operation(1, "cas", (0, 8), (False, 7), 1, 3),
        Operation(1, "swap", 9, 7, 4, 5), _read(0, 9, 6, 7),
    ],
    "numbers that wrap around": [Operation(0, "add", -1, 0, 0, 1), _read(0, 2**64 - 1, 2, 3)],
}  # fmt: skip

BAD = {
    "a stale read": [_write(0, 1, 0, 1), _read(1, 0, 2, 3)],
    "a read that goes back": [_write(0, 1, 0, 10), _read(1, 1, 1, 2), _read(1, 0, 3, 4)],
    "a read that another process's read has overtaken": [_write(0, 1, 0, 10), _read(1, 1, 1, 2), _read(2, 0, 3, 4)],
    "a read of what nobody wrote": [_write(0, 1, 0, 1), _read(1, 5, 2, 3)],
    "a read before the write": [_read(1, 1, 0, 1), _write(0, 1, 2, 3)],
    "two orders of two writes": [
        _write(0, 1, 0, 10), _write(1, 2, 0, 10),
        _read(2, 1, 1, 2), _read(2, 2, 3, 4), _read(3, 2, 1, 2), _read(3, 1, 3, 4),
    ],
    "a value that comes again": [_write(0, 1, 0, 1), _write(0, 2, 2, 3), _read(1, 1, 4, 5)],
    "a lost write": [_write(0, 1, 0, 1), _write(1, 2, 2, 3), _read(0, 1, 4, 5), _read(1, 1, 4, 5)],
    "a lost addition": [Operation(0, "add", 1, 0, 0, 10), Operation(1, "add", 1, 0, 0, 10)],
    "an addition twice": [Operation(0, "add", 1, 0, 0, 1), _read(1, 2, 2, 3)],
    "a swap that could not succeed": [_write(0, 5, 0, 1), Operation(1, "cas", (0, 7), (True, 0), 2, 3)],
    "a swap that could not fail": [_write(0, 5, 0, 1), Operation(1, "cas", (5, 7), (False, 5), 2, 3)],
    "an addition without an answer that happened twice": [
        Operation(0, "add", 5, None, 0), _read(1, 5, 1, 2), _read(1, 10, 3, 4),
    ],
    "a write without an answer that came and went": [_write(0, 1, 0), _read(1, 1, 1, 2), _read(1, 0, 3, 4)],
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_what_one_memory_can_do_is_accepted(name: str) -> None:
    check_word(GOOD[name])
    search(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_what_no_memory_can_do_is_refused(name: str) -> None:
    for check in (check_word, search):
        with pytest.raises(Violation):
            check(BAD[name])


def _history(chance: random.Random, processes: int, each: int, simple: bool) -> list[Operation]:
    """What a true memory answers: every operation happens at a moment between its call and its answer."""
    moments = []
    for process in range(processes):
        now = chance.random()
        for _ in range(each):
            start = now + chance.random()
            at = start + chance.random() * 3
            now = at + chance.random() * 3
            moments.append((at, process, start, now))
    made, value = [], 0
    for number, (_, process, start, end) in enumerate(sorted(moments)):
        kind = chance.choice(["read", "write"] if simple else ["read", "write", "add", "swap", "cas"])
        argument: Any = None
        result: Any = None
        before = value
        if kind == "read":
            result = value
        elif kind == "cas":
            expected = value if chance.random() < 0.5 else value + 1
            argument, result = (expected, 1000 + number), (expected == value, value)
            value = 1000 + number if expected == value else value
        elif kind == "write":
            value = argument = 1000 + number
        else:
            argument, result = 1 + number, before
            value = value + argument if kind == "add" else argument
        made.append(Operation(process, kind, argument, result, start, end))
    return made


def _accepts(check: object, operations: list[Operation]) -> bool:
    try:
        check(operations)  # type: ignore[operator]
    except Violation:
        return False
    return True


@pytest.mark.parametrize("simple", [True, False])
def test_histories_of_a_true_memory_are_accepted(simple: bool) -> None:
    chance = random.Random(1)
    for _ in range(200):
        operations = _history(chance, 4, 12, simple)
        check_word(operations)
        search(operations)


def test_one_changed_answer_is_refused() -> None:
    chance = random.Random(2)
    changed = 0
    for _ in range(300):
        operations = _history(chance, 3, 12, simple=True)
        reads = [number for number, o in enumerate(operations) if o.kind == "read"]
        number = chance.choice(reads)
        read = operations[number]
        before = [o for o in operations if o.kind == "write" and o.end < read.start]
        gone = [o for o in before if any(o.end < other.start and other.end < read.start for other in before)]
        if not gone:
            continue
        changed += 1
        operations[number] = read._replace(result=chance.choice(gone).argument)
        with pytest.raises(Violation):
            check_word(operations)
        with pytest.raises(Violation):
            search(operations)
    assert changed > 100


def _possible(operations: list[Operation]) -> bool:
    """All orders, one after the other: slow and evident."""
    for order in itertools.permutations(operations):
        if any(two.end < one.start for place, one in enumerate(order) for two in order[place + 1 :]):
            continue
        value = 0
        for operation in order:
            if operation.kind == "read" and operation.result != value:
                break
            value = operation.argument if operation.kind == "write" else value
        else:
            return True
    return False


def test_both_ways_to_decide_agree_with_trying_all_orders() -> None:
    chance = random.Random(3)
    verdicts = {True: 0, False: 0}
    for _ in range(400):
        operations = _history(chance, 3, 2, simple=True)
        values = [0] + [o.argument for o in operations if o.kind == "write"]
        for number, operation in enumerate(operations):
            if operation.kind == "read" and chance.random() < 0.5:
                operations[number] = operation._replace(result=chance.choice(values))
        truth = _possible(operations)
        verdicts[truth] += 1
        assert _accepts(check_zones, operations) == truth, operations
        assert _accepts(search, operations) == truth, operations
    assert min(verdicts.values()) > 50


def test_two_ways_to_decide_agree_on_long_histories() -> None:
    chance = random.Random(4)
    verdicts = {True: 0, False: 0}
    for _ in range(300):
        operations = _history(chance, 4, 8, simple=True)
        values = [0] + [o.argument for o in operations if o.kind == "write"]
        for number, operation in enumerate(operations):
            if operation.kind == "read" and chance.random() < 0.1:
                operations[number] = operation._replace(result=chance.choice(values))
        verdict = _accepts(check_zones, operations)
        verdicts[verdict] += 1
        assert _accepts(search, operations) == verdict
    assert min(verdicts.values()) > 50


def test_coherence_asks_less_but_still_one_order() -> None:
    for operations in GOOD.values():
        if all(o.kind in ("read", "write") for o in operations):
            check_coherence(operations)
    check_coherence(BAD["a stale read"])  # no clock, no staleness
    for name in ("a read that goes back", "a read of what nobody wrote", "two orders of two writes"):
        with pytest.raises(Violation):
            check_coherence(BAD[name])


def test_lock_has_one_holder_who_sees_what_the_last_one_wrote() -> None:
    one, two = Section(0, 0, 1, 4, 5, 0, 10), Section(1, 2, 4.5, 6, 7, 10, 20)
    refused = [Operation(2, "try", None, False, 2, 3)]
    check_lock([two, one], refused)
    with pytest.raises(Violation, match="at once"):
        check_lock([one, two._replace(acquire_end=3)])
    with pytest.raises(Violation, match="should have found 10"):
        check_lock([one, two._replace(read=0)])
    with pytest.raises(Violation, match="nobody had the lock"):
        check_lock([one, two], [Operation(2, "try", None, False, 8, 9)])
