"""Layouts: by hand, from configurations, and what they say of shapes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from openshelf import Layout
from openshelf.errors import BadInput, Mismatch

LLAMA = {
    "_name_or_path": "meta-llama/Llama-3.1-8B",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}


def test_a_layout_knows_its_shapes() -> None:
    layout = Layout("m", layers=3, heads=2, head_dim=8, dtype="float16")
    assert layout.shape(5) == (3, 2, 5, 2, 8)
    assert layout.layer_shape(5) == (2, 5, 2, 8)
    assert layout.block_bytes(16) == 3 * 2 * 16 * 2 * 8 * 2
    assert Layout("m", layers=3, heads=2, head_dim=8, order="khtd").layer_shape(5) == (2, 2, 5, 8)
    assert Layout("m", layers=3, heads=1, head_dim=576, latent=True).layer_shape(5) == (5, 576)
    assert Layout.raw(4096).block_bytes(1) == 4096


def test_llama_from_its_configuration() -> None:
    layout = Layout.from_config(LLAMA)
    assert layout == Layout("meta-llama/Llama-3.1-8B", layers=32, heads=8, head_dim=128, dtype="bfloat16")
    assert layout.block_bytes(16) == 2 << 20
    half = Layout.from_config(SimpleNamespace(**LLAMA, _commit_hash="abc"), ranks=2, rank=1, order="khtd", adapter="x")
    assert (half.heads, half.rank, half.ranks, half.order, half.adapter) == (4, 1, 2, "khtd", "x")
    assert half.model == "meta-llama/Llama-3.1-8B@abc"


def test_gpt2_from_its_configuration() -> None:
    config = {"n_layer": 12, "n_head": 12, "n_embd": 768}
    layout = Layout.from_config(config, model="gpt2", dtype="float32")
    assert (layout.layers, layout.heads, layout.head_dim, layout.dtype) == (12, 12, 64, "float32")
    with pytest.raises(BadInput, match="model="):
        Layout.from_config(config)


def test_latent_attention_from_its_configuration() -> None:
    config = {
        "num_hidden_layers": 61, "num_attention_heads": 128, "hidden_size": 7168, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "torch_dtype": "bfloat16", "_name_or_path": "deepseek",
    }  # fmt: skip
    layout = Layout.from_config(config, ranks=8, rank=3)
    assert layout.latent
    assert layout.layer_shape(16) == (16, 576)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"model": ""}, BadInput, "model="),
        ({"layers": 0}, BadInput, "layers"),
        ({"heads": 1.5}, BadInput, "heads"),
        ({"rank": 1}, BadInput, "rank"),
        ({"order": "kth"}, BadInput, "order"),
        ({"dtype": "complex"}, None, ""),
        ({"dtype": "no such"}, Mismatch, "dtype"),
        ({"dtype": "U3"}, Mismatch, "plain number"),
    ],
)
def test_bad_layouts_are_refused(change: dict[str, Any], error: type[Exception] | None, text: str) -> None:
    given = {"model": "m", "layers": 1, "heads": 1, "head_dim": 8, **change}
    if error is None:
        Layout(**given)
        return
    with pytest.raises(error, match=text):
        Layout(**given)


def test_a_configuration_without_layers_is_refused() -> None:
    with pytest.raises(BadInput, match="num_hidden_layers"):
        Layout.from_config({"num_attention_heads": 4}, model="m")
    with pytest.raises(BadInput, match="5 ranks"):
        Layout.from_config(LLAMA, ranks=5)
