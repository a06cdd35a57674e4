"""The work of one layer and one micro-batch on one device, in seconds at the rates as sold, by cause.

`compute` is matrix products, `memory` what crosses the accelerator's memory, `host` kernels that the host launches (a
microsecond each, beside what the device does), `gap` the same kernels on the device (between two of them it waits),
and communication has a name for what it is for (`tp`, `cp`, `ep`, `pp`, `dp`) and where it goes
(`inside` a node, `between` nodes). Constants (constants.py) say how many times as long each takes.
"""

from __future__ import annotations

from collections.abc import Mapping

from openshelf.workloads.train.cluster import Cluster, Kind, collective_s
from openshelf.workloads.train.model import Model
from openshelf.workloads.train.plan import Plan

Parts = dict[str, float]

KERNELS = 24  # of a layer's forward pass
_WIDE = 2.0  # bytes of an activation
_BYTES = {"bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "nvfp4": 0.5}


def total(*every: tuple[float, Parts]) -> Parts:
    """The sum of parts, each times a factor."""
    made: Parts = {}
    for times, parts in every:
        if times:
            for name, value in parts.items():
                made[name] = made.get(name, 0.0) + times * value
    return made


def exchange(cluster: Cluster, purpose: str, kind: Kind, nbytes: float, ranks: int, stride: int) -> Parts:
    inside, between = collective_s(cluster, kind, nbytes, ranks, stride)
    return {name: value for name, value in ((f"{purpose}.inside", inside), (f"{purpose}.between", between)) if value}


def products(model: Model, plan: Plan, cluster: Cluster, weights: float, rows: float, wide: float) -> Parts:
    """Matrix products of `rows` tokens with `weights` numbers; `wide` numbers of a token go in and out."""
    size = _BYTES.get(plan.dtype, 2.0)
    return {
        "compute": 2 * rows * weights / cluster.accelerator.peak(plan.dtype),
        "memory": (size * weights + _WIDE * rows * wide) / cluster.accelerator.memory_bytes_per_s,
    }


def attention_core(model: Model, plan: Plan, cluster: Cluster) -> Parts:
    """Scores, softmax and their product with the values: what selective recomputation repeats."""
    batch, heads, width = plan.micro_batch, model.heads / plan.tp, model.width / plan.tp
    square = model.seq * model.seq / plan.cp
    peak, memory = cluster.accelerator.peak("bfloat16"), cluster.accelerator.memory_bytes_per_s
    if plan.flash:
        return {"compute": 2 * batch * square * width / peak, "host": 1e-6}
    moved = 11 * batch * heads * square  # scores written, masked and normalised, dropped out, read: bytes an element
    return {"compute": 4 * batch * square * width / peak, "memory": moved / memory, "host": 6e-6}


def layer_forward(model: Model, plan: Plan, cluster: Cluster, moe: bool) -> Parts:
    """One layer's forward pass of one micro-batch."""
    hidden, rows = model.hidden, plan.micro_batch * model.seq / plan.cp
    attention = products(
        model, plan, cluster, model.attention_weights / plan.tp, rows, 2 * hidden + 2 * model.width / plan.tp
    )
    split = plan.tp if plan.sequence_parallel else 1
    around = 22 * rows * hidden / split + 12 * rows * model.width / plan.tp  # norms, dropouts, residuals; heads
    small = {"memory": around / cluster.accelerator.memory_bytes_per_s, "host": KERNELS * 1e-6}
    made = [(1.0, attention), (1.0, attention_core(model, plan, cluster)), (1.0, small)]
    made += [(1.0, _experts(model, plan, cluster, rows) if moe else _feed_forward(model, plan, cluster, rows))]
    made += [(2.0, exchange(cluster, "tp", "all_reduce", _WIDE * rows * hidden, plan.tp, 1))]
    kv = 2 * _WIDE * rows * model.kv_width / plan.tp
    made += [(plan.cp - 1.0, exchange(cluster, "cp", "send", kv, plan.cp, plan.tp))] if plan.cp > 1 else []
    return total(*made)


def _feed_forward(model: Model, plan: Plan, cluster: Cluster, rows: float) -> Parts:
    ffn = model.ffn / plan.tp
    made = products(model, plan, cluster, model.dense_weights / plan.tp, rows, 2 * model.hidden + 2 * ffn)
    acted = {"memory": (6 if model.gated else 4) * rows * ffn / cluster.accelerator.memory_bytes_per_s}
    return total((1.0, made), (1.0, acted))


def _experts(model: Model, plan: Plan, cluster: Cluster, rows: float) -> Parts:
    """Experts of one device: with `ep` devices each has a part of them, and tokens travel there and back."""
    split = plan.tp if plan.ep == 1 else 1
    each = rows * model.topk / (1 if plan.ep == 1 else plan.tp)
    inner = model.moe_ffn / split
    local = model.experts / plan.ep
    peak, memory = cluster.accelerator.peak(plan.dtype), cluster.accelerator.memory_bytes_per_s
    size, wide = _BYTES.get(plan.dtype, 2.0), 2 * model.hidden + (5 if model.gated else 4) * inner
    routed = {
        "compute": 2 * each * model.expert_weights / split / peak,
        "memory": (size * local * model.expert_weights / split + _WIDE * each * wide) / memory,
        "host": 10e-6,
    }
    shared = products(model, plan, cluster, model.shared_weights / plan.tp, rows, 2 * model.hidden)
    there = exchange(cluster, "ep", "all_to_all", size * each * model.hidden, plan.ep, plan.tp if split > 1 else 1)
    back = exchange(cluster, "ep", "all_to_all", _WIDE * each * model.hidden, plan.ep, plan.tp if split > 1 else 1)
    return total((1.0, routed), (1.0 if model.shared_ffn else 0.0, shared), (1.0, there), (1.0, back))


def head_forward(model: Model, plan: Plan, cluster: Cluster) -> Parts:
    """The logits and the loss, on the last stage."""
    rows, vocab = plan.micro_batch * model.seq / plan.cp, model.vocab / plan.tp
    made = products(model, plan, cluster, model.hidden * vocab, rows, model.hidden + vocab)
    loss = {"memory": 10 * rows * vocab / cluster.accelerator.memory_bytes_per_s, "host": 10e-6}
    return total((1.0, made), (1.0, loss), (1.0, exchange(cluster, "tp", "all_reduce", 8 * rows, plan.tp, 1)))


def backward_of(forward: Parts, model: Model) -> Parts:
    """Gradients of inputs and of weights are each as much as the forward pass; communication is repeated once."""
    times = 1.0 if model.lora else 2.0
    return {name: value * (times if name in ("compute", "memory", "host") else 1.0) for name, value in forward.items()}


def with_gaps(parts: Parts) -> Parts:
    """Every kernel that is launched has a gap beside it."""
    return parts | ({"gap": parts["host"]} if "host" in parts else {})


def bound(parts: Parts, slower: Mapping[str, float]) -> Parts:
    """What a pass takes: launching goes on beside everything else, so the longer of the two is what counts."""
    host = {name: value for name, value in parts.items() if name == "host"}
    device = {name: value for name, value in parts.items() if name != "host"}
    return host if seconds(host, slower) > seconds(device, slower) else device


def seconds(parts: Parts, slower: Mapping[str, float]) -> float:
    """What parts take by constants."""
    return sum(value * slower[name.rpartition(".")[2]] for name, value in parts.items())
