"""Spaces are created, opened, closed, removed, grown, restored, and their processes and keepers forked, killed and
stopped, all at once: no wrong byte, no process that ends by a signal that the storm did not send, no hang over 10 s,
no leak.

OPENSHELF_SEED chooses another storm; a failure prints its seed, the command that runs it again, and the last
operations of each worker. Some seconds of each kind in every run, ten minutes in a soak.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.space.hosts.harness.etcd import program
from tests.storm.ledger import NONE, Change, Ledger, Problem, content_of, tag, words
from tests.storm.plan import KINDS, OPERATIONS, events, operations
from tests.storm.storm import storm
from tests.storm.work import worker_of

SOAK = os.environ.get("OPENSHELF_SOAK") == "1"
SEED = int(os.environ.get("OPENSHELF_SEED", "1"))


def need_etcd(kind: str) -> None:
    if kind == "agreed" and (why_not := program()[1]):
        pytest.skip(why_not)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_wrong_lost_stuck_or_left(kind: str) -> None:
    need_etcd(kind)
    for _ in range(4):  # on a busy machine hardly anything may happen in so short a time
        done = storm(kind, SEED, 4.0)
        if all(done.steps[what] for what in ("read", "changed")):
            return
    pytest.fail(f"hardly anything happened: {done.steps}")


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="ten minutes")
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_wrong_lost_stuck_or_left_in_ten_minutes(kind: str, part: int) -> None:
    need_etcd(kind)
    storm(kind, SEED + 1 + part, 60.0 / len(KINDS))


# The plan


@pytest.mark.parametrize("kind", OPERATIONS)
def test_one_number_decides_all_operations(kind: str) -> None:
    for slot, life in ((0, 1), (0, 2), (3, 1)):
        first, second = operations(kind, 5, slot, life), operations(kind, 5, slot, life)
        assert [next(first) for _ in range(200)] == [next(second) for _ in range(200)]
    assert next(operations(kind, 5, 0, 1)) != next(operations(kind, 6, 0, 1))
    assert [next(events(kind, 5)) for _ in range(9)] == [next(events(kind, 5)) for _ in range(9)]


@pytest.mark.parametrize("kind", OPERATIONS)
def test_every_operation_of_a_plan_is_known(kind: str) -> None:
    assert not [what for what in OPERATIONS[kind] if not callable(getattr(worker_of(kind), what, None))]


# The judge itself


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


def test_words_tell_whose_they_are() -> None:
    text = words(tag(1, 3, 2, 77), 100)
    assert content_of(text, 1, 3, 2) == 77
    for wrong in ((0, 3, 2), (1, 2, 2), (1, 3, 1)):  # of another space, of its life before, another owner's
        with pytest.raises(Problem):
            content_of(text, *wrong)
    text[50:60] = words(tag(1, 3, 2, 78), 100)[50:60]
    with pytest.raises(Problem, match="10 words of 100 from 50 on"):
        content_of(text, 1, 3, 2)
    with pytest.raises(Problem):
        content_of(words(tag(1, 3, 2, 77), 100)[:50], 1, 3, 2)


def test_reader_may_find_what_was_there_before_or_after_and_nothing_else(book: Ledger) -> None:
    first, second = Change(1, NONE, 4, 10), Change(1, NONE, 4, 11)
    before = book.before(0, 2, 4)
    book.begin(0, 2, first)
    for content in (0, 10):
        book.judge(0, 1, 2, 4, before, content)
    with pytest.raises(Problem):
        book.judge(0, 1, 2, 4, before, 9)
    book.end(0, 2, first)
    before = book.before(0, 2, 4)
    book.judge(0, 1, 2, 4, before, 10)
    book.begin(0, 2, second)
    with pytest.raises(Problem):  # a replaced name is found old or new, never missing
        book.judge(0, 1, 2, 4, before, 0)
    book.end(0, 2, second, happened=False)
    before = book.before(0, 2, 4)
    book.judge(0, 1, 2, 4, before, 10)
    with pytest.raises(Problem):
        book.judge(0, 1, 2, 4, before, 11)
    with pytest.raises(Problem):  # in the next life of the space there is nothing yet
        book.judge(0, 2, 2, 4, before, 10)


def test_restored_space_shows_one_moment_since_the_flush(book: Ledger) -> None:
    for change in (Change(1, NONE, 0, 5), Change(1, NONE, 1, 6), Change(1, 0, 2, 5), Change(1, NONE, 1, 7)):
        book.begin(0, 3, change)
        book.end(0, 3, change)
        if change.content == 6:
            book.note_flush(0, book.done[0].copy())
    for wrong in ({0: 5}, {}, {0: 5, 1: 7}, {1: 6}, {2: 5, 1: 5}):
        with pytest.raises(Problem):
            book.fall_back(0, 3, 1, wrong)
    book.fall_back(0, 3, 1, {2: 5, 1: 6})
    assert book.shown(0, 3, 1) == {2: 5, 1: 6}
    with pytest.raises(Problem):  # what was restored is there again the next time
        book.fall_back(0, 3, 1, {0: 5, 1: 6})
