"""A plan on a simulated network: its operators and transfers as tasks of the twin, among those of other ranks.

`Plan.times` knows of no other traffic. Here transfers are flows to and from the endpoints where homes are, so that many
ranks that share a pool of memory, or the way to it, slow each other down. Alone, on a network with the plan's own
rates, it takes what `Plan.times` says, but for the slowdown of computing while bytes move, and for the calls that begin
transfers: these are not modelled here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openshelf.offload.planner.replay import ARRIVE, LAND, READ, RUN, WRITE, Replay
from openshelf.twin import Tasks

if TYPE_CHECKING:
    from openshelf.offload.planner.plan import Plan


def add_plan(plan: Plan, tasks: Tasks, rank: int, flash: int, dram: int) -> int:
    """Adds the steps of a plan; gives the task that ends last of the operators."""
    ends = {"flash": flash, "dram": dram}
    storages, ops = plan.program.storages, plan.program.ops
    under_way: dict[int, int] = {}  # the transfer of a storage
    queues: dict[tuple[str, int], int] = {}  # the last transfer of each lane
    before: list[int] = []  # what the next step waits for: the operator before it, and transfers that were waited for
    for event, which, _ in Replay(plan.program, plan.steps):
        if event == RUN:
            before = [tasks.compute(ops[which].seconds, rank, before, name=ops[which].name)]
        elif event in (ARRIVE, LAND):
            before = [*before, under_way[which]]
        elif event in (READ, WRITE):
            home = plan.homes[which]
            src, dst = (ends[home], rank) if event == READ else (rank, ends[home])
            after = [*before, queues[home, event]] if (home, event) in queues else before
            queues[home, event] = tasks.flow(src, dst, storages[which].nbytes, after, name=storages[which].name)
            under_way[which] = queues[home, event]
    return tasks.compute(0.0, rank, [*before, *queues.values()], name="end of the plan")
