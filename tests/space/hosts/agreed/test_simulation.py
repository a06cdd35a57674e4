"""Membership, fencing and names under random faults in virtual time; each seed can be run again exactly."""

from __future__ import annotations

import os

import pytest

from tests.space.hosts.agreed.simulation import Violation, World

SEEDS = int(os.environ.get("OPENSHELF_TEST_SEEDS") or (10_000 if os.environ.get("OPENSHELF_SOAK") else 100))
FIRST = int(os.environ.get("OPENSHELF_TEST_SEED") or 0)
MOST = 60  # seeds in which a planted fault must have been found


def test_no_seed_finds_a_host_that_writes_after_it_was_given_up_or_a_name_with_two_owners() -> None:
    published = 0
    for seed in range(FIRST, FIRST + SEEDS):
        world = World(seed)
        try:
            world.run()
        except BaseException as error:
            error.add_note(f"again: OPENSHELF_TEST_SEED={seed} OPENSHELF_TEST_SEEDS=1")
            raise
        published += world.published
    assert published > 5 * SEEDS  # the hosts got on with their work


@pytest.mark.parametrize("fault", ["no fencing", "old epoch", "names of lost hosts", "epoch not raised"])
def test_some_seed_finds_each_planted_fault(fault: str) -> None:
    for seed in range(MOST):
        try:
            World(seed, frozenset([fault])).run()
        except Violation:
            return
    pytest.fail(f"no seed of {MOST} found: {fault}")


def test_a_seed_gives_the_same_history_again() -> None:
    first, second = World(11), World(11)
    first.run()
    second.run()
    assert list(first.views.values()) == list(second.views.values())
    assert (first.published, first.store.revision) == (second.published, second.store.revision)
