"""Rows and states after training by TableBag have the bits of FBGEMM's table-batched embeddings for CPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("fbgemm_gpu", reason="FBGEMM is not installed: pip install fbgemm-gpu-cpu==1.8.0")

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from openshelf import Space, Table, _core
from openshelf.tables import SGD, Adagrad, RowwiseAdagrad, TableBag

ROWS, BAGS, LR, EPS = 300, 48, 0.1, 1e-6
OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "sgd": (EmbOptimType.EXACT_SGD, SGD(LR)),
    "adagrad": (EmbOptimType.EXACT_ADAGRAD, Adagrad(LR, EPS)),
    "rowwise": (EmbOptimType.EXACT_ROWWISE_ADAGRAD, RowwiseAdagrad(LR, EPS)),
}


def pair(space: Space, optimizer: str, dim: int, mode: str) -> tuple[Any, TableBag]:
    theirs = SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=OPTIMIZERS[optimizer][0],
        learning_rate=LR,
        eps=EPS,
        pooling_mode=PoolingMode.SUM if mode == "sum" else PoolingMode.MEAN,
    )
    rows = theirs.split_embedding_weights()[0]
    rows.copy_(torch.randn(ROWS, dim, generator=torch.Generator().manual_seed(dim)))
    table = Table.create(space, "t", rows=ROWS, dim=dim, init=rows.clone(), optimizer=OPTIMIZERS[optimizer][1])
    return theirs, TableBag(table, mode, include_last_offset=True)


@pytest.mark.parametrize("kernels", _core.table_kernels())
@pytest.mark.parametrize("weighted", ["sum", "sum, weights", "mean"])
@pytest.mark.parametrize("dim", [4, 20, 64, 128])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_has_the_bits_of_fbgemm(space: Space, optimizer: str, dim: int, weighted: str, kernels: str) -> None:
    _core.choose_table_kernels(kernels)
    try:
        theirs, ours = pair(space, optimizer, dim, weighted.partition(",")[0])
        drawn = torch.Generator().manual_seed(3)
        for _ in range(4):
            lengths = torch.randint(0, 6, (BAGS,), generator=drawn)
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
            ids = torch.randint(0, ROWS, (int(offsets[-1]),), generator=drawn)
            ids[: len(ids) // 3] %= 5  # some come often
            weights = torch.rand(len(ids), generator=drawn) if "weights" in weighted else None
            gradient = torch.randn(BAGS, dim, generator=drawn)
            theirs(indices=ids, offsets=offsets, per_sample_weights=weights).backward(gradient)
            ours(ids, offsets, weights).backward(gradient)
        every = torch.arange(ROWS)
        assert torch.equal(ours.table.lookup(every), theirs.split_embedding_weights()[0])
        for states in theirs.get_optimizer_state():
            assert torch.equal(ours.table.states(every).view(-1), states["sum"].view(-1))
    finally:
        _core.choose_table_kernels("")
