"""Work: what a step of a model needs of one accelerator, in seconds. The law makes times of it.

Weights move at the rates as sold. What computes, and the keys that decodes read, is as many times as long as the
operators' laws say of this accelerator and dtype (twin/ops): matrix products of fp8 are at half to two thirds of what
is sold, those of bfloat16 near to it.

A plan says how a model is cut: tensor parallelism within a replica, data-parallel attention (each rank has its own
sequences, all share the experts), expert parallelism. Fields may be arrays, one element for each setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openshelf.errors import BadInput
from openshelf.twin.ops import Accelerator, Law, name_of
from openshelf.twin.ops import slower as slower_of
from openshelf.twin.serve.model import BYTES, ServedModel

Floats = NDArray[np.float64]
Laws = Mapping[str, Mapping[str, Law]]
HOPPER_LINK = 450e9
_MORE_RANKS = 0.25
"""Power of the ranks with which the least time of an all-reduce grows: 1.4 times from 2 to 8 in measured kernels."""


@dataclass(frozen=True)
class Plan:
    """How a replica is cut: `tensor` x `attention_replicas` accelerators; experts lie on all of them."""

    tensor: int = 1
    attention_replicas: int = 1
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    link_bytes_per_s: float = HOPPER_LINK

    @property
    def accelerators(self) -> int:
        return self.tensor * self.attention_replicas

    def check(self, model: ServedModel) -> None:
        if self.tensor < 1 or self.attention_replicas < 1:
            raise BadInput(
                f"a replica of {self.tensor} x {self.attention_replicas} accelerators: give at least 1 of each"
            )
        if model.heads % self.tensor:
            raise BadInput(
                f"{model.name} has {model.heads} heads, which {self.tensor} accelerators cannot share: give a divisor"
            )
        for dtype in (self.dtype, self.kv_dtype):
            if dtype not in BYTES:
                raise BadInput(f"dtype {dtype!r} is none of {', '.join(BYTES)}")


@dataclass(frozen=True)
class Work:
    """Seconds: weights that every step reads, what a token computes and moves, what a token of context costs."""

    linear_s: Any
    linear_token_s: Any
    experts_s: Any
    expert_token_s: Any
    experts: Any
    experts_used: Any
    kv_s: Any
    kv_compute_s: Any
    prefill_s: Any
    moved_token_s: Any
    expert_moved_s: Any
    reduce_token_s: Any
    reduces: Any
    operators: Any
    ranks: Any
    window: Any
    windowed_share: Any
    blackwell: Any

    def __getitem__(self, rows: Any) -> Work:
        return Work(*(np.asarray(getattr(self, each.name))[rows] for each in fields(self)))


def work_of(model: ServedModel, device: Accelerator, plan: Plan, laws: Laws | None = None) -> Work:
    """Of one setting. `laws` are of the accelerator's own tables (laws_for), and go before the package's."""
    plan.check(model)

    def slower(op: str, device: str, **words: str) -> Mapping[str, float]:
        own = (laws or {}).get(op, {}).get(name_of(words))
        return own.slower if own else slower_of(op, device, **words)

    bandwidth, half = device.memory_bytes_per_s, device.peak("bfloat16")
    tensor, ranks, all_of_them = plan.tensor, plan.attention_replicas, plan.accelerators
    linear, expert = model.linear_dtype or plan.dtype, model.expert_dtype or plan.dtype
    dense = model.dense_parameters / tensor
    head = model.hidden * model.vocabulary / tensor
    chosen = model.expert_layers * model.expert_parameters
    kv_ranks = 1 if model.latent else min(tensor, model.kv_heads)
    looked, computed = _attention(model)
    rate, moved = _experts(model, device, plan, expert, slower)
    named = {"fp8_block": "fp8", "float16": "bfloat16"}.get(linear, linear)
    product = named if device.has(named) else "bfloat16"
    words = {"dtype": "bfloat16", "kv_dtype": "bfloat16", "gemm": "bfloat16"} if model.latent else {}
    attention = slower("mla" if model.latent else "attention", device.name, **words)["compute"]
    reading = max(1.0, slower("mla_decode" if model.latent else "decode", device.name, **words)["memory"])
    shared = 2 * (all_of_them - 1) / all_of_them
    kernels = model.layers * model.operators
    return Work(
        linear_s=(dense * BYTES[linear] + head * 2.0) / bandwidth,
        linear_token_s=2 * dense / device.peak(linear) * slower("gemm", device.name, dtype=product)["compute"],
        experts_s=chosen * model.experts * BYTES[expert] / all_of_them / bandwidth,
        expert_token_s=2 * chosen * model.experts_used / all_of_them / rate,
        experts=float(max(model.experts, 1)),
        experts_used=float(max(model.experts_used, 1)),
        kv_s=model.kv_bytes(plan.kv_dtype) / kv_ranks / bandwidth * reading,
        kv_compute_s=model.layers * looked / tensor / half,
        prefill_s=model.layers * computed / tensor / half * attention,
        moved_token_s=kernels * 2 * 2.0 * model.hidden / bandwidth,
        expert_moved_s=moved,
        reduce_token_s=2 * model.layers * model.hidden * 2.0 * shared / plan.link_bytes_per_s,
        reduces=2.0 * model.layers * (all_of_them / 4) ** _MORE_RANKS if all_of_them > 1 else 0.0,
        operators=float(kernels),
        ranks=float(ranks),
        window=float(model.window or 1 << 30),
        windowed_share=model.windowed_share,
        blackwell="nvfp4" in device.flop_per_s,
    )


def _attention(model: ServedModel) -> tuple[float, float]:
    """Operations of a layer for each pair of tokens: of decodes, and of prompts."""
    if not model.latent:
        return 4.0 * model.heads * model.head_dim, 4.0 * model.heads * model.head_dim
    looked = 2 * 2 * model.heads * (model.latent + model.rope_dim)
    return float(looked), 2.0 * model.heads * (model.head_dim + model.rope_dim + model.value_dim)


def _experts(
    model: ServedModel, device: Accelerator, plan: Plan, dtype: str, slower: Callable[..., Mapping[str, float]]
) -> tuple[float, float]:
    """The rate at which experts compute, and the seconds in which a token's rows move between them.

    mxfp4 is a format of weights: its products are those of fp8 where an accelerator has 4 bits, else of bfloat16.
    """
    native = "nvfp4" in device.flop_per_s
    peak = device.peak(("fp8" if native else "bfloat16") if dtype == "mxfp4" else dtype)
    if not model.experts:
        return peak, 0.0
    name = {"fp8": "fp8_block", "mxfp4": "nvfp4" if native else "w4a16_mxfp4", "float16": "bfloat16"}.get(dtype, dtype)
    if dtype != "mxfp4" and not device.has(dtype):
        name = "bfloat16"
    times = slower("moe", device.name, dtype=name, routing="balanced")
    rows = times["rows"] * model.hidden / plan.attention_replicas
    rows += times["inner"] * model.expert_width / plan.accelerators
    moved = model.expert_layers * model.experts_used * 2.0 * rows / device.memory_bytes_per_s
    return peak / times["compute"], moved


def stack(works: Sequence[Work]) -> Work:
    """Many settings as one, with arrays."""
    return Work(*(np.array([getattr(work, each.name) for work in works], dtype=np.float64) for each in fields(Work)))
