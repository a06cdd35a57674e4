"""What stays in the arena from call to call: as much as there is room for, and nothing that must be as given."""

from __future__ import annotations

import dataclasses

import pytest

from openshelf.errors import BadInput
from openshelf.offload import Lane, Rates
from openshelf.offload.planner.plan import Plan, make_plan
from openshelf.offload.planner.resident import without
from openshelf.offload.program.program import Op, Program, Storage
from openshelf.offload.program.steps import Run

RATES = Rates(*(Lane(1e9, 1e-5),) * 4)
MIB = 1 << 20


def layers(count: int, seconds: float, changed: bool = False, kept: bool = False) -> Program:
    """Each layer reads, or changes, a weight of 1 MiB and makes what the next one reads."""
    storages = [Storage(i, f"weight {i}", MIB, "weight", True, kept) for i in range(count)]
    storages += [Storage(count + i, f"made {i}", 4096, "activation") for i in range(count)]
    ops = []
    for i in range(count):
        reads = (count + i - 1,) if i else ()
        own = {"changes": (i,)} if changed else {"reads": (i, *reads)}
        ops.append(Op(i, f"layer {i}", **{"reads": reads, **own}, makes=(count + i,), seconds=seconds))  # type: ignore[arg-type]
    return Program(tuple(ops), tuple(storages), "")


def planned(program: Program, budget: int, stay: bool = True) -> Plan:
    return make_plan(program, budget, RATES, stay=stay, time_limit=0.5, cache=False)


def test_what_fits_is_not_read_again() -> None:
    program = layers(16, 1e-4)  # a weight takes ten times as long to read as to use
    plan = planned(program, 10 * MIB)
    assert len(plan.stays) >= 8
    assert sum(plan.times.moved.values()) == (16 - len(plan.stays)) * MIB
    assert plan.times.seconds < 0.6 * planned(program, 10 * MIB, stay=False).times.seconds
    assert plan.peak <= plan.budget


def test_everything_stays_if_there_is_room() -> None:
    plan = planned(layers(8, 1e-4, changed=True, kept=True), 9 * MIB)
    assert len(plan.stays) == 8
    assert not any(plan.times.moved.values())
    assert plan.times.peak == plan.timeline().peak > 8 * MIB
    assert "stays in the arena" in plan.explain("weight 3")
    assert "8 MiB from call to call" in str(plan)


def test_nothing_stays_that_is_as_given_in_every_call() -> None:
    assert not planned(layers(8, 1e-4, changed=True, kept=False), 9 * MIB).stays


def test_kept_on_disk_and_checked() -> None:
    program = layers(8, 1e-4)
    plan = planned(program, 5 * MIB)
    assert Plan.from_plain(plan.to_plain(), program) == plan
    (first, offset), *_ = plan.stays.items()
    for wrong in (offset + 1, 0, plan.budget):
        moved = dataclasses.replace(plan, stays={**plan.stays, first: wrong})
        with pytest.raises(BadInput, match="not a plan"):
            Plan.from_plain(moved.to_plain(), program)


def test_nothing_is_made_anew_from_what_has_changed_since() -> None:
    """An operator reads a weight that is changed after it: what it made must not be made again from the new one."""
    storages = (
        Storage(0, "weight", MIB, "weight", True, True),
        Storage(1, "made", 8 * MIB, "activation"),
        Storage(2, "large", 9 * MIB, "activation"),
        Storage(3, "result", 4096, "output", kept=True),
    )
    ops = (
        Op(0, "make", (0,), (), (1,), seconds=1e-6),
        Op(1, "change", (), (0,), (), seconds=1e-6, again=False),
        Op(2, "fill", (), (), (2,), seconds=1e-3),
        Op(3, "drop", (2,), (), (3,), seconds=1e-3),
        Op(4, "use", (1,), (3,), (), seconds=1e-3, again=False),
    )
    program = Program(ops, storages, "")
    plan = planned(program, 11 * MIB)  # raises BadInput if it is
    assert sum(isinstance(step, Run) and step.op == 0 for step in plan.steps) == 1
    assert not without(program, [0]).ops[0].again
    assert without(program, [0]).ops[2].again
