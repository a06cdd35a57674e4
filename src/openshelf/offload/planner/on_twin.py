"""A plan on a simulated network: its operators and transfers as tasks of the twin, among those of other ranks.

`Plan.times` knows of no other traffic. Here transfers are flows to and from the endpoints where homes are, so that many
ranks that share a pool of memory, or the way to it, slow each other down. Alone, on a network with the plan's own
rates, it takes what `Plan.times` says, but for the slowdown of computing while bytes move, and for the calls that begin
transfers: these are not modelled here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openshelf.offload.program.steps import Detach, Prefetch, Run, Wait
from openshelf.twin import Tasks

if TYPE_CHECKING:
    from openshelf.offload.planner.plan import Plan


def add_plan(plan: Plan, tasks: Tasks, rank: int, flash: int, dram: int) -> int:
    """Adds the steps of a plan; gives the task that ends last of the operators."""
    ends = {"flash": flash, "dram": dram}
    storages, ops = plan.program.storages, plan.program.ops
    under_way: dict[int, int] = {}  # the transfer of a storage
    queues: dict[tuple[str, bool], int] = {}  # the last transfer of each lane
    before: list[int] = []  # what the next step waits for: the operator before it, and transfers that were waited for
    for step in plan.steps:
        if isinstance(step, Run):
            op = ops[step.op]
            before = [tasks.compute(op.seconds, rank, before, name=op.name)]
        elif isinstance(step, Wait | Detach):
            if step.storage in under_way:
                before = [*before, under_way.pop(step.storage)]
        else:
            storage, reads = storages[step.storage], isinstance(step, Prefetch)
            home = plan.homes[step.storage]
            lane = (home, reads)
            src, dst = (ends[home], rank) if reads else (rank, ends[home])
            after = [*before, queues[lane]] if lane in queues else before
            queues[lane] = tasks.flow(src, dst, storage.nbytes, after, name=storage.name)
            under_way[step.storage] = queues[lane]
    return tasks.compute(0.0, rank, [*before, *queues.values()], name="end of the plan")
