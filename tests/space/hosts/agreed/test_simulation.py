"""Membership, fencing and names under random faults in virtual time; each seed can be run again exactly."""

from __future__ import annotations

import os

import pytest

from tests.space.hosts.agreed.seeds import finds, run_all
from tests.space.hosts.agreed.simulation import World

SEEDS = int(os.environ.get("OPENSHELF_TEST_SEEDS") or (10_000 if os.environ.get("OPENSHELF_SOAK") else 100))
MOST = 60  # seeds in which a planted fault must have been found


def test_no_seed_finds_a_host_that_writes_after_it_was_given_up_or_a_name_with_two_owners() -> None:
    published = 0
    for world in run_all(World, SEEDS):
        published += world.published
    assert published > 5 * SEEDS  # the hosts got on with their work


@pytest.mark.parametrize("fault", ["no fencing", "old epoch", "names of lost hosts", "epoch not raised"])
def test_some_seed_finds_each_planted_fault(fault: str) -> None:
    assert any(finds(World(seed, frozenset([fault]))) for seed in range(MOST))


def test_a_seed_gives_the_same_history_again() -> None:
    first, second = World(11), World(11)
    first.run()
    second.run()
    assert list(first.views.values()) == list(second.views.values())
    assert (first.published, first.store.revision) == (second.published, second.store.revision)
