"""Seeds of a simulation: those that must find nothing, and those of which one must find a planted fault."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from tests.space.hosts.agreed.simulation import Violation

FIRST = int(os.environ.get("OPENSHELF_TEST_SEED") or 0)


class World(Protocol):
    def run(self) -> None: ...


_W = TypeVar("_W", bound=World)


def run_all(world_of: Callable[[int], _W], count: int) -> Iterator[_W]:
    """Worlds that have run; an error says how to run its seed again."""
    for seed in range(FIRST, FIRST + count):
        world = world_of(seed)
        try:
            world.run()
        except BaseException as error:
            error.add_note(f"again: OPENSHELF_TEST_SEED={seed} OPENSHELF_TEST_SEEDS=1")
            raise
        yield world


def finds(world: World) -> bool:
    try:
        world.run()
    except Violation:
        return True
    return False
