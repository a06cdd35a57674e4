"""Clients, keepers and hosts are killed and links are cut under load: nothing torn, stale or invented, nobody hangs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.space.hosts.harness.cluster import Cluster
from tests.space.hosts.harness.net import Network
from tests.space.hosts.ledger import NEWEST, PENDING, Ledger, Problem, content, versions
from tests.space.hosts.storm import Storm, check_last_words

SOAK = os.environ.get("OPENSHELF_SOAK") == "1"
SEED = int(os.environ.get("OPENSHELF_SEED", "1"))
EVENTS = {"kill_client": 22, "kill_keeper": 12, "kill_host": 6, "cut_link": 10}


@pytest.mark.serial
@pytest.mark.parametrize("part", range(40 if SOAK else 2))
def test_nothing_is_torn_stale_or_invented_and_nobody_hangs(network: Network, part: int) -> None:
    """Every other time as if the kernel were older."""
    assert sum(EVENTS.values()) == 50
    with Cluster(3, network, {"OPENSHELF_FAULTS": "6.1"} if part % 2 else None) as three:
        Storm(three, SEED + part).run(EVENTS, pause=0.3)


# The judge itself


def test_unit_tells_its_versions_and_strange_words_are_found() -> None:
    whole = content(1, 3, 2, 77)
    assert versions(whole, 1, 3, 2) == [77]
    mixed = whole.copy()
    mixed[100:] = content(1, 3, 2, 78)[100:]
    assert versions(mixed, 1, 3, 2) == [77, 78]
    for home, unit, epoch in ((0, 3, 2), (1, 2, 2), (1, 3, 1)):  # another host's, another unit's, of an earlier life
        strange = whole.copy()
        strange[5:9] = content(home, unit, epoch, 77)[5:9]
        with pytest.raises(Problem, match="4 words from 5 on"):
            versions(strange, 1, 3, 2)
    hole = whole.copy()
    hole[512:1024] = 0
    with pytest.raises(Problem, match="512 words from 512 on hold zeros"):
        versions(hole, 1, 3, 2)
    moved = np.roll(whole, 1)
    with pytest.raises(Problem):
        versions(moved, 1, 3, 2)


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger")
    made.epochs[0] = made.begin(0)
    return made


def _write(book: Ledger, host: int) -> int:
    version = book.begin_write(0, 2)
    book.end_write(0, 2, host, int(book.losses[0, host]))
    return version


def test_last_acknowledged_version_is_due_as_long_as_nobody_was_lost(book: Ledger) -> None:
    book.check(0, 2, [1], 1)
    assert _write(book, 1) == 2
    book.check(0, 2, [2], 0)
    for stale in ([1], [1, 2], [3]):
        with pytest.raises(Problem):
            book.check(0, 2, stale, 0)
    book.lose(2)  # somebody else
    with pytest.raises(Problem):
        book.check(0, 2, [1], 0)


def test_killed_writer_leaves_words_of_two_versions_at_most(book: Ledger) -> None:
    _write(book, 1)
    assert book.begin_write(0, 2) == 3
    book.check(0, 2, [2, 3], 0)
    with pytest.raises(Problem):
        book.check(0, 2, [1, 3], 0)
    book.check(0, 2, [3], 0)
    assert book.rows[0, 2, PENDING] == 0
    with pytest.raises(Problem):
        book.check(0, 2, [2], 0)


def test_what_a_lost_host_had_falls_back_to_what_the_home_knew_and_no_further(book: Ledger) -> None:
    for _ in range(3):
        _write(book, 1)  # versions 2 to 4
    book.check(0, 2, [4], 0)  # seen at home
    _write(book, 1)
    _write(book, 1)
    book.lose(1)
    with pytest.raises(Problem):
        book.check(0, 2, [3], 2)
    with pytest.raises(Problem):
        book.check(0, 2, [4, 5], 2)
    book.check(0, 2, [4], 2)
    assert _write(book, 2) == 7  # versions are never used again
    assert book.rows[0, 2, NEWEST] == 7


def test_last_words_name_host_range_and_remedy() -> None:
    hosts = ["10.77.0.1:7400", "10.77.0.2:7400"]
    check_last_words("host 10.77.0.2:7400 is lost, 0x240000010000 to 0x240000020000; space.get() raises instead", hosts)
    for text in ("", "host 10.77.0.3:7400 lost at 0x240000010000: get", "host 10.77.0.1:7400 is lost: use space.get"):
        with pytest.raises(Problem):
            check_last_words(text, hosts)
