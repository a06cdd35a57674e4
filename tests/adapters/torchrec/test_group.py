"""A group of tables beside FBGEMM's module: weights, means, tables with several features."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("torchrec", reason="TorchRec is not installed: pip install --no-deps torchrec==1.8.0")

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from openshelf import Space, Table
from openshelf.adapters.torchrec.group import TableGroup
from openshelf.adapters.torchrec.optimizers import rule_of
from openshelf.adapters.torchrec.storage import Part
from openshelf.errors import BadInput

SHAPES, FEATURES, BAGS = [(50, 8), (70, 12)], [0, 0, 1], 6  # the first table has two features
FUSED = {"optimizer": EmbOptimType.EXACT_ADAGRAD, "learning_rate": 0.1, "eps": 1e-6}


def group_of(space: Space, rows: list[torch.Tensor], mean: bool = False) -> TableGroup:
    rule = rule_of(FUSED, ["a", "b"])
    made = [
        Table.create(space, name, rows=len(some), dim=some.shape[1], init=some, optimizer=rule.of_a_table())
        for name, some in zip("ab", rows, strict=True)
    ]
    return TableGroup([Part(table, 0, None, {}) for table in made], FEATURES, rule, mean, True)


def rows_of(group: TableGroup) -> list[torch.Tensor]:
    return [part.table.lookup(torch.arange(part.table.rows)) for part in group.parts]


def drawn(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(step)
    lengths = torch.randint(0, 4, (len(FEATURES) * BAGS,))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ids = torch.randint(0, 50, (int(offsets[-1]),))
    ids[::3] = 3
    return ids, offsets, torch.rand(len(ids)), torch.randn(BAGS, 2 * 8 + 12)


@pytest.mark.parametrize(("mean", "weighted"), [(False, False), (False, True), (True, False)])
def test_a_group_has_the_bits_of_fbgemm(space: Space, mean: bool, weighted: bool) -> None:
    theirs = SplitTableBatchedEmbeddingBagsCodegen(
        [(*shape, EmbeddingLocation.HOST, ComputeDevice.CPU) for shape in SHAPES],
        feature_table_map=FEATURES,
        pooling_mode=PoolingMode.MEAN if mean else PoolingMode.SUM,
        **FUSED,
    )
    for rows in theirs.split_embedding_weights():
        rows.copy_(torch.randn(rows.shape))
    ours = group_of(space, [rows.clone() for rows in theirs.split_embedding_weights()], mean)
    for step in range(3):
        ids, offsets, weights, gradient = drawn(step)
        factors: list[Any] = [weights.clone().requires_grad_() if weighted else None for _ in range(2)]
        expected = theirs(indices=ids, offsets=offsets, per_sample_weights=factors[0])
        found = ours(ids, offsets, factors[1])
        assert torch.equal(found, expected)
        expected.backward(gradient)
        found.backward(gradient)
        assert all(map(torch.equal, rows_of(ours), theirs.split_embedding_weights()))
        if weighted:
            assert torch.allclose(factors[1].grad, factors[0].grad, atol=1e-5)


def test_means_with_weights_have_the_gradients_of_torch(space: Space) -> None:
    """FBGEMM leaves the division out of these."""
    ours = group_of(space, [torch.randn(shape) for shape in SHAPES], mean=True)
    ids, offsets, weights, gradient = drawn(5)
    rows = [some.clone().requires_grad_() for some in rows_of(ours)]
    theirs, mine = weights.clone().requires_grad_(), weights.clone().requires_grad_()
    parts = []
    for at, number in enumerate(FEATURES):
        bounds = offsets[at * BAGS : (at + 1) * BAGS + 1]
        first, last = int(bounds[0]), int(bounds[-1])
        pooled = torch.nn.functional.embedding_bag(
            ids[first:last], rows[number], bounds - first, mode="sum", per_sample_weights=theirs[first:last],
            include_last_offset=True,
        )  # fmt: skip
        parts.append(pooled / bounds.diff().clamp(min=1)[:, None])
    expected = torch.cat(parts, 1)
    found = ours(ids, offsets, mine)
    assert torch.allclose(found, expected, atol=1e-6)
    expected.backward(gradient)
    found.backward(gradient)
    assert torch.allclose(mine.grad, theirs.grad, atol=1e-5)
    for some, changed in zip(rows, rows_of(ours), strict=True):
        wanted = some.detach() - 0.1 * some.grad / (some.grad.abs() + 1e-6)
        assert torch.allclose(changed, wanted, atol=1e-4)


def test_settings_that_training_changes(space: Space) -> None:
    group = group_of(space, [torch.zeros(shape) for shape in SHAPES])
    group.update_hyper_parameters({"eps": 0.5})
    group.set_learning_rate(0.25)
    assert group.rule.settings[:2] == (0.25, 0.5)
    with pytest.raises(BadInput, match="lr and eps"):
        group.update_hyper_parameters({"lr": 1.0, "weight_decay": 0.1})
    group.set_optimizer_step(7)
    assert [part.table.stat()["steps"] for part in group.parts] == [7, 7]


def test_a_batch_of_no_bags_changes_nothing(space: Space) -> None:
    group = group_of(space, [torch.ones(shape) for shape in SHAPES])
    out = group(torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    assert out.shape == (0, 28)
    out.sum().backward()
    assert all(bool((rows == 1).all()) for rows in rows_of(group))
