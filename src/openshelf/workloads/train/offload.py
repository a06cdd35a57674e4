"""What offload adds to a step: bytes that cross the host link, and how much of it computing hides.

The rule is the real planner's: a transfer begins as early as memory allows and overlaps all computing between its
beginning and its use, so that only what the link cannot move in the time of the step is exposed, plus the first
transfer, which has nothing before it.
"""

from __future__ import annotations

from openshelf.workloads.train.cluster import Cluster
from openshelf.workloads.train.memory import activations_of_layer, held_of, trained_of
from openshelf.workloads.train.model import Model
from openshelf.workloads.train.plan import Plan


def offload_bytes(model: Model, plan: Plan) -> dict[str, float]:
    """Bytes in each direction that a step moves, by what is offloaded: of the device's own experts and shards."""
    held, group = held_of(model, plan), plan.dp * plan.cp
    passes = 2 * plan.micro_batches if plan.recompute != "full" else 3 * plan.micro_batches
    layers = -(-model.layers // plan.pp)
    moved = {
        "weights": 2 * held * passes / (group if plan.zero == 3 else 1),
        "optimizer": 12 * trained_of(model) * held / (group if plan.zero else 1),
        "activations": plan.micro_batches * layers * activations_of_layer(model, plan),
    }
    return {name: moved[name] for name in plan.offload}


def offload_s(model: Model, plan: Plan, cluster: Cluster, step_s: float) -> float:
    """Seconds that offload adds to a step of `step_s`."""
    moved = offload_bytes(model, plan)
    if not moved:
        return 0.0
    busy = sum(moved.values()) / cluster.host_bytes_per_s
    layers = -(-model.layers // plan.pp)
    first = max(moved.values()) / layers / max(1, plan.micro_batches) / cluster.host_bytes_per_s
    return max(0.0, busy - step_s) + first
