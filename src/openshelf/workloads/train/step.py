"""A training step in closed form: stages, pipeline, data parallelism, optimizer.

The pipeline is as long as its slowest stage repeats, and as what it takes to fill and drain it. Everything is a sum of
parts (parts.py) times constants, but for what is overlapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from openshelf.workloads.train.cluster import Cluster
from openshelf.workloads.train.memory import Memory, held_of, memory_of, trained_of
from openshelf.workloads.train.model import Model
from openshelf.workloads.train.offload import offload_s
from openshelf.workloads.train.parts import (
    Parts,
    attention_core,
    backward_of,
    bound,
    exchange,
    head_forward,
    layer_forward,
    seconds,
    total,
    with_gaps,
)
from openshelf.workloads.train.plan import Plan

HIDDEN = ("tp", "cp", "dp")  # communication that `overlap` hides behind computing
EXPOSED = 0.1  # of it is not: the first chunk has nothing to hide behind
_GRADIENT = 2.0  # bytes of a gradient on its way
_OPTIMIZER = 36.0  # bytes that a step of Adam moves for a parameter


@dataclass(frozen=True)
class Stage:
    """One stage's forward and backward pass of one micro-batch."""

    forward: Parts
    backward: Parts


@dataclass(frozen=True)
class Step:
    """What a step takes. `by_cause` adds up to `seconds`; `exposed_s` is communication that nothing hides."""

    model: Model
    plan: Plan
    cluster: Cluster
    seconds: float
    by_cause: dict[str, float]
    stages: tuple[Stage, ...]
    memory: Memory

    @cached_property
    def mfu(self) -> float:
        """The share of the peak that the operations of the model are, without recomputation."""
        flop = self.model.step_flop(self.plan.global_batch)
        peak = self.cluster.accelerator.peak(self.plan.dtype) * self.plan.accelerators
        return flop / (self.seconds * peak)

    @property
    def exposed_s(self) -> dict[str, float]:
        return {name: value for name, value in self.by_cause.items() if "." in name}


def stages_of(model: Model, plan: Plan, cluster: Cluster) -> list[tuple[int, Stage]]:
    """Different stages, and how many there are of each: the last has the head."""
    dense, moe = (layer_forward(model, plan, cluster, which) for which in (False, True))
    share = model.moe_layers / model.layers
    layer = total((1 - share, dense), (share, moe)) if model.moe_layers else dense
    again: Parts = {}
    if plan.recompute == "full":
        again = layer
    elif plan.recompute == "selective" and not plan.flash:
        again = attention_core(model, plan, cluster)
    back = total((1.0, backward_of(layer, model)), (1.0, again))
    send = exchange(
        cluster, "pp", "send", 2 * plan.micro_batch * model.seq / plan.cp * model.hidden / plan.tp, plan.pp,
        plan.tp * plan.cp * plan.dp,
    )  # fmt: skip
    most = -(-model.layers // plan.pp)
    head = head_forward(model, plan, cluster)
    made = Stage(total((most, layer), (1.0, send)), total((most, back), (1.0, send)))
    rest = model.layers - most * (plan.pp - 1)  # layers of the last stage
    last = Stage(total((rest, layer), (1.0, head)), total((rest, back), (1.0, backward_of(head, model))))
    return ([(plan.pp - 1, made)] if plan.pp > 1 else []) + [(1, last)]


def after_backward(model: Model, plan: Plan, cluster: Cluster) -> tuple[Parts, Parts]:
    """Exchange of gradients (and of weights, where they are sharded), and the optimizer."""
    held = trained_of(model) * held_of(model, plan)
    group = plan.dp * plan.cp
    grads = exchange(cluster, "dp", "all_reduce", _GRADIENT * held, group, plan.tp)
    if plan.zero == 3:
        grads = total((1.5, grads))  # weights are gathered in the forward and in the backward pass
    shards = group if plan.zero else 1
    moved = _OPTIMIZER * held / shards / cluster.accelerator.memory_bytes_per_s
    return grads, {"memory": moved, "host": 1e-4}


def step_of(model: Model, plan: Plan, cluster: Cluster, slower: Mapping[str, float]) -> Step:
    """The step of a plan; raises BadInput where degrees do not divide."""
    plan.check(model, cluster.count)
    kinds = [
        (count, Stage(bound(with_gaps(stage.forward), slower), bound(with_gaps(stage.backward), slower)))
        for count, stage in stages_of(model, plan, cluster)
    ]
    times = [seconds(total((1.0, stage.forward), (1.0, stage.backward)), slower) for _, stage in kinds]
    slowest = max(range(len(kinds)), key=lambda at: times[at])
    parts: list[tuple[float, Parts]] = []
    repeats = plan.micro_batches - 1
    for at, (count, stage) in enumerate(kinds):
        passes = repeats * (at == slowest) + _fill(plan, count)
        parts += [(passes, stage.forward), (passes, stage.backward)]
    grads, update = after_backward(model, plan, cluster)
    work = total(*parts, (1.0, grads), (1.0, update))
    by_cause = {name: value * slower[name.rpartition(".")[2]] for name, value in work.items()}
    if plan.overlap:
        for name in by_cause:
            if name.partition(".")[0] in HIDDEN:
                by_cause[name] *= EXPOSED
    memory = memory_of(model, plan, cluster)
    moved = offload_s(model, plan, cluster, sum(by_cause.values()))
    if moved:
        by_cause["offload"] = moved
    return Step(model, plan, cluster, sum(by_cause.values()), by_cause, tuple(stage for _, stage in kinds), memory)


def _fill(plan: Plan, count: int) -> float:
    """How often the passes of `count` equal stages are on the way of the first and the last micro-batch."""
    if plan.pp == 1:
        return float(count)
    if plan.schedule == "dualpipe":  # half as many stages to fill from either side
        return count / 2
    if count == 1:  # the last stage: its own passes are on the way in any case
        return 1.0
    return count / plan.interleave
