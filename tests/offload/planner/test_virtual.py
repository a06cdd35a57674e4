"""Plans on a simulated network: alone they take what the plan says; together they share the way to their memory."""

from __future__ import annotations

import random

import pytest

from openshelf.fabric import LinkClass, SwitchClass
from openshelf.fabric.topologies import Edge, graph
from openshelf.offload import Lane, Plan, Rates
from openshelf.offload.planner.plan import make_plan
from openshelf.offload.program.lifetimes import lifetimes
from openshelf.twin import Twin
from tests.offload.planner.programs import small_program

FLASH, DRAM = Lane(2e6, 1e-4), Lane(1e7, 1e-5)
RATES = Rates(FLASH, FLASH, DRAM, DRAM)


def a_plan(seed: int) -> Plan:
    program = small_program(random.Random(seed), 20)
    return make_plan(program, lifetimes(program).least, RATES, dram=10_000, time_limit=0.05, cache=False)


def pool(ranks: int) -> Twin:
    """Ranks on a switch with a memory and a disk, whose links are the lanes of the plan."""
    names = [f"rank{i}" for i in range(ranks)]
    wide = LinkClass("wide", 1e15)
    edges = [Edge(name, "switch", wide) for name in names]
    edges += [Edge("switch", "flash", LinkClass("flash", FLASH.bytes_per_s, FLASH.latency_s))]
    edges += [Edge("switch", "dram", LinkClass("dram", DRAM.bytes_per_s, DRAM.latency_s))]
    return Twin(graph([*names, "flash", "dram"], {"switch": SwitchClass("switch", 64)}, edges))


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_alone_takes_what_it_says(seed: int) -> None:
    plan, twin = a_plan(seed), pool(1)
    tasks = twin.tasks()
    plan.add_to(tasks, 0, flash=1, dram=2)
    assert twin.run(tasks).seconds == pytest.approx(plan.times.seconds, rel=1e-9)


def test_plans_that_share_a_disk_wait_for_each_other() -> None:
    plan, twin = a_plan(3), pool(4)
    assert sum(plan.times.moved.values()) > 0
    tasks = twin.tasks()
    for rank in range(4):
        plan.add_to(tasks, rank, flash=4, dram=5)
    run = twin.run(tasks)
    assert run.seconds > plan.times.seconds
    assert run.seconds <= plan.times.compute + 4 * sum(plan.times.busy.values())
