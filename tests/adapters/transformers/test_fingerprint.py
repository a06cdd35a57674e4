"""Fingerprints: equal for equal models, different wherever one byte of what they compute with is."""

# ruff: noqa: E402 (what is skipped must not be imported)
from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

from openshelf.adapters.transformers import fingerprint, layout_of
from openshelf.adapters.transformers.digest import feed
from openshelf.errors import BadInput
from tests.adapters.transformers.models import KINDS, model_of


def int8_model(moved: int) -> Any:
    """Weights that differ in the middle of their matrices, where an abbreviated repr shows nothing."""
    model = model_of("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            middle = layer.self_attn.v_proj.weight[3:-3, 3:-3]
            middle.copy_(middle.roll(moved, 1))
    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def digest(value: Any) -> str:
    whole = hashlib.sha256()
    feed(whole, "it", value)
    return whole.hexdigest()


class Scaled(torch.Tensor):  # type: ignore[misc]
    """A tensor of bytes and a scale, as libraries for quantised weights make them."""

    @staticmethod
    def __new__(cls, inner: Any, scale: Any, how: Any = None) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)

    def __init__(self, inner: Any, scale: Any, how: Any = None) -> None:
        self.inner, self.scale, self.how = inner, scale, how

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["inner", "scale"], self.how

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func} of quantised weights")


class Beside(torch.Tensor):  # type: ignore[misc]
    """A tensor that keeps more than its bytes, and cannot be taken apart."""


@pytest.mark.filterwarnings("ignore:torch.ao.quantization", "ignore:torch.quantize_per_tensor")
def test_two_int8_models_share_nothing() -> None:
    assert fingerprint(int8_model(0)) == fingerprint(int8_model(0)) != fingerprint(int8_model(1))


def big(**changes: Any) -> Any:
    """Large enough for a repr to leave out the element that differs."""
    numbers = torch.arange(4096, dtype=torch.float32).reshape(64, 64) / 64
    for name, value in changes.items():
        assert name == "last"
        numbers[40, 40] = value
    return numbers


@pytest.mark.parametrize(
    "make",
    [
        lambda tensor: tensor,
        lambda tensor: (tensor, None),
        lambda tensor: {"extra": [tensor.numpy()]},
        lambda tensor: torch.nn.Parameter(tensor),
        lambda tensor: torch.quantize_per_tensor(tensor, 0.5, 3, torch.qint8),
        lambda tensor: torch.quantize_per_channel(tensor, torch.ones(64), torch.zeros(64).long(), 0, torch.quint8),
        lambda tensor: tensor.to_sparse(),
        lambda tensor: tensor.to_sparse_csr(),
        lambda tensor: tensor.to(torch.float8_e4m3fn),
        lambda tensor: torch.complex(tensor, tensor).conj(),
        lambda tensor: tensor.t(),
        lambda tensor: Scaled(tensor.to(torch.int8), torch.ones(64)),
        lambda tensor: Scaled(torch.ones(64, 64), tensor),
        lambda tensor: Scaled(torch.ones(64, 64), torch.ones(64), {"more": tensor}),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:torch.quantize_per_tensor")
def test_one_element_changes_the_digest(make: Any) -> None:
    assert digest(make(big())) == digest(make(big()))
    assert digest(make(big())) != digest(make(big(last=99.0)))


def test_what_tensors_mean_is_part_of_the_digest() -> None:
    ones = torch.ones(4, 4)
    values = [
        ones, ones.int(), ones[0], ones.double(), np.ones((4, 4), np.float32), [ones], (ones, ones), {"a": ones},
        torch.quantize_per_tensor(ones, 0.5, 0, torch.qint8), torch.quantize_per_tensor(ones, 0.5, 1, torch.qint8),
        torch.quantize_per_tensor(ones, 0.25, 0, torch.qint8), Scaled(ones, ones), Scaled(ones, ones, "int4"), 1, 1.0,
        True, "1", b"1", None, torch.float32, [1, [2]], [[1], 2],
    ]  # fmt: skip
    assert len({digest(value) for value in values}) == len(values)


def test_what_cannot_be_hashed_is_refused() -> None:
    beside = torch.ones(4).as_subclass(Beside)
    beside.state = object()
    for value in (object(), [lambda: 1], beside, np.array([object()]), torch.ones(2, device="meta")):
        with pytest.raises(BadInput, match=r"it.*give name="):
            digest(value)
    plain = torch.ones(4).as_subclass(Beside)
    scaled = torch.ones(4).as_subclass(Beside)
    scaled.scale = torch.ones(1)
    assert len({digest(plain), digest(scaled), digest(torch.ones(4))}) == 3


class Doubled(torch.nn.Module):  # type: ignore[misc]
    def forward(self, weight: Any) -> Any:
        return 2 * weight


class Tripled(Doubled):
    def forward(self, weight: Any) -> Any:
        return 3 * weight


def changed(kind: type) -> Any:
    model = model_of("llama")
    torch.nn.utils.parametrize.register_parametrization(model.model.layers[0].self_attn.k_proj, "weight", kind())
    return model


def test_buffers_settings_and_kinds_of_modules_are_part_of_it(llama: Any) -> None:
    plain = fingerprint(llama)
    rope, scaled, causal, norm = (model_of("llama") for _ in range(4))
    rope.model.rotary_emb.inv_freq *= 0.5  # not saved with the weights
    scaled.model.layers[1].self_attn.scaling *= 2
    causal.model.layers[1].self_attn.is_causal = False
    norm.model.layers[2].input_layernorm.variance_epsilon = 1e-3
    models = [rope, scaled, causal, norm, changed(Doubled), changed(Tripled)]
    assert len({plain, *map(fingerprint, models)}) == len(models) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_was_run_copied_or_saved_is_the_same(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    before = fingerprint(model)
    model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=3, do_sample=False, output_hidden_states=True)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert before == fingerprint(model) == fingerprint(copy.deepcopy(model)) == fingerprint(loaded)


def test_what_stands_between_weights_and_results_needs_a_name() -> None:
    hooked, patched = model_of("llama"), model_of("llama")
    hooked.model.layers[0].register_forward_hook(lambda module, args, out: out * 2)
    with pytest.raises(BadInput, match=r"model.layers.0 has a hook, .*give name="):
        layout_of(hooked)
    patched.model.norm.forward = lambda states: states
    with pytest.raises(BadInput, match=r"model.norm has a forward of its own, .*give name="):
        layout_of(patched)
    assert layout_of(hooked, name="steered@1").model == "steered@1"
