"""Checkpoints as they are published: transformers fuses a layer's experts when it loads them; so do we, streaming."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from openshelf import offload  # noqa: E402
from openshelf.errors import BadInput, Mismatch, UnknownName  # noqa: E402
from openshelf.offload.capture.published import published_of  # noqa: E402
from openshelf.offload.weights import conversion, lazy, safetensors  # noqa: E402
from openshelf.offload.weights.shards import pack_shards  # noqa: E402
from tests.offload.rates import RATES  # noqa: E402
from tests.offload.tiny import made, prompt  # noqa: E402
from tests.offload.weights.packing import content  # noqa: E402

FAMILIES = ("mixtral", "qwen3_moe", "deepseek_v3", "jamba", "granitemoe", "phimoe", "granitemoehybrid")
OPTIONS: dict[str, Any] = {"fabric": RATES, "cache": False, "time_limit": 0.1}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks are as small as they are beside a layer of a real model."""
    monkeypatch.setattr(lazy, "BLOCK", 1024)
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


def empty_like(model: Any) -> Any:
    with torch.device("meta"):
        return type(model)(model.config).eval()


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_published_checkpoint_is_packed_as_transformers_loads_it(kind: str, tmp_path: Path) -> None:
    made(kind).save_pretrained(tmp_path / "model", max_shard_size="60KB")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    published = published_of(empty_like(plain))
    assert published is not None
    state = plain.state_dict()
    there = {name for file in (tmp_path / "model").glob("*.safetensors") for name in load_file(file)}
    assert not state.keys() <= there  # else it is no test of fusing
    packed = pack_shards(tmp_path / "model", list(state), folder=tmp_path, published=published)
    found = content(packed)
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert found[name] == tensor.numpy().tobytes(), name
        assert packed.tensors[name].shape == tuple(tensor.shape)
    assert pack_shards(tmp_path / "model", list(state), folder=tmp_path, published=published).generation == 1


def test_the_base_of_a_model_takes_its_part_of_the_checkpoint(tmp_path: Path) -> None:
    model = made("mixtral")
    model.save_pretrained(tmp_path / "model")
    state = model.model.state_dict()
    packed = pack_shards(tmp_path / "model", list(state), folder=tmp_path, published=published_of(model.model))
    found = content(packed)
    assert found.keys() == state.keys()  # without lm_head
    assert all(found[name] == tensor.numpy().tobytes() for name, tensor in state.items())


def test_a_run_from_a_published_checkpoint_equals_the_model(tmp_path: Path, own_cache: Path) -> None:
    model = made("mixtral", experts_implementation="grouped_mm", num_hidden_layers=1)
    model.save_pretrained(tmp_path / "model")
    ids = prompt()
    plan = offload.plan(empty_like(model), {"input_ids": ids, "use_cache": False}, "200KiB", **OPTIONS)
    with plan.load(tmp_path / "model") as run, torch.no_grad():
        assert torch.equal(run(input_ids=ids, use_cache=False).logits, model(input_ids=ids, use_cache=False).logits)
    with (
        torch.no_grad(),
        offload.decode(empty_like(model), "1MiB", longest=32, weights=tmp_path / "model", **OPTIONS) as decoder,
    ):
        assert torch.equal(decoder.prefill(ids), model(input_ids=ids, logits_to_keep=1).logits[:, -1])


def test_of_what_is_fused_only_a_block_is_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def noted(name: str, tensor: Any) -> Callable[[memoryview, int], None]:
        fill = safetensors.from_shard(name, tensor)

        def noting(room: memoryview, at: int) -> None:
            read.append(len(room))
            fill(room, at)

        return noting

    monkeypatch.setattr(conversion, "from_shard", noted)
    model = made("mixtral")
    model.save_pretrained(tmp_path / "model")
    packed = pack_shards(tmp_path / "model", folder=tmp_path, published=published_of(model))
    fused = [name for name in packed.tensors if "experts" in name]
    assert sum(read) == sum(packed.storage_of(name).nbytes for name in fused)  # each byte once
    assert max(read) == lazy.BLOCK < min(packed.storage_of(name).nbytes for name in fused)


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Any:
    """A checkpoint of Mixtral in which something was changed, and the model that it is for."""
    model = made("mixtral")
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return published_of(empty_like(model))


def test_an_expert_that_is_missing_is_named_with_what_is_there(tmp_path: Path) -> None:
    expert = "model.layers.1.block_sparse_moe.experts.2"
    order = ["model.layers.1.mlp.experts.gate_up_proj"]
    published = changed(tmp_path, lambda state: state.pop(f"{expert}.w1.weight"))
    with pytest.raises(Mismatch, match=r"experts\.gate_up_proj' of the model cannot be made of the 7 tensors that are"):
        pack_shards(tmp_path, order, folder=tmp_path / "cache", published=published)
    published = changed(tmp_path, lambda state: [state.pop(f"{expert}.{one}.weight") for one in ("w1", "w3")])
    with pytest.raises(Mismatch, match=r"they make \(3, 96, 32\), not \(4, 96, 32\)"):
        pack_shards(tmp_path, order, folder=tmp_path / "cache", published=published)


def test_experts_that_are_all_missing_are_named_as_they_were_looked_for(tmp_path: Path) -> None:
    def without(state: dict[str, Any]) -> None:
        for name in [name for name in state if "layers.1." in name and "experts" in name]:
            del state[name]

    published = changed(tmp_path, without)
    order = ["lm_head.weight", "model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.down_proj"]
    with pytest.raises(UnknownName) as error:
        pack_shards(tmp_path, order, folder=tmp_path / "cache", published=published)
    assert "it lacks 2 of the 3 tensors that are needed, 'model.layers.1.mlp.experts.gate_up_proj'" in str(error.value)
    assert "looked for 'model.layers.1.block_sparse_moe.experts.*.w1.weight'" in str(error.value)


def test_a_tensor_that_is_made_in_blocks_is_the_same() -> None:
    numbers = torch.arange(600, dtype=torch.float32).reshape(6, 100)
    bytes_of = numbers.reshape(-1).view(torch.uint8)
    tensor = lazy.stored("w", "float32", (6, 100), lambda at, count: bytes_of[at : at + count], lazy.Last())
    functions: list[Callable[[Any], Any]] = [
        lambda one: (one * 2 + 1).flip(0),
        lambda one: one[:, ::3].t().contiguous().to(torch.bfloat16),
        lambda one: torch.cat([torch.stack([one[:3], one[3:]], 1).transpose(0, 2), one.T.reshape(100, 2, 3)], 2),
        lambda one: torch.split(one.reshape(6, 50, 2), [1, 5])[1].permute(2, 0, 1)[1].unbind(1)[7].unsqueeze(0),
    ]
    for function in functions:
        made, plain = function(tensor), function(numbers)
        room = bytearray(plain.numel() * plain.element_size())
        fill = made.filler()
        for at in range(0, len(room), 70):
            fill(memoryview(room)[at : at + 70], at)
        assert bytes(room) == bytes(plain.contiguous().reshape(-1).view(torch.uint8).numpy())
    with pytest.raises(BadInput, match="in place"):
        tensor.mul_(2)
