"""State dicts and checkpoints of torch.distributed, from the fused kernel and back; those that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

pytest.importorskip("torchrec", reason="TorchRec is not installed: pip install --no-deps torchrec==1.8.0")

from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.modules.embedding_configs import DataType
from torchrec.optim.optimizers import Adam as TorchrecAdam
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from openshelf import Space
from openshelf.adapters.torchrec import TableSharder, load_checkpoint
from openshelf.errors import BadInput, Mismatch, UnknownName
from tests.adapters.torchrec.models import NAMES, WHERE, Trained
from tests.adapters.torchrec.test_one_process import rows_of

pytestmark = pytest.mark.usefixtures("alone")


def sharders(space: Space) -> dict[str, Any]:
    return {"fused": EmbeddingBagCollectionSharder(), "ours": TableSharder(space)}


@pytest.mark.parametrize("optimizer", [torch.optim.Adagrad, RowWiseAdagrad])
@pytest.mark.parametrize(("source", "target"), [("fused", "ours"), ("ours", "fused")])
def test_a_checkpoint_goes_both_ways(space: Space, tmp_path: Path, source: str, target: str, optimizer: Any) -> None:
    first = Trained(sharders(space)[source], optimizer)
    first.steps(3)
    dcp.save(first.state(), checkpoint_id=tmp_path)
    other = Trained(sharders(space)[target], optimizer)
    other.steps(1, first=50)
    state = other.state()
    load_checkpoint(state, tmp_path)
    other.model.load_state_dict(state["model"])
    other.model.fused_optimizer.load_state_dict(state["optimizer"])
    assert other.steps(3, first=3) == first.steps(3, first=3)


def test_a_state_dict_goes_both_ways(space: Space) -> None:
    theirs, ours = (Trained(one) for one in sharders(space).values())
    theirs.steps(3)
    ours.model.load_state_dict(theirs.model.state_dict())
    assert ours.steps(2) == theirs.steps(2)
    ours.steps(3)
    theirs.model.load_state_dict(ours.model.state_dict())
    assert ours.steps(2) == theirs.steps(2)


def test_the_number_of_adams_steps_is_in_a_checkpoint(space: Space, tmp_path: Path) -> None:
    first = Trained(TableSharder(space), TorchrecAdam)
    first.steps(4)
    dcp.save(first.state(), checkpoint_id=tmp_path)
    other = Trained(TableSharder(space, folder="other/"), TorchrecAdam)
    state = other.state()
    load_checkpoint(state, tmp_path)
    other.model.load_state_dict(state["model"])
    assert other.steps(3, first=4) == first.steps(3, first=4)


@pytest.fixture
def saved(space: Space, tmp_path: Path) -> tuple[Trained, Path]:
    """A model that went on after it was saved."""
    made = Trained(TableSharder(space), torch.optim.Adagrad)
    dcp.save(made.state(), checkpoint_id=tmp_path)
    made.steps(2)
    return made, tmp_path


def refused(made: Trained, state: dict[str, Any], path: Path, error: type[Exception], says: str) -> None:
    before = {key: value.clone() for key, value in made.model.named_parameters()}
    rows = [rows_of(made, name).clone() for name in NAMES]
    with pytest.raises(error, match=says):
        load_checkpoint(state, path)
    assert all(torch.equal(value, before[key]) for key, value in made.model.named_parameters())
    assert all(torch.equal(rows_of(made, name), old) for name, old in zip(NAMES, rows, strict=True))


def test_a_checkpoint_that_lacks_a_file_or_its_end_is_refused(saved: tuple[Trained, Path]) -> None:
    made, path = saved
    (file,) = path.glob("*.distcp")
    whole = file.read_bytes()
    file.write_bytes(whole[:-4000])
    refused(made, made.state(), path, BadInput, "ends before")
    file.unlink()
    refused(made, made.state(), path, BadInput, "has no file")
    (path / ".metadata").unlink()
    refused(made, made.state(), path, UnknownName, "there is no checkpoint")


def test_a_checkpoint_that_lacks_shards_is_refused(
    saved: tuple[Trained, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, path = saved
    read = dcp.FileSystemReader.read_metadata

    def lacking(reader: Any) -> Any:
        found = read(reader)
        found.state_dict_metadata[f"model.{WHERE}.embedding_bags.t1.weight"].chunks.clear()
        return found

    monkeypatch.setattr(dcp.FileSystemReader, "read_metadata", lacking)
    refused(made, made.state(), path, BadInput, r"t1.weight' .* lacks shards: 0 of 3200 numbers")


def test_a_checkpoint_of_another_dtype_or_shape_is_refused(saved: tuple[Trained, Path], space: Space) -> None:
    made, path = saved
    other = Trained(TableSharder(space, folder="half/"), torch.optim.Adagrad, data_type=DataType.FP16)
    refused(other, other.state(), path, Mismatch, "is torch.float32 of the shape .*, the model's torch.float16")
    state = made.state()
    state["model"]["more"] = torch.zeros(3)
    refused(made, state, path, UnknownName, "has no 'model.more'")


def test_a_state_dict_that_does_not_fit_is_refused(saved: tuple[Trained, Path]) -> None:
    made, _ = saved
    key = f"{WHERE}.embedding_bags.t1.weight"
    rows = [rows_of(made, name).clone() for name in NAMES]
    for given, error, says in (
        (torch.zeros(3, 16), Mismatch, r"shape \(3, 16\).*\(200, 16\)"),
        (torch.zeros(200, 16).half(), Mismatch, "is torch.float16"),
        (None, UnknownName, "has no 'embedding_bags.t1.weight'"),
    ):
        state = made.model.state_dict()
        state[key] = given
        if given is None:
            del state[key]
        with pytest.raises(error, match=says):
            made.model.load_state_dict(state)
        assert all(torch.equal(rows_of(made, name), old) for name, old in zip(NAMES, rows, strict=True))
