"""Work: what a step of a model needs of one accelerator, in seconds at rates as sold. The law makes times of it.

A plan says how a model is cut: tensor parallelism within a replica, data-parallel attention (each rank has its own
sequences, all share the experts), expert parallelism. Fields may be arrays, one element for each setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openshelf.errors import BadInput
from openshelf.twin.ops import Accelerator
from openshelf.twin.serve.model import BYTES, ServedModel

Floats = NDArray[np.float64]
HOPPER_LINK = 450e9


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
    """Seconds at rates as sold: weights that every step reads, what a token computes, what a token of context costs."""

    linear_s: Any
    linear_token_s: Any
    experts_s: Any
    expert_token_s: Any
    experts: Any
    experts_used: Any
    kv_s: Any
    kv_compute_s: Any
    prefill_s: Any
    reduce_token_s: Any
    reduces: Any
    operators: Any
    ranks: Any
    window: Any
    windowed_share: Any
    blackwell: Any

    def __getitem__(self, rows: Any) -> Work:
        return Work(*(np.asarray(getattr(self, each.name))[rows] for each in fields(self)))


def work_of(model: ServedModel, device: Accelerator, plan: Plan) -> Work:
    """Of one setting."""
    plan.check(model)
    bandwidth, half = device.memory_bytes_per_s, device.peak("bfloat16")
    tensor, ranks, all_of_them = plan.tensor, plan.attention_replicas, plan.accelerators
    linear, expert = model.linear_dtype or plan.dtype, model.expert_dtype or plan.dtype
    dense = model.dense_parameters / tensor
    head = model.hidden * model.vocabulary / tensor
    expert_rate = (
        half
        if expert == "mxfp4" and "nvfp4" not in device.flop_per_s
        else device.peak("nvfp4" if expert == "mxfp4" else expert)
    )
    chosen = model.expert_layers * model.expert_parameters
    kv_ranks = 1 if model.latent else min(tensor, model.kv_heads)
    if model.latent:
        looked = 2 * 2 * model.heads * (model.latent + model.rope_dim)
        computed = 2 * model.heads * (model.head_dim + model.rope_dim + model.value_dim)
    else:
        looked = computed = 4 * model.heads * model.head_dim
    shared = 2 * (all_of_them - 1) / all_of_them
    return Work(
        linear_s=(dense * BYTES[linear] + head * 2.0) / bandwidth,
        linear_token_s=2 * dense / device.peak(linear),
        experts_s=chosen * model.experts * BYTES[expert] / all_of_them / bandwidth,
        expert_token_s=2 * chosen * model.experts_used / all_of_them / expert_rate,
        experts=float(max(model.experts, 1)),
        experts_used=float(max(model.experts_used, 1)),
        kv_s=model.kv_bytes(plan.kv_dtype) / kv_ranks / bandwidth,
        kv_compute_s=model.layers * looked / tensor / half,
        prefill_s=model.layers * computed / tensor / half,
        reduce_token_s=2 * model.layers * model.hidden * 2.0 * shared / plan.link_bytes_per_s,
        reduces=2.0 * model.layers if all_of_them > 1 else 0.0,
        operators=float(model.layers * model.operators),
        ranks=float(ranks),
        window=float(model.window or 1 << 30),
        windowed_share=model.windowed_share,
        blackwell="nvfp4" in device.flop_per_s,
    )


def stack(works: Sequence[Work]) -> Work:
    """Many settings as one, with arrays."""
    return Work(*(np.array([getattr(work, each.name) for work in works], dtype=np.float64) for each in fields(Work)))
