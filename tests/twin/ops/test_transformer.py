"""Sizes from config.json files of many architectures: as many parameters as transformers makes, or refused with a
reason; and wrong files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openshelf.errors import BadInput
from openshelf.twin.ops import transformer_of
from openshelf.twin.serve import find_model
from openshelf.workloads.train import from_config, model_of

DENSE = ["llama", "mistral", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "falcon", "opt",
         "phi", "phi3", "starcoder2", "cohere", "mpt", "codegen", "bloom", "olmo2", "smollm3", "xglm"]  # fmt: skip
EXPERTS = ["mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3", "llama4", "gpt_oss", "glm4_moe", "ernie4_5_moe"]
REFUSED = {
    "jamba": "state", "mamba": "state", "rwkv": "state", "qwen3_next": "state", "zamba2": "state", "t5": "encoder",
    "bart": "encoder", "whisper": "encoder", "bert": "encoder", "longcat_flash": "two attentions",
}  # fmt: skip


def config_of(kind: str) -> dict[str, Any]:
    configs = pytest.importorskip("transformers.models.auto.configuration_auto")
    found: dict[str, Any] = configs.CONFIG_MAPPING[kind]().to_dict()
    return found


@pytest.mark.parametrize("kind", [*DENSE, *EXPERTS])
def test_a_config_gives_as_many_parameters_as_transformers_makes(kind: str) -> None:
    config = config_of(kind)
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind))
    real = sum(each.numel() for each in model.parameters())
    assert from_config(config, kind).parameters == pytest.approx(real, rel=0.04)
    from openshelf.twin.serve.model import model_of as served_of

    assert served_of(config, kind).parameters == pytest.approx(real, rel=0.04)


@pytest.mark.parametrize("kind", list(REFUSED))
def test_what_is_no_decoder_with_keys_and_values_is_refused_with_the_reason(kind: str) -> None:
    with pytest.raises(BadInput, match=REFUSED[kind]):
        transformer_of(config_of(kind), kind)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read"),
        ("[1, 2]", "has a list"),
        ("{}", "hidden_size or n_embd"),
        ('{"hidden_size": "wide", "num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 9}', "'wide'"),
        ('{"hidden_size": 64, "num_attention_heads": 0, "num_hidden_layers": 2, "vocab_size": 9}', "from 1 on"),
        ('{"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": -2, "vocab_size": 9}', "-2"),
        ('{"hidden_size": 64.5, "num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 9}', "64.5"),
        ('{"text_config": [1]}', "text_config"),
    ],
)
def test_a_wrong_config_is_refused_by_training_and_by_serving(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    for read in (model_of, find_model):
        with pytest.raises(BadInput, match=said):
            read(str(path))


def test_windows_are_of_the_layers_that_have_them() -> None:
    plain = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 12, "vocab_size": 99}
    shares = {
        json.dumps(more): transformer_of(plain | more, "m").windowed
        for more in (
            {},
            {"sliding_window": 16, "model_type": "mistral"},
            {"sliding_window": 16, "model_type": "gemma2"},
            {"sliding_window": 16, "model_type": "gemma3_text"},
            {"sliding_window": 16, "model_type": "qwen2"},
            {"sliding_window": None, "model_type": "mistral"},
            {"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"]},
        )
    }
    assert list(shares.values()) == [0, 1, 0.5, 5 / 6, 0, 0, 0.5]
