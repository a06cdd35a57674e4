"""What happens when steps are followed: in which order, and that what a plan takes it gives back."""

from __future__ import annotations

import random

import pytest

from openshelf.offload import Detach, Lane, Op, Prefetch, Program, Rates, Run, Step, Storage, Store, Wait
from openshelf.offload.planner.plan import make_plan
from openshelf.offload.planner.replay import ARRIVE, LAND, LEAVE, READ, RUN, TAKE, WRITE, Replay
from openshelf.offload.program.lifetimes import lifetimes
from tests.offload.planner.programs import small_program

PAGE = 4096


def test_events_come_in_the_order_in_which_they_happen() -> None:
    program = Program(
        (Op(0, "make", (0,), makes=(1,), workspace=10), Op(1, "use", (1,))),
        (Storage(0, "weight", PAGE, "weight", given=True), Storage(1, "result", PAGE, "activation", kept=True)),
    )
    steps: list[Step] = [
        Prefetch(0, 0), Wait(0), Run(0, (PAGE, 2 * PAGE)), Detach(0), Run(1), Store(1), Detach(1),
    ]  # fmt: skip
    replay = Replay(program, steps)
    assert [(replay.number, *event) for event in replay] == [
        (0, READ, 0, 0),
        (0, TAKE, 0, 0),
        (1, ARRIVE, 0, 0),
        (2, TAKE, 1, PAGE),
        (2, RUN, 0, 2 * PAGE),
        (3, LEAVE, 0, 0),
        (4, RUN, 1, -1),
        (5, WRITE, 1, PAGE),
        (6, LAND, 1, PAGE),
        (6, LEAVE, 1, PAGE),
    ]


@pytest.mark.parametrize("seed", range(10))
def test_every_room_and_every_transfer_of_a_plan_comes_to_its_end(seed: int) -> None:
    program = small_program(random.Random(seed), 12)
    known = lifetimes(program)
    budget = (known.least + known.live_peak) // 2
    plan = make_plan(program, budget, Rates(*(Lane(1e9),) * 4), time_limit=0.05, cache=False)
    replay = Replay(program, plan.steps)
    ends: dict[int, int] = {}  # of rooms
    under_way: set[int] = set()
    for event, which, offset in replay:
        if event == TAKE:
            ends[which] = offset + known.sizes[which]
            others = [(replay.at[s], end) for s, end in ends.items() if s != which and end > replay.at[s]]
            assert all(end <= offset or ends[which] <= begin for begin, end in others)
        elif event == LEAVE:
            assert which not in under_way
            del ends[which]
        elif event in (READ, WRITE):
            under_way.add(which)
        elif event in (ARRIVE, LAND):
            under_way.remove(which)
        else:
            assert set(program.ops[which].touches) <= replay.at.keys()
    assert not ends
    assert not replay.at
    assert not under_way
