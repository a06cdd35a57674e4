"""TableBag in the place of nn.EmbeddingBag: results, training, weights, padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from openshelf import Space, Table
from openshelf.errors import BadInput, Mismatch, OutOfRange
from openshelf.tables import SGD, Adagrad, Adam, TableBag

ROWS, DIM = 50, 12
IDS = torch.tensor([4, 3, 9, 9, 3, 3, 17, 4, 49, 0])
OFFSETS = torch.tensor([0, 3, 3, 6])


def pair(space: Space, mode: str, optimizer: Any = None, **options: Any) -> tuple[nn.EmbeddingBag, TableBag]:
    theirs = nn.EmbeddingBag(ROWS, DIM, mode=mode, **options)
    table = Table.create(space, "t", rows=ROWS, dim=DIM, init=theirs.weight.detach(), optimizer=optimizer)
    return theirs, TableBag(table, mode, **options)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 3, -1])
def test_results_are_those_of_embedding_bag(space: Space, mode: str, padding: int | None) -> None:
    theirs, ours = pair(space, mode, padding_idx=padding)
    assert torch.equal(ours(IDS, OFFSETS), theirs(IDS, OFFSETS))
    assert torch.equal(ours(IDS.reshape(5, 2)), theirs(IDS.reshape(5, 2)))
    assert torch.equal(ours(IDS.int(), OFFSETS.int()), theirs(IDS.int(), OFFSETS.int()))


def test_the_last_offset_may_be_given(space: Space) -> None:
    theirs, ours = pair(space, "sum", include_last_offset=True)
    offsets = torch.tensor([0, 3, 3, 6, 10])
    assert torch.equal(ours(IDS, offsets), theirs(IDS, offsets))
    with pytest.raises(BadInput, match="number of ids, 10"):
        ours(IDS, OFFSETS)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    ("optimizer", "torchs"),
    [(SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)), (Adagrad(0.1), lambda p: torch.optim.Adagrad(p, 0.1))],
    ids=["sgd", "adagrad"],
)
def test_training_is_that_of_embedding_bag(space: Space, mode: str, optimizer: Any, torchs: Any) -> None:
    theirs, ours = pair(space, mode, optimizer, padding_idx=3)
    steps = torchs(theirs.parameters())
    for seed in range(4):
        ids = torch.randint(0, ROWS, (10,), generator=torch.Generator().manual_seed(seed))
        steps.zero_grad()
        (theirs(ids, OFFSETS) ** 2).sum().backward()
        steps.step()
        (ours(ids, OFFSETS) ** 2).sum().backward()
    assert torch.allclose(ours.table.lookup(torch.arange(ROWS)), theirs.weight.detach(), atol=1e-6)


def test_weights_get_gradients_of_the_rows_as_they_were(space: Space) -> None:
    theirs, ours = pair(space, "sum", SGD(0.1))
    a, b = (torch.linspace(-1, 1, 10).requires_grad_() for _ in range(2))
    assert torch.equal(theirs(IDS, OFFSETS, a), ours(IDS, OFFSETS, b))
    (theirs(IDS, OFFSETS, a) ** 2).sum().backward()
    (ours(IDS, OFFSETS, b) ** 2).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    assert torch.allclose(a.grad, b.grad, atol=1e-5)
    with torch.no_grad():
        theirs.weight -= 0.1 * theirs.weight.grad
    assert torch.allclose(ours.table.lookup(torch.arange(ROWS)), theirs.weight, atol=1e-5)


def test_nothing_changes_in_eval_mode_without_gradients_or_without_an_optimizer(space: Space) -> None:
    _, ours = pair(space, "sum", SGD(0.1))
    before = ours.table.lookup(torch.arange(ROWS))
    weights = torch.ones(10, requires_grad=True)
    ours.eval()
    ours(IDS, OFFSETS, weights).sum().backward()  # gradients of the weights only
    ours.train()
    with torch.no_grad():
        ours(IDS, OFFSETS)
    ours.optimizer = None
    ours(IDS, OFFSETS, weights).sum().backward()
    assert torch.equal(ours.table.lookup(torch.arange(ROWS)), before)


def test_a_module_with_a_table_trains_beside_a_linear_layer(space: Space) -> None:
    torch.manual_seed(0)
    table = Table.create(space, "t", rows=ROWS, dim=DIM, init=torch.randn(ROWS, DIM), optimizer=Adagrad(0.1))
    bag, top = TableBag(table, "sum"), nn.Linear(DIM, 1)
    model = nn.Sequential(top)
    steps = torch.optim.SGD(model.parameters(), 0.01)
    ids, target = torch.randint(0, ROWS, (32, 4)), torch.randn(32, 1)
    losses = []
    for _ in range(30):
        steps.zero_grad()
        loss = ((top(bag(ids)) - target) ** 2).mean()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4


def test_wrong_arguments_are_named(space: Space) -> None:
    _, ours = pair(space, "mean")
    with pytest.raises(OutOfRange, match=r"padding_idx 50 is out of range for the table 't' \(50 rows\)"):
        TableBag(ours.table, padding_idx=50)
    with pytest.raises(Mismatch, match="needs a Table"):
        TableBag(nn.Linear(2, 2))
    with pytest.raises(BadInput, match="per_sample_weights go with mode='sum'"):
        ours(IDS, OFFSETS, torch.ones(10))
    with pytest.raises(Mismatch, match="one weight for each id"):
        ours(IDS, OFFSETS, torch.ones(9))
    with pytest.raises(BadInput, match="need offsets"):
        ours(IDS)
    with pytest.raises(BadInput, match="do not fall"):
        ours(IDS, torch.tensor([0, 5, 2]))
    with pytest.raises(OutOfRange, match="id 50"):
        ours(torch.tensor([50]), torch.tensor([0]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_batch_without_bags_gives_none(space: Space, mode: str) -> None:
    table = Table.create(space, "none", rows=3, dim=2, optimizer=SGD(0.1))
    for input in ((torch.empty(0, dtype=torch.int64),) * 2, (torch.empty((0, 4), dtype=torch.int64),)):
        out = TableBag(table, mode)(*input)
        assert out.shape == nn.EmbeddingBag(3, 2, mode=mode)(*input).shape == (0, 2)
        out.sum().backward()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("consistent", [False, True])
def test_of_equal_maxima_the_first_row_learns(space: Space, dtype: str, consistent: bool) -> None:
    rows = torch.tensor([[1.0, 5.0], [3.0, 5.0], [3.0, 2.0], [0.0, 9.0]])
    table = Table.create(space, "t", rows=4, dim=2, dtype=dtype, init=rows, optimizer=Adam(0.5))
    bag = TableBag(table, "max", consistent=consistent)
    out = bag(torch.tensor([0, 1, 2, 2, 1]), torch.tensor([0, 3, 3]))
    assert torch.equal(out, torch.tensor([[3.0, 5.0], [0, 0], [3.0, 5.0]]))
    out.backward(torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, -1.0]]))
    # of the first bag 3 is row 1's and 5 row 0's; of the last 3 is row 2's. Adam's first step is the rate.
    expected = rows + torch.tensor([[0, 0], [-0.5, 0.5], [-0.5, 0], [0, 0]])
    assert torch.allclose(table.lookup(torch.arange(4)), expected, atol=1e-3)
    assert table.stat()["updated_rows"] == 3
