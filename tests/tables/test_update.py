"""Updates: each optimizer against its formula, in numpy and in torch; what is refused; what is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from openshelf import Space, Table, _core
from openshelf.errors import BadInput, Mismatch
from openshelf.tables import SGD, Adagrad, Adam, RowwiseAdagrad, Uniform

ROWS, DIM = 60, 24
F = np.float32


class Oracle:
    """The formulas, on whole arrays of numpy."""

    def __init__(self, rows: Any, optimizer: Any) -> None:
        self.rows, self.optimizer, self.step = rows.astype(F), optimizer, 0
        self.sum, self.mean, self.square = (np.zeros_like(self.rows) for _ in range(3))
        self.row_sum = np.zeros(len(rows), F)

    def update(self, ids: Any, gradients: Any) -> None:
        self.step += 1
        o, lr = self.optimizer, F(self.optimizer.lr)
        for row in np.unique(ids):
            g = np.zeros(DIM, F)
            for one in gradients[ids == row]:
                g = g + one
            w = self.rows[row]
            if isinstance(o, SGD):
                w = w - lr * g
            elif isinstance(o, Adagrad):
                self.sum[row] += g * g
                w = w - lr * (g / (np.sqrt(self.sum[row]) + F(o.eps)))
            elif isinstance(o, RowwiseAdagrad):
                self.row_sum[row] += (g * g).mean()
                w = w - lr / (np.sqrt(self.row_sum[row]) + F(o.eps)) * g
            else:
                one, two = map(F, o.betas)
                self.mean[row] = one * self.mean[row] + (1 - one) * g
                self.square[row] = two * self.square[row] + (1 - two) * g * g
                m, v = self.mean[row] / (1 - one**self.step), self.square[row] / (1 - two**self.step)
                w = w - lr * m / (np.sqrt(v) + F(o.eps))
            self.rows[row] = w


OPTIMIZERS = [SGD(0.1), Adagrad(0.1), RowwiseAdagrad(0.1), Adam(0.01)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("kernels", _core.table_kernels())
def test_updates_follow_the_formula(space: Space, optimizer: Any, kernels: str) -> None:
    _core.choose_table_kernels(kernels)
    try:
        table = Table.create(space, "t", rows=ROWS, dim=DIM, init=Uniform(-1, 1, 2), optimizer=optimizer)
        oracle = Oracle(table.lookup(range(ROWS)), optimizer)
        chance = np.random.default_rng(0)
        for _ in range(6):
            ids = chance.integers(0, ROWS, 40)
            gradients = chance.standard_normal((40, DIM)).astype(F)
            table.update(ids, gradients)
            oracle.update(ids, gradients)
        assert np.allclose(table.lookup(range(ROWS)), oracle.rows, atol=1e-5)
        assert table.stat()["steps"] == 6
    finally:
        _core.choose_table_kernels("")


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: type(one).__name__)
def test_all_kernels_and_any_threads_give_the_same_bits(space: Space, optimizer: Any) -> None:
    chance = np.random.default_rng(0)
    ids, gradients = chance.integers(0, 4000, 6000), chance.standard_normal((6000, DIM)).astype(F)
    found = []
    for kernels in _core.table_kernels():
        for threads in (1, 3):
            _core.choose_table_kernels(kernels)
            table = Table.create(space, "t", rows=4000, dim=DIM, init=Uniform(-1, 1, 2), optimizer=optimizer)
            table.update(ids, gradients, threads=threads)
            table.update(ids[:50].astype(np.int32), gradients[:50], threads=threads)
            found.append(table.lookup(range(4000)))
            space.delete("t")
    _core.choose_table_kernels("")
    assert all(np.array_equal(found[0], other) for other in found)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(0.1), lambda rows: torch.optim.SGD([rows], 0.1)),
        (Adagrad(0.1), lambda rows: torch.optim.Adagrad([rows], 0.1)),
        (Adam(0.01), lambda rows: torch.optim.Adam([rows], 0.01)),
    ],
    ids=["sgd", "adagrad", "adam"],
)
def test_updates_of_all_rows_are_those_of_torch(space: Space, ours: Any, theirs: Any) -> None:
    table = Table.create(space, "t", rows=ROWS, dim=DIM, init=Uniform(-1, 1, 2), optimizer=ours)
    rows = torch.from_numpy(table.lookup(range(ROWS))).requires_grad_()
    optimizer = theirs(rows)
    for seed in range(4):
        rows.grad = torch.randn((ROWS, DIM), generator=torch.Generator().manual_seed(seed))
        optimizer.step()
        table.update(torch.arange(ROWS), rows.grad)
    assert torch.allclose(table.lookup(torch.arange(ROWS)), rows.detach(), atol=2e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_computed_as_float32_and_rounded_once(space: Space, dtype: str) -> None:
    table = Table.create(space, "t", rows=4, dim=DIM, dtype=dtype, init=Uniform(-1, 1, 2), optimizer=SGD(0.5))
    before = table.lookup(torch.arange(4))
    gradients = torch.randn((4, DIM))
    table.update(range(4), gradients)
    expected = torch.addcmul(before.double(), torch.tensor(-0.5, dtype=torch.float64), gradients.double())
    assert torch.equal(table.lookup(torch.arange(4), raw=True), expected.float().to(getattr(torch, dtype)))


def test_gradients_of_bags_are_shared_out(space: Space) -> None:
    ids, offsets = np.array([5, 6, 5, 7, 7, 1]), np.array([0, 3, 3, 5])
    gradients = np.random.default_rng(0).standard_normal((4, DIM)).astype(F)
    bag_of, lengths = np.array([0, 0, 0, 2, 2, 3]), np.array([3, 3, 3, 2, 2, 1], F)
    factors = np.arange(6, dtype=F)
    for mode, weights, each in (
        ("sum", None, gradients[bag_of]),
        ("mean", None, gradients[bag_of] / lengths[:, None]),
        ("sum", factors, gradients[bag_of] * factors[:, None]),
    ):
        by_bags = Table.create(space, "a", rows=ROWS, dim=DIM)
        by_ids = Table.create(space, "b", rows=ROWS, dim=DIM)
        by_bags.update_bags(ids, offsets, gradients, SGD(1.0), mode=mode, weights=weights)
        by_ids.update(ids, each, SGD(1.0))
        assert np.allclose(by_bags.lookup(range(ROWS)), by_ids.lookup(range(ROWS)), atol=1e-6)
        space.delete("a")
        space.delete("b")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused_with_nothing_changed_or_passed_by_choice(space: Space, bad: float) -> None:
    table = Table.create(space, "t", rows=ROWS, dim=DIM, init=Uniform(-1, 1, 2), optimizer=Adagrad(0.1))
    before, gradients = table.lookup(range(ROWS)), np.ones((3, DIM), F)
    gradients[2, 5] = bad
    with pytest.raises(
        BadInput, match=r"gradient 2 for the table 't' has -?(nan|inf) in column 5: nothing was changed"
    ):
        table.update([1, 2, 3], gradients)
    assert np.array_equal(table.lookup(range(ROWS)), before)
    assert not table.states(range(ROWS)).any()
    assert table.stat()["steps"] == 0
    table.update([1, 2, 3], gradients, finite=False)
    assert not np.isfinite(table.states([3])[0, 5])


def test_an_optimizer_of_another_kind_is_refused(space: Space) -> None:
    plain = Table.create(space, "plain", rows=4, dim=4)
    with pytest.raises(BadInput, match="made without an optimizer"):
        plain.update([0], np.ones((1, 4)))
    with pytest.raises(Mismatch, match="have states of SGD, not of Adam"):
        plain.update([0], np.ones((1, 4)), Adam(0.1))
    small = Table.create(space, "small", rows=4, dim=4, dtype="int8")
    with pytest.raises(BadInput, match="rows of integers"):
        small.update([0], np.ones((1, 4)), SGD(0.1))


def test_another_learning_rate_counts_for_one_update(space: Space) -> None:
    table = Table.create(space, "t", rows=4, dim=4, optimizer=SGD(1.0))
    table.update([1], np.ones((1, 4)), SGD(0.25))
    table.update([1], np.ones((1, 4)))
    assert np.array_equal(table.lookup([1])[0], np.full(4, -1.25))


def test_written_rows_and_states_are_read_back(space: Space) -> None:
    table = Table.create(space, "t", rows=8, dim=4, optimizer=Adam(0.1))
    rows, states = np.arange(12.0).reshape(3, 4), np.arange(24.0).reshape(3, 8)
    table.write([1, 5, 1], rows, states=states)  # of an id that comes twice, the last
    assert np.array_equal(table.lookup([1, 5]), rows[[2, 1]])
    assert np.array_equal(table.states([1, 5]), states[[2, 1]])
    table.write([5], rows[:1])
    assert np.array_equal(table.states([5]), states[1:2])


@pytest.mark.parametrize("bags", [False, True])
def test_gradients_that_add_up_to_infinity_are_refused(space: Space, bags: bool) -> None:
    table = Table.create(space, "t", rows=ROWS, dim=DIM, optimizer=SGD(1.0))
    huge = np.zeros((3, DIM), F)
    huge[0, 5] = huge[2, 5] = 3e38  # each is finite
    ids = [7, 8, 7]

    def apply(**more: Any) -> None:
        if bags:
            table.update_bags(ids, [0, 1, 2], huge, **more)
        else:
            table.update(ids, huge, **more)

    with pytest.raises(BadInput, match="gradients of row 7 of the table 't' add up to inf in column 5: nothing was"):
        apply()
    assert not table.lookup(range(ROWS)).any()
    assert table.stat()["steps"] == 0
    apply(finite=False)
    assert table.lookup(7)[5] == -np.inf
    table.update([8, 9, 9], huge / 4)  # large, but not too large
    with pytest.raises(BadInput, match=r"row 3 .* add up to inf"):
        table.update_bags([3, 4], [0, 1], huge[:2], weights=[2.0, 1.0])


def test_an_update_without_ids_is_a_step(space: Space) -> None:
    table = Table.create(space, "t", rows=ROWS, dim=DIM, optimizer=Adam(0.1))
    table.update(np.empty(0, np.int64), np.empty((0, DIM)))
    table.update_bags(np.empty(0, np.int64), [0, 0], np.ones((2, DIM)))
    assert table.stat()["steps"] == 2
    assert not table.lookup(range(ROWS)).any()
