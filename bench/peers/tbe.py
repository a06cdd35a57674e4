"""FBGEMM's table-batched embeddings on the CPU, as TorchRec uses them; None where they are not installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def bags_of(rows: Any, ids: list[Any], offsets: Any) -> Callable[[], Any] | None:
    """A call that pools the next of the batches of ids, from a copy of these rows."""
    try:
        importlib.import_module("fbgemm_gpu")
        ops = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
        common = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_common")
        types = importlib.import_module("fbgemm_gpu.split_embedding_configs")
    except (ImportError, OSError):
        return None
    kind = types.SparseType.FP16 if "16" in str(rows.dtype) else types.SparseType.FP32
    module = ops.SplitTableBatchedEmbeddingBagsCodegen(
        [(*rows.shape, common.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)],
        weights_precision=kind,
        optimizer=types.EmbOptimType.EXACT_SGD,
    )
    module.split_embedding_weights()[0].copy_(rows)
    number = 0

    def call() -> Any:
        nonlocal number
        number += 1
        return module(ids[number % len(ids)], offsets)

    return call
