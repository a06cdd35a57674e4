"""Look-ups and bags against numpy and torch, for every kind of row and every set of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openshelf import Space, Table, _core, tables
from openshelf.errors import BadInput
from openshelf.tables import Normal, Uniform

DTYPES = ("float32", "float16", "bfloat16", "int8", "int4")
FLOATS = DTYPES[:3]
ROWS = 97


@pytest.fixture(params=_core.table_kernels())
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each set of kernels that this processor has."""
    _core.choose_table_kernels(request.param)
    yield request.param
    _core.choose_table_kernels("")


def weights(dim: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((ROWS, dim)).astype(np.float32)


def some_bags(seed: int, count: int = 200) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Ids and offsets, empty bags among them."""
    chance = np.random.default_rng(seed)
    offsets = np.sort(chance.integers(0, count + 1, 25))
    offsets[0] = 0
    return chance.integers(0, ROWS, count), offsets


def one_by_one(rows: Any, ids: Any, offsets: Any, mode: str, factors: Any = None) -> Any:
    """Bags as nn.EmbeddingBag defines them, in the order of ids."""
    out = np.zeros((len(offsets), rows.shape[1]), np.float32)
    for bag, (begin, end) in enumerate(zip(offsets, [*offsets, len(ids)][1:], strict=True)):
        part = rows[ids[begin:end]]
        if factors is not None:
            part = part * factors[begin:end, None]
        if len(part):
            total = np.zeros(rows.shape[1], np.float32)
            for row in part:
                total = total + row
            out[bag] = part.max(0) if mode == "max" else total / np.float32(len(part)) if mode == "mean" else total
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [2, 30, 64, 128, 300])
def test_bags_are_those_of_the_rows(space: Space, kernels: str, dtype: str, dim: int) -> None:
    table = Table.create(space, "t", rows=ROWS, dim=dim, dtype=dtype, init=weights(dim))
    rows = table.lookup(range(ROWS))
    ids, offsets = some_bags(dim)
    factors = np.random.default_rng(1).random(len(ids)).astype(np.float32)
    for mode in ("sum", "mean", "max"):
        for consistent in (False, True):
            got = table.bag(ids, offsets, mode, consistent=consistent)
            if dtype in FLOATS:
                assert np.array_equal(got, one_by_one(rows, ids, offsets, mode)), mode  # the same order: the same bits
            else:  # scale and bias are applied in the sum, as FBGEMM does
                assert np.allclose(got, one_by_one(rows, ids, offsets, mode), atol=1e-4), mode
    weighted = table.bag(ids, offsets, "sum", factors)  # by fused multiplications
    assert np.allclose(weighted, one_by_one(rows, ids, offsets, "sum", factors), atol=1e-4)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("ids_type", [torch.int32, torch.int64])
def test_bags_of_float32_have_the_bits_of_torch(space: Space, kernels: str, mode: str, ids_type: Any) -> None:
    rows = torch.from_numpy(weights(64))
    table = Table.create(space, "t", rows=ROWS, dim=64, init=rows)
    ids, offsets = (torch.from_numpy(part).to(ids_type) for part in some_bags(3))
    theirs = torch.nn.functional.embedding_bag(ids, rows, offsets, mode=mode)
    assert torch.equal(table.bag(ids, offsets, mode), theirs)
    square = ids.reshape(20, 10)
    assert torch.equal(table.bag(square, mode=mode), torch.nn.functional.embedding_bag(square, rows, mode=mode))


def test_weighted_sums_have_the_bits_of_torch(space: Space, kernels: str) -> None:
    rows = torch.from_numpy(weights(64))
    table = Table.create(space, "t", rows=ROWS, dim=64, init=rows)
    ids, offsets = (torch.from_numpy(part) for part in some_bags(3))
    factors = torch.rand(len(ids))
    theirs = torch.nn.functional.embedding_bag(ids, rows, offsets, mode="sum", per_sample_weights=factors)
    assert torch.equal(table.bag(ids, offsets, "sum", factors), theirs)


def test_rows_of_int8_are_those_of_torch(space: Space, kernels: str) -> None:
    rows = torch.from_numpy(weights(64))
    packed = torch.ops.quantized.embedding_bag_byte_prepack(rows)
    table = Table.create(space, "t", rows=ROWS, dim=64, dtype="int8", init=rows)
    assert torch.equal(table.lookup(torch.arange(ROWS), raw=True), packed)
    ids, offsets = (torch.from_numpy(part) for part in some_bags(3))
    theirs = torch.ops.quantized.embedding_bag_byte_rowwise_offsets(packed, ids, offsets, mode=0)
    assert torch.equal(table.bag(ids, offsets), theirs)
    other = Table.create(space, "copy", rows=ROWS, dim=64, dtype="int8")
    other.write(range(ROWS), packed, raw=True)
    assert torch.equal(other.bag(ids, offsets), theirs)


def test_rows_of_int4_are_those_of_torch(space: Space, kernels: str) -> None:
    rows = torch.from_numpy(weights(64))
    packed = torch.ops.quantized.embedding_bag_4bit_prepack(rows)
    table = Table.create(space, "t", rows=ROWS, dim=64, dtype="int4", init=rows)
    assert torch.equal(table.lookup(torch.arange(ROWS), raw=True), packed)
    ids, offsets = (torch.from_numpy(part) for part in some_bags(3))
    theirs = torch.ops.quantized.embedding_bag_4bit_rowwise_offsets(packed, ids, offsets, mode=0)
    assert torch.allclose(table.bag(ids, offsets), theirs, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_half_is_rounded_and_read_as_torch_does(space: Space, kernels: str, dtype: str) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(getattr(torch, dtype)).reshape(256, 256)
    table = Table.create(space, "t", rows=256, dim=256, dtype=dtype)
    table.write(range(256), every, raw=True)
    assert torch.equal(table.lookup(torch.arange(256)).nan_to_num(7), every.float().nan_to_num(7))
    between = (every.float() * 1.0003).nan_to_num(7)
    table.write(range(256), between)
    assert torch.equal(table.lookup(torch.arange(256), raw=True), between.to(getattr(torch, dtype)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bags_of_any_parts_are_those_of_the_rows(space: Space, data: st.DataObject) -> None:
    dim = data.draw(st.integers(1, 70))
    table = Table.create(space, "t", rows=data.draw(st.integers(1, 20)), dim=dim, init=Uniform(-1, 1, 5))
    try:
        for more in data.draw(st.lists(st.integers(1, 9), max_size=4)):
            table.grow(more)
        rows = table.lookup(range(table.rows))
        lists = data.draw(st.lists(st.lists(st.integers(0, table.rows - 1), max_size=6), max_size=12))
        ids = np.array([one for bag in lists for one in bag], data.draw(st.sampled_from([np.int32, np.int64])))
        offsets = np.cumsum([0, *map(len, lists)])[:-1]
        mode = data.draw(st.sampled_from(["sum", "mean", "max"]))
        threads = data.draw(st.integers(0, 3))
        assert np.array_equal(table.bag(ids, offsets, mode, threads=threads), one_by_one(rows, ids, offsets, mode))
        assert np.array_equal(table.lookup(ids), rows[ids])
    finally:
        space.delete("t")


def test_several_threads_give_what_one_gives(space: Space) -> None:
    table = Table.create(space, "t", rows=5000, dim=64, init=Normal(seed=1))
    ids = np.random.default_rng(0).integers(0, 5000, 40_000)
    offsets = np.arange(0, 40_000, 16)
    alone = table.bag(ids, offsets, threads=1)
    assert np.array_equal(table.bag(ids, offsets, threads=4), alone)
    assert np.array_equal(table.bag(ids, offsets, threads=4, consistent=True), alone)


def test_many_tables_in_one_call_fill_columns_of_one_array(space: Space) -> None:
    made = [Table.create(space, f"t{dim}", rows=50, dim=dim, init=Uniform(0, 1, dim)) for dim in (8, 24, 64)]
    ids = [np.random.default_rng(dim).integers(0, 50, 30) for dim in (8, 24, 64)]
    offsets = [np.arange(0, 30, 3)] * 3
    wide = np.zeros((10, 96), np.float32)
    parts = [wide[:, :8], wide[:, 8:32], wide[:, 32:]]
    tables.bag_many(made, ids, offsets, out=parts)
    alone = [table.bag(some, starts) for table, some, starts in zip(made, ids, offsets, strict=True)]
    assert np.array_equal(wide, np.concatenate(alone, 1))
    looked = tables.lookup_many(made, ids)
    assert all(np.array_equal(found, table.lookup(some)) for found, table, some in zip(looked, made, ids, strict=True))


def test_initial_rows_depend_on_the_seed_only(space: Space) -> None:
    whole = Table.create(space, "whole", rows=3000, dim=16, init=Normal(1, 2, seed=9))
    grown = Table.create(space, "grown", rows=1000, dim=16, init=Normal(1, 2, seed=9))
    grown.grow(2000)
    rows = whole.lookup(range(3000))
    assert np.array_equal(rows, grown.lookup(range(3000)))
    assert abs(rows.mean() - 1) < 0.05
    assert abs(rows.std() - 2) < 0.05
    even = Table.create(space, "even", rows=1000, dim=16, init=Uniform(-2, 4, seed=9)).lookup(range(1000))
    assert -2 <= even.min() < -1.9
    assert 3.9 < even.max() < 4


def test_unknown_kernels_are_refused() -> None:
    with pytest.raises(BadInput, match="no kernels 'sse9'"):
        _core.choose_table_kernels("sse9")
