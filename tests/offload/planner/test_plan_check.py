"""The check of plans refuses each kind of broken plan, and names the step."""

from __future__ import annotations

import dataclasses

import pytest

from openshelf.errors import BadInput
from openshelf.offload.planner.verify import check_steps
from openshelf.offload.program.program import Op, Program, Storage
from openshelf.offload.program.steps import Detach, Prefetch, Run, Step, Store, Wait

PAGE = 4096

# w is read, x made from it, w changed, and y, which is kept, made from both.
W, X, Y = range(3)
PROGRAM = Program(
    ops=(
        Op(0, "make x", (W,), (), (X,)),
        Op(1, "change w", (), (W,), (), again=False),
        Op(2, "make y", (W, X), (), (Y,), workspace=100),
    ),
    storages=(
        Storage(W, "w", PAGE, "weight", given=True, kept=True),
        Storage(X, "x", 2 * PAGE, "activation"),
        Storage(Y, "y", PAGE, "output", kept=True),
    ),
    key="test",
)
BUDGET = 5 * PAGE
GOOD: list[Step] = [
    Prefetch(W, 0),  # 0
    Wait(W),  # 1
    Run(0, (PAGE,)),  # 2
    Run(1),  # 3
    Store(W),  # 4
    Run(2, (3 * PAGE, 4 * PAGE)),  # 5
    Store(Y),  # 6
    Detach(X),  # 7
    Detach(W),  # 8
    Detach(Y),  # 9
]


def without(*numbers: int) -> list[Step]:
    return [step for number, step in enumerate(GOOD) if number not in numbers]


def with_(number: int, *steps: Step) -> list[Step]:
    return [*GOOD[:number], *steps, *GOOD[number:]]


def instead(number: int, step: Step) -> list[Step]:
    return [*GOOD[:number], step, *GOOD[number + 1 :]]


def test_a_right_plan_is_accepted() -> None:
    check_steps(PROGRAM, GOOD, BUDGET)


BROKEN: dict[str, tuple[list[Step], str]] = {
    "a Wait is missing": (without(1), "step 1.*still being read"),
    "a Prefetch is missing": (without(0, 1), "step 0.*not in the arena"),
    "an operator is left out": (without(3, 4), r"step 3.*operator 1 has not run"),
    "the last operators are left out": (without(5, 6, 9), "ends after 2 of 3"),
    "operators in another order": ([*GOOD[:2], Run(1), *GOOD[2:]], "operator 0 has not run"),
    "an operator runs twice that must not": (with_(4, Run(1)), "step 4.*must not run again"),
    "makes what is there": (with_(3, Run(0, (3 * PAGE,))), "in the arena already"),
    "detached too early": (with_(3, Detach(X)), "step 6.*storage 1 .x. is not in the arena"),
    "read after it left": (with_(5, Detach(W)), "step 6.*storage 0 .w. is not in the arena"),
    "a storage overlaps another": (instead(2, Run(0, (0,))), "step 2.*overlaps"),
    "a storage overlaps half of another": (instead(5, Run(2, (2 * PAGE, 4 * PAGE))), "step 5.*overlaps"),
    "the workspace overlaps": (instead(5, Run(2, (3 * PAGE, PAGE))), "step 5.*workspace.*overlaps"),
    "over the budget": (instead(5, Run(2, (3 * PAGE, 5 * PAGE))), "step 5.*not in the arena of"),
    "below the arena": (instead(0, Prefetch(W, -PAGE)), "step 0.*not in the arena of"),
    "not aligned": (instead(2, Run(0, (PAGE + 1,))), "step 2.*not aligned"),
    "no offset for the workspace": (instead(5, Run(2, (3 * PAGE,))), "step 5.*offsets"),
    "changed after it was stored": ([*GOOD[:3], Store(W), *GOOD[3:]], "step 4.*changes after it was stored"),
    "stored twice": (with_(5, Store(W)), "step 5.*stored before"),
    "stored before it came": (with_(1, Store(W)), "step 1.*still being read"),
    "stored after it left": (with_(8, Store(X)), "step 8.*not in the arena"),
    "a kept output is lost": (without(6), "ends without the last bytes of storage 2"),
    "a kept change is lost": (without(4), "ends without the last bytes of storage 0"),
    "something is left behind": (without(7), "ends with storage 1"),
    "prefetched twice": (with_(1, Prefetch(W, 3 * PAGE)), "step 1.*in the arena already"),
    "prefetched but never stored": (with_(3, Detach(X), Prefetch(X, PAGE), Wait(X)), "step 4.*never stored"),
    "waited for twice": (with_(2, Wait(W)), "step 2.*nobody reads"),
    "detached while it comes": (with_(1, Detach(W)), "step 1.*still being read"),
    "a change is lost between": (
        [*GOOD[:4], Detach(W), Prefetch(W, 0), Wait(W), *GOOD[5:]],
        "step 7.*bytes of operator -1, expected those of 1",
    ),
    "made anew from changed bytes": (with_(4, Detach(X), Run(0, (PAGE,))), "step 5.*bytes of operator 1, expected.*-1"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plan_is_refused(case: str) -> None:
    steps, reason = BROKEN[case]
    with pytest.raises(BadInput, match=reason):
        check_steps(PROGRAM, steps, BUDGET)


def test_making_anew_is_accepted_while_inputs_are_the_same() -> None:
    check_steps(PROGRAM, with_(3, Detach(X), Run(0, (PAGE,))), BUDGET)


def test_moving_through_the_home_is_accepted() -> None:
    moved: list[Step] = [Store(X), Detach(X), Prefetch(X, 3 * PAGE), Wait(X)]
    check_steps(PROGRAM, [*GOOD[:3], *moved, Run(1), Store(W), Run(2, (PAGE, 2 * PAGE)), *GOOD[6:]], BUDGET)


def test_a_program_that_forbids_running_again() -> None:
    ops = (dataclasses.replace(PROGRAM.ops[0], again=False), *PROGRAM.ops[1:])
    program = dataclasses.replace(PROGRAM, ops=ops)
    with pytest.raises(BadInput, match="must not run again"):
        check_steps(program, with_(3, Detach(X), Run(0, (PAGE,))), BUDGET)
