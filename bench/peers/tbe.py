"""FBGEMM's table-batched embeddings on the CPU, as TorchRec uses them; None where they are not installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_PACKAGE = "fbgemm_gpu.split_table_batched_embeddings_ops_"


def bags_of(rows: Any, dim: int) -> Callable[[Any, Any], Any] | None:
    """A call that pools bags from these rows themselves; of int8, from a copy, whose scales are float16."""
    try:
        importlib.import_module("fbgemm_gpu")
        common = importlib.import_module(f"{_PACKAGE}common")
        types = importlib.import_module("fbgemm_gpu.split_embedding_configs")
        return _integers(rows, dim, common, types) if "int8" in str(rows.dtype) else _floats(rows, common, types)
    except (ImportError, OSError):
        return None


def _floats(rows: Any, common: Any, types: Any) -> Callable[[Any, Any], Any]:
    ops = importlib.import_module(f"{_PACKAGE}training")
    module = ops.SplitTableBatchedEmbeddingBagsCodegen(
        [(1, rows.shape[1], common.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)],  # and no second copy of all rows
        weights_precision=types.SparseType.FP16 if "16" in str(rows.dtype) else types.SparseType.FP32,
        optimizer=types.EmbOptimType.EXACT_SGD,
    )
    module.weights_host = type(module.weights_host)(rows.view(-1))
    module.hash_size_cumsum[-1] = module.rows_per_table[0] = len(rows)
    call: Callable[[Any, Any], Any] = module
    return call


def _integers(packed: Any, dim: int, common: Any, types: Any) -> Callable[[Any, Any], Any]:
    """Rows of torch end with two float32, rows of FBGEMM begin with two float16."""
    ops = importlib.import_module(f"{_PACKAGE}inference")
    torch = importlib.import_module("torch")
    kind = types.SparseType
    spec = [("t", len(packed), dim, kind.INT8, common.EmbeddingLocation.HOST)]
    module = ops.IntNBitTableBatchedEmbeddingBagsCodegen(spec, device="cpu", output_dtype=kind.FP32)
    module.initialize_weights()
    ((weights, _),) = module.split_embedding_weights(split_scale_shifts=False)
    for first in range(0, len(packed), 1 << 18):
        some = packed[first : first + (1 << 18)]
        weights[first : first + len(some), :4] = some[:, dim:].contiguous().view(torch.float32).half().view(torch.uint8)
        weights[first : first + len(some), 4:] = some[:, :dim]
    call: Callable[[Any, Any], Any] = module
    return call
