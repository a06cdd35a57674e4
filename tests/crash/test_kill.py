"""Processes that are killed while they change a space leave it whole: nothing lost, torn, leaked or stuck."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash.harness import Harness, Problem

SOAK = os.environ.get("OPENSHELF_SOAK") == "1"
SEED = int(os.environ.get("OPENSHELF_SEED", "1"))


@pytest.mark.serial
@pytest.mark.parametrize("part", range(25 if SOAK else 1))
def test_space_is_whole_after_every_kill(home: Path, part: int) -> None:
    Harness(home, SEED + part).run(kills=200 if SOAK else 100)


@pytest.mark.serial
def test_harness_finds_the_damage_when_nothing_is_recovered(home: Path) -> None:
    with pytest.raises(Problem):
        Harness(home, SEED, recovery=False).run(kills=100)


@pytest.mark.serial
@pytest.mark.parametrize("part", range(10 if SOAK else 1))
def test_space_is_whole_after_everybody_was_killed(home: Path, part: int) -> None:
    Harness(home, SEED + part).run_killing_all(rounds=60 if SOAK else 30)
