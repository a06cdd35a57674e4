"""In one process: the same bits as FBGEMM's fused CPU kernel, where only the sharder differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("torchrec", reason="TorchRec is not installed: pip install --no-deps torchrec==1.8.0")

from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import column_wise, row_wise, table_wise
from torchrec.modules.embedding_configs import DataType, PoolingType
from torchrec.optim.optimizers import LAMB
from torchrec.optim.optimizers import Adam as TorchrecAdam
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from openshelf import Space, Table
from openshelf.adapters.torchrec import TableSharder
from openshelf.errors import BadInput, Mismatch, NameTaken, OutOfRange
from openshelf.tables import tables
from tests.adapters.torchrec.models import DIM, NAMES, ROWS, Trained

pytestmark = pytest.mark.usefixtures("alone")
OPTIMIZERS = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "rowwise": RowWiseAdagrad}


def rows_of(model: Trained, name: str) -> Any:
    return model.bags().embedding_bags[name].weight.detach()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["dlrm", "dcnv2"])
def test_losses_have_the_bits_of_the_fused_kernel(space: Space, kind: str, optimizer: str) -> None:
    theirs = Trained(EmbeddingBagCollectionSharder(), OPTIMIZERS[optimizer], kind)
    ours = Trained(TableSharder(space), OPTIMIZERS[optimizer], kind)
    assert ours.steps(12) == theirs.steps(12)
    for name in NAMES:
        assert torch.equal(rows_of(ours, name), rows_of(theirs, name))
        assert np.array_equal(Table.open(space, name).lookup(range(3)), rows_of(theirs, name)[:3].numpy())


@pytest.mark.parametrize(
    "options",
    [{"pooling": PoolingType.MEAN}, {"shared": True}, {"data_type": DataType.FP16}],
    ids=["mean", "shared", "float16"],
)
def test_other_tables_train_as_with_the_fused_kernel(space: Space, options: dict[str, Any]) -> None:
    theirs = Trained(EmbeddingBagCollectionSharder(), torch.optim.SGD, **options)
    ours = Trained(TableSharder(space), torch.optim.SGD, **options)
    mine, others = ours.steps(8), theirs.steps(8)
    if "data_type" in options:
        assert mine == pytest.approx(others, rel=1e-4)  # FBGEMM rounds the change of a row of float16, and then the row
    else:
        assert mine == others


def kernel_plan(kernel: str, *names: str) -> dict[str, Any]:
    return {name: table_wise(rank=0, compute_kernel=kernel if name in names else "fused") for name in NAMES}


def test_a_plan_says_which_tables_are_in_the_space(space: Space) -> None:
    theirs = Trained(EmbeddingBagCollectionSharder())
    customized = EmbeddingComputeKernel.CUSTOMIZED_KERNEL.value
    ours = Trained(TableSharder(space, folder="model/"), each=kernel_plan(customized, "t1", "t3"))
    assert tables(space) == ["model/t1", "model/t3"]
    assert ours.steps(3) == theirs.steps(3)


@pytest.mark.parametrize("how", [row_wise(), column_wise(ranks=[0, 0])], ids=["rows", "columns"])
def test_shards_of_one_process_train_as_the_fused_kernels(space: Space, how: Any) -> None:
    each = dict.fromkeys(NAMES, how)
    theirs = Trained(EmbeddingBagCollectionSharder(), torch.optim.Adagrad, each=each)
    ours = Trained(TableSharder(space), torch.optim.Adagrad, each=each)
    assert ours.steps(4) == theirs.steps(4)
    assert torch.equal(rows_of(ours, "t1"), rows_of(theirs, "t1"))


class Lazy:
    """Adam of touched rows, one number at a time."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.mean, self.square, self.time = rows.double(), 0 * rows.double(), 0 * rows.double(), 0

    def step(self, ids: Any, gradient: Any) -> None:
        self.time += 1
        for row in set(ids.tolist()):
            g = gradient[ids == row].double().sum(0)
            self.mean[row] = 0.9 * self.mean[row] + 0.1 * g
            self.square[row] = 0.999 * self.square[row] + 0.001 * g * g
            mean, square = self.mean[row] / (1 - 0.9**self.time), self.square[row] / (1 - 0.999**self.time)
            self.rows[row] -= 0.1 * mean / (square.sqrt() + 1e-8)


def test_adam_changes_touched_rows_only_and_counts_steps_without_ids(space: Space) -> None:
    ours = Trained(TableSharder(space), TorchrecAdam)
    group = next(iter(ours.bags()._table_kernels())).emb_module
    lazy = Lazy(rows_of(ours, "t0").clone())
    ids, gradient = torch.tensor([3, 9, 3]), torch.randn(4, 4 * DIM)
    offsets = torch.tensor([0, 2, 2, 3, 3, *[3] * 12])  # bags of the first table; the others have none
    for _ in range(3):
        group(ids, offsets).backward(gradient)
        lazy.step(ids, gradient[[0, 0, 2], :DIM])
    group(ids[:0], offsets * 0).backward(gradient)
    lazy.time += 1
    group(ids, offsets).backward(gradient)
    lazy.step(ids, gradient[[0, 0, 2], :DIM])
    assert torch.allclose(rows_of(ours, "t0").double(), lazy.rows, atol=1e-5)
    assert [Table.open(space, name).stat()["steps"] for name in NAMES] == [5] * 4


def test_a_schedule_may_begin_with_a_rate_of_zero(space: Space) -> None:
    theirs = Trained(EmbeddingBagCollectionSharder(), torch.optim.Adagrad)
    ours = Trained(TableSharder(space), torch.optim.Adagrad)
    losses = []
    for one in (ours, theirs):
        some = []
        for number, rate in enumerate((0.0, 0.0, 0.5)):
            for group in one.model.fused_optimizer.param_groups:
                group["lr"] = rate
            some.append(one.step(number))
        losses.append([*some, one.step(3)])
    assert losses[0] == losses[1]


def test_a_model_that_starts_again_goes_on_with_its_tables(space: Space) -> None:
    first = Trained(TableSharder(space), RowWiseAdagrad)
    first.steps(3)
    kept = {name: rows_of(first, name).clone() for name in NAMES}
    with pytest.raises(NameTaken, match="'t0' exists already"):
        Trained(TableSharder(space), RowWiseAdagrad)
    again = Trained(TableSharder(space, exist_ok=True), RowWiseAdagrad)
    assert all(torch.equal(rows_of(again, name), kept[name]) for name in NAMES)
    with pytest.raises(Mismatch, match=r"has 60 rows of 16 float32 and RowwiseAdagrad.*needs 60 of 16 float32 and SGD"):
        Trained(TableSharder(space, exist_ok=True))


def test_what_is_not_built_is_refused_and_leaves_no_table(space: Space) -> None:
    for params, says in (
        ({"weight_decay": 0.1}, "weight_decay=0.1"),
        ({"gradient_clipping": True}, "gradient_clipping=True"),
        ({"learning_rate": -1.0}, "learning rate -1.0"),
    ):
        with pytest.raises(BadInput, match=says):
            Trained(TableSharder(space, fused_params=params), None, each=kernel_plan("customized_kernel", *NAMES))
    with pytest.raises(BadInput, match=r"no table for the space.*\['dense'\]"):
        Trained(TableSharder(space), None)
    with pytest.raises(BadInput, match="tables in a space have ADAM, EXACT_ADAGRAD"):
        Trained(TableSharder(space), LAMB)
    assert tables(space) == []


def test_an_id_out_of_range_and_a_bad_gradient_are_named(space: Space) -> None:
    ours = Trained(TableSharder(space))
    group = next(iter(ours.bags()._table_kernels())).emb_module
    before = [rows_of(ours, name).clone() for name in NAMES]
    offsets = torch.tensor([0, 1, 1, 1, 1])
    with pytest.raises(OutOfRange, match=f"id {ROWS[0]}, .*'t0' "):
        group(torch.tensor([ROWS[0]]), offsets)
    bad = torch.zeros(1, 4 * DIM)
    bad[0, 2] = float("nan")
    with pytest.raises(BadInput, match=r"'t0' has nan in column 2"):
        group(torch.tensor([1]), offsets).backward(bad)
    assert all(torch.equal(rows_of(ours, name), old) for name, old in zip(NAMES, before, strict=True))
