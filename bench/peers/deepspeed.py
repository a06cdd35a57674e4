"""DeepSpeed as a contender of bench/offload.py: ZeRO-3 with what it offloads on NVMe, tuned for this.

Blocks of 1 MiB, 16 requests, two threads for them; buffers for eight of the largest weights, and as many bytes fetched
ahead as three of them have. For training, what makes its memory least: small groups and buckets, nothing overlapped,
which was no slower. Its kernels are compiled at the first use, which takes minutes. Weights are random, and others than
ours: only time and memory are compared. Version 0.18.2 stops for ever now and then: it waits with the
interpreter's lock held.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kit.servers import free_port
from processes.offload_shapes import Shape

ASYNC_IO = {"block_size": 1 << 20, "queue_depth": 16, "intra_op_parallelism": 2, "single_submit": False}


def started() -> Any:
    """The library, as the only process of its group."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    os.environ.update(alone, DS_ACCELERATOR="cpu")
    deepspeed = importlib.import_module("deepspeed")
    if not torch.distributed.is_initialized():
        deepspeed.init_distributed("gloo", verbose=False)
    return deepspeed


def config_of(shape: Shape, folder: Path) -> dict[str, Any]:
    largest = max(shape.vocabulary, shape.between) * shape.hidden
    at = folder / "deepspeed"
    at.mkdir(exist_ok=True)
    return {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {
            "stage": 3,
            "offload_param": {
                "device": "nvme", "nvme_path": str(at), "pin_memory": True, "buffer_count": 8,
                "buffer_size": largest + 1024, "max_in_cpu": 0,
            },
            "stage3_prefetch_bucket_size": 3 * largest,
            "stage3_max_live_parameters": 6 * largest,
            "stage3_max_reuse_distance": 0,
            "stage3_param_persistence_threshold": 10_000,
        },
        "aio": ASYNC_IO | {"overlap_events": True},
    }  # fmt: skip


def running(shape: Shape, folder: Path, ids: Any, budget: int) -> Callable[[], object]:
    """Inference; parameters on NVMe."""
    deepspeed = started()
    config = config_of(shape, folder)
    engine, *_ = deepspeed.initialize(model=_empty(deepspeed, shape, config).eval(), config=config)
    engine.module.eval()

    def run() -> object:
        with torch.no_grad():
            logits = engine.module(ids, use_cache=False).logits
        assert logits.dtype == torch.float32, f"DeepSpeed computes in {logits.dtype}, all others in float32"
        return logits

    return run


def training(shape: Shape, folder: Path, ids: Any, budget: int) -> Callable[[], object]:
    """Layers are checkpointed; parameters, and states of the optimizer, are on NVMe."""
    deepspeed = started()
    config = config_of(shape, folder)
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}
    config["zero_optimization"]["offload_optimizer"] = {
        "device": "nvme", "nvme_path": str(folder / "deepspeed"), "pin_memory": True, "buffer_count": 4,
        "pipeline_read": False, "pipeline_write": False,
    }  # fmt: skip
    largest = config["zero_optimization"]["offload_param"]["buffer_size"]
    config["zero_optimization"].update(sub_group_size=largest, reduce_bucket_size=largest, overlap_comm=False)
    model = _empty(deepspeed, shape, config).train()
    model.gradient_checkpointing_enable()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def run() -> None:
        found = engine(ids, labels=ids, use_cache=False)
        assert found.logits.dtype == torch.float32, f"DeepSpeed computes in {found.logits.dtype}, others in float32"
        engine.backward(found.loss)
        engine.step()

    return run


def _empty(deepspeed: Any, shape: Shape, config: dict[str, Any]) -> Any:
    from transformers import LlamaForCausalLM

    with deepspeed.zero.Init(config_dict_or_path=config):  # float32 by its configuration: asked for, it takes bfloat16
        return LlamaForCausalLM(shape.config)
