"""Memory of a device by kind: weights, gradients, optimizer state, activations, logits.

Activations are those of Korthikanti et al. 2022 (arXiv 2205.05198), tensor by tensor, for a stage that keeps the
micro-batches that are on their way.
"""

from __future__ import annotations

from dataclasses import dataclass

from openshelf.workloads.train.cluster import Cluster
from openshelf.workloads.train.model import Model
from openshelf.workloads.train.plan import Plan

_RESERVED = 2.5e9  # of context, kernels and communication buffers


@dataclass(frozen=True)
class Memory:
    """Bytes of the fullest device. `host` are those that were offloaded."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    reserved: float
    capacity: float
    host: float = 0.0

    @property
    def used(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.reserved

    @property
    def fits(self) -> bool:
        return self.used <= self.capacity


def activations_of_layer(model: Model, plan: Plan) -> float:
    """Bytes of one layer and micro-batch that the backward pass needs."""
    tokens = plan.micro_batch * model.seq / plan.cp
    whole = tokens * model.hidden
    if plan.recompute == "full":
        return 2 * whole / (plan.tp if plan.sequence_parallel else 1)
    repeated = {"inputs of two norms": 4, "masks of two dropouts": 2, "inputs of attention and feed-forward": 4}
    heads = 2 * (model.width + 2 * model.kv_width) + 2 * model.width  # queries, keys, values; input of the projection
    inner = (6 if model.gated else 4) * _inner(model)  # inputs of the activation (twice, gated), and its output
    split = 10 * whole / (plan.tp if plan.sequence_parallel else 1)
    assert sum(repeated.values()) == 10
    scores = 0.0
    if not plan.flash and plan.recompute == "none":
        scores = 5 * plan.micro_batch * model.heads * model.seq * model.seq / plan.cp / plan.tp
    return split + tokens * (heads + inner) / plan.tp + scores


def _inner(model: Model) -> float:
    """Width of the feed-forward part that a token meets, over all layers."""
    if not model.moe_layers:
        return float(model.ffn)
    share = model.moe_layers / model.layers
    return share * (model.moe_ffn * model.topk + model.shared_ffn) + (1 - share) * model.ffn


def kept_micro_batches(plan: Plan) -> float:
    """Micro-batches whose activations the first stage keeps, in units of its layers."""
    most = float(min(plan.pp, plan.micro_batches))
    if plan.schedule == "interleaved" and plan.interleave > 1:
        return most * (1 + (plan.pp - 1) / (plan.pp * plan.interleave))
    return most + 1 if plan.schedule == "dualpipe" else most


def held_of(model: Model, plan: Plan) -> float:
    """Weights of a device: parameters, not bytes."""
    if not (model.experts and plan.ep > 1):
        return model.parameters / (plan.tp * plan.pp)
    routed = model.moe_layers * model.experts * model.expert_weights
    return (model.parameters - routed) / (plan.tp * plan.pp) + routed / (plan.ep * plan.pp)


def trained_of(model: Model) -> float:
    """The share of weights that have gradients and optimizer state."""
    return 0.005 if model.lora else 1.0


def memory_of(model: Model, plan: Plan, cluster: Cluster) -> Memory:
    """The first stage's, which keeps the most."""
    held = held_of(model, plan)
    copies = 2 if plan.schedule == "dualpipe" else 1  # each device has a stage from either end
    shards = plan.dp * plan.cp
    trained = trained_of(model)
    weights = copies * 2.0 * held / (shards if plan.zero == 3 else 1)
    gradients = copies * trained * (2.0 if plan.dtype != "float32" else 4.0) * held
    gradients /= shards if plan.zero >= 2 else 1
    optimizer = copies * trained * 12.0 * held / (shards if plan.zero >= 1 else 1)
    layers = -(-model.layers // plan.pp)
    activations = layers * kept_micro_batches(plan) * activations_of_layer(model, plan)
    if plan.recompute == "full":  # one layer is whole while it is computed again
        whole = Plan(**{**plan.__dict__, "recompute": "none"})
        activations += activations_of_layer(model, whole)
    logits = 6.0 * plan.micro_batch * model.seq / plan.cp * model.vocab / plan.tp if plan.pp == 1 else 0.0
    kinds = {"weights": weights, "optimizer": optimizer, "activations": activations}
    away = sum(kinds[name] for name in plan.offload)
    stay = {name: 0.05 * value if name in plan.offload else value for name, value in kinds.items()}
    return Memory(
        stay["weights"], gradients, stay["optimizer"], stay["activations"], logits, _RESERVED,
        cluster.accelerator.memory_bytes, away,
    )  # fmt: skip


def why_not(model: Model, plan: Plan, cluster: Cluster) -> str:
    """By how much a plan does not fit, and what would make it fit; empty where it does."""
    memory = memory_of(model, plan, cluster)
    if memory.fits:
        return ""
    gb = 1e9
    text = (
        f"{model.name!r} needs {memory.used / gb:.1f} GB on a device and {cluster.accelerator.name} has "
        f"{memory.capacity / gb:.1f} GB: {(memory.used - memory.capacity) / gb:.1f} GB too much (weights "
        f"{memory.weights / gb:.1f}, gradients {memory.gradients / gb:.1f}, optimizer {memory.optimizer / gb:.1f}, "
        f"activations {memory.activations / gb:.1f}, logits {memory.logits / gb:.1f})"
    )
    changes: dict[str, dict[str, object]] = {
        "recompute selective": {"recompute": "selective"},
        "recompute full": {"recompute": "full"},
        "sequence parallelism": {"sequence_parallel": True},
        "zero 1": {"zero": 1},
        "zero 3": {"zero": 3},
        "offload of the optimizer": {"offload": ("optimizer",)},
        "offload of optimizer and activations": {"offload": ("optimizer", "activations")},
        "offload of weights, optimizer and activations": {"offload": ("weights", "optimizer", "activations")},
    }
    helps = []
    for name, change in changes.items():
        other = Plan(**{**plan.__dict__, **change})
        if other != plan and not (other.zero > 1 and other.pp > 1) and memory_of(model, other, cluster).fits:
            helps.append(name)
    more = (
        ", or ".join(helps[:3]) if helps else f"{memory.used / memory.capacity:.1f} times as many devices by tp or pp"
    )
    return f"{text}. It would fit with {more}"
