"""Weights that other libraries made: they run, bit for bit, or are refused when the plan is made, with a reason."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from openshelf import offload  # noqa: E402
from openshelf.errors import BadInput, Corrupt  # noqa: E402
from tests.offload.models import batch, made, same  # noqa: E402
from tests.offload.rates import RATES  # noqa: E402

OPTIONS: dict[str, Any] = {"fabric": RATES, "cache": False, "time_limit": 0.1}

pytestmark = pytest.mark.usefixtures("own_cache")


class Rescaled(torch.nn.Parameter):  # type: ignore[misc, name-defined]
    """Like the parameters of bitsandbytes: a module looks at what it carries beside its numbers."""

    scale = 2.0


class RescaledLinear(torch.nn.Linear):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        scale = self.weight.scale if isinstance(self.weight, Rescaled) else 1.0
        return super().forward(x) * scale


def rescaled() -> Any:
    model = RescaledLinear(8, 8)
    model.weight = Rescaled(model.weight.detach())
    return model


def of_torch() -> Any:
    return torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(8, 8)), dtype=torch.qint8)


def of_torchao() -> Any:
    quantization: Any = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8))
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    return model


def sparse() -> Any:
    model = torch.nn.Linear(8, 8)
    model.weight = torch.nn.Parameter(model.weight.detach().to_sparse())
    return model


REFUSED: dict[Callable[[], Any], str] = {
    rescaled: r"'weight' of a RescaledLinear is a tests\..*Rescaled, no plain tensor",
    of_torch: r"0\._packed_params, a LinearPackedParams, has its weights in an object",
    of_torchao: r"'0\.weight' of a Linear is a torchao\..*, no plain tensor",
    sparse: r"'weight' is torch\.sparse_coo",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", REFUSED)
def test_weights_that_are_no_plain_tensors_are_refused_when_planned(make: Callable[[], Any]) -> None:
    with pytest.raises(BadInput, match=REFUSED[make]):
        offload.plan(make(), torch.ones(2, 8), "1MiB", **OPTIONS)


def test_a_model_without_weights_is_refused_before_it_is_captured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def captured(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("it was captured")

    monkeypatch.setattr("openshelf.offload.decoder.decoder.Programs", captured)
    monkeypatch.setattr("openshelf.offload.run.buckets.capture", captured)
    with torch.device("meta"):
        empty = made("llama")
    for call in (
        lambda: offload.decode(empty, "1MiB", longest=32, **OPTIONS),
        lambda: offload.buckets(empty, lambda rows: torch.zeros(rows, 1), 32, "1MiB", **OPTIONS),
        lambda: offload.wrap(empty, "1MiB", **OPTIONS),
    ):
        with pytest.raises(BadInput, match=r"'model\.embed_tokens\.weight' and \d+ others are on the meta device"):
            call()
    with pytest.raises(BadInput, match="there is no checkpoint at"):
        offload.decode(empty, "1MiB", longest=32, weights=tmp_path / "gone", **OPTIONS)
    (tmp_path / "cut.safetensors").write_bytes(bytes(7))
    with pytest.raises(Corrupt, match=r"cut\.safetensors is no safetensors file"):
        offload.decode(empty, "1MiB", longest=32, weights=tmp_path / "cut.safetensors", **OPTIONS)
    not_a_model: Any = 3
    with pytest.raises(BadInput, match="got int"):
        offload.wrap(not_a_model, "1MiB")


@pytest.fixture
def group() -> Iterator[Any]:
    """A group of this process alone."""
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_what_is_of_several_processes_is_refused_with_what_to_do(group: Any) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_tensor

    with pytest.raises(BadInput, match=r"a FSDPLinear .*of several processes.*before it is wrapped or sharded"):
        offload.plan(fully_shard(torch.nn.Linear(8, 8), mesh=group), torch.ones(2, 8), "1MiB", **OPTIONS)
    with pytest.raises(BadInput, match="DistributedDataParallel"):
        offload.plan(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8)), torch.ones(2, 8), "1MiB")
    model = torch.nn.Linear(8, 8)
    model.weight = torch.nn.Parameter(distribute_tensor(model.weight.detach(), group))
    with pytest.raises(BadInput, match=r"'weight' is a DTensor.*full_tensor\(\)"):
        offload.plan(model, torch.ones(2, 8), "1MiB", **OPTIONS)


def adapted() -> Any:
    """Llama with PEFT's LoRA."""
    peft: Any = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], lora_dropout=0.1, init_lora_weights=False)
    return peft.get_peft_model(made("llama"), config)


def test_lora_of_peft_runs() -> None:
    model = adapted().eval()
    with offload.plan(model, batch("llama"), "300KiB", **OPTIONS).load(model) as run, torch.no_grad():
        assert same([run(**batch("llama", 1)).logits], [model(**batch("llama", 1)).logits])


def test_adapters_of_peft_alone_are_trained() -> None:
    model = adapted().train()
    plain = copy.deepcopy(model)
    ours, theirs = (
        torch.optim.AdamW([one for one in each.parameters() if one.requires_grad], lr=0.01) for each in (model, plain)
    )
    plan = offload.plan(model, batch("llama"), "1MiB", optimizer=ours, **OPTIONS)
    with plan.load(model) as run:
        for step in range(2):
            torch.manual_seed(step)
            (loss,) = run(**batch("llama", step))
            torch.manual_seed(step)
            theirs.zero_grad()
            expected = plain(**batch("llama", step)).loss
            expected.backward()
            theirs.step()
            assert same([loss], [expected])
        found, wanted = run.state_dict(), plain.state_dict()
    trained = [name for name, one in plain.named_parameters() if one.requires_grad]
    assert trained
    assert all(same([found[name]], [wanted[name]]) for name in found)
    assert found.keys() >= set(trained)
