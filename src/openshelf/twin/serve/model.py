"""ServedModel: what a transformer's shape says about serving it: bytes of weights and KV, operations of a token.

From a transformers config.json, from a preset of models.yaml, or from the name of one. Dense and mixture of experts,
grouped and latent attention, layers with a window.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from openshelf.errors import BadInput, UnknownName

_FILE = Path(__file__).parent / "models.yaml"
BYTES = {"bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "mxfp4": 0.53125}
"""Of a parameter or a KV number, scales included."""


@dataclass(frozen=True)
class ServedModel:
    """Sizes of a transformer.

    `experts` 0: dense. `latent` > 0: multi-head latent attention of that rank, without rope.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    experts: int = 0
    experts_used: int = 0
    expert_width: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    latent: int = 0
    query_rank: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    window: int = 0
    windowed_share: float = 0.0
    query_norm: bool = False
    linear_dtype: str = ""
    expert_dtype: str = ""

    @property
    def attention_parameters(self) -> int:
        """Of one layer."""
        if self.latent:
            full = self.heads * (self.head_dim + self.rope_dim)
            query = self.hidden * self.query_rank + self.query_rank * full if self.query_rank else self.hidden * full
            keys = self.hidden * (self.latent + self.rope_dim)
            return (
                query
                + keys
                + self.latent * self.heads * (self.head_dim + self.value_dim)
                + self.heads * self.value_dim * self.hidden
            )
        query, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.hidden * (query + 2 * keys) + query * self.hidden

    @property
    def expert_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def expert_parameters(self) -> int:
        """Of one expert."""
        return 3 * self.hidden * self.expert_width

    @property
    def dense_parameters(self) -> int:
        """Of everything that every token uses, but embeddings and experts that are chosen."""
        plain = self.layers - self.expert_layers
        shared = self.expert_layers * self.shared_experts * self.expert_parameters
        return self.layers * self.attention_parameters + plain * 3 * self.hidden * self.feed_forward + shared

    @property
    def parameters(self) -> int:
        return (
            self.dense_parameters
            + self.expert_layers * self.experts * self.expert_parameters
            + 2 * self.hidden * self.vocabulary
        )

    @property
    def kv_numbers(self) -> int:
        """Keys and values of a token in a layer, of all heads."""
        return self.latent + self.rope_dim if self.latent else 2 * self.kv_heads * self.head_dim

    @property
    def operators(self) -> int:
        """Kernels of a layer, about: what each costs in itself adds up where batches are small."""
        count = 9 + 2 * self.query_norm + (8 if self.latent else 0)
        if self.experts:
            count += 4 + 3 * bool(self.shared_experts)
        return count

    def weight_bytes(self, dtype: str) -> float:
        """In all, with linear layers and experts in the given dtype unless the model says otherwise; embeddings in
        bfloat16."""
        linear, expert = BYTES[self.linear_dtype or dtype], BYTES[self.expert_dtype or dtype]
        experts = self.expert_layers * self.experts * self.expert_parameters
        return self.dense_parameters * linear + experts * expert + 2 * self.hidden * self.vocabulary * 2.0

    def kv_bytes(self, dtype: str = "bfloat16") -> float:
        """Of a token, in all layers."""
        return self.layers * self.kv_numbers * BYTES[dtype]


def _number(config: dict[str, Any], *names: str, default: int | None = None) -> int:
    for name in names:
        if config.get(name) is not None:
            return int(config[name])
    if default is not None:
        return default
    raise BadInput(f"a model's config has none of {', '.join(names)}: is it a transformers config.json of a decoder?")


def model_of(config: dict[str, Any], name: str = "") -> ServedModel:
    """From the words of a transformers config.json; a multimodal one's `text_config` is taken."""
    config = config.get("text_config", config)
    hidden, heads = _number(config, "hidden_size", "n_embd"), _number(config, "num_attention_heads", "n_head")
    latent = _number(config, "kv_lora_rank", default=0)
    experts = _number(config, "n_routed_experts", "num_experts", "num_local_experts", default=0)
    feed_forward = _number(config, "intermediate_size", "n_inner", default=4 * hidden)
    window = _number(config, "sliding_window", default=0) if config.get("use_sliding_window", True) else 0
    kinds = config.get("layer_types")
    share = sum("sliding" in kind for kind in kinds) / len(kinds) if kinds else float(config.get("windowed_share", 0.0))
    model = ServedModel(
        name=name or str(config.get("_name_or_path") or config.get("model_type", "model")),
        layers=_number(config, "num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=_number(config, "num_key_value_heads", default=heads),
        head_dim=_number(config, "qk_nope_head_dim", default=128)
        if latent
        else _number(config, "head_dim", default=hidden // heads),
        feed_forward=feed_forward,
        vocabulary=_number(config, "vocab_size"),
        experts=experts,
        experts_used=_number(config, "num_experts_per_tok", "experts_per_token", default=0),
        expert_width=_number(config, "moe_intermediate_size", default=feed_forward) if experts else 0,
        shared_experts=_number(config, "n_shared_experts", default=0) if experts else 0,
        dense_layers=_number(config, "first_k_dense_replace", default=0) if experts else 0,
        latent=latent,
        query_rank=_number(config, "q_lora_rank", default=0) if latent else 0,
        rope_dim=_number(config, "qk_rope_head_dim", default=64) if latent else 0,
        value_dim=_number(config, "v_head_dim", default=128) if latent else 0,
        window=window if share else 0,
        windowed_share=share,
        query_norm=bool(config.get("qk_norm", str(config.get("model_type", "")).startswith("qwen3"))),
        linear_dtype=str(config.get("linear_dtype", "")),
        expert_dtype=str(config.get("expert_dtype", "")),
    )
    if experts and not 0 < model.experts_used <= experts:
        raise BadInput(
            f"a model of {experts} experts uses {model.experts_used} of them for a token; expected 1 to {experts}"
        )
    return model


@cache
def _presets() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(_FILE.read_text())
    return found


def model_names() -> list[str]:
    return list(_presets())


def find_model(name: str) -> ServedModel:
    """By a path to a config.json or its folder, a preset's name, or a name that begins like one's, as on the Hub."""
    path = Path(name)
    if path.suffix == ".json" or path.is_dir():
        file = path / "config.json" if path.is_dir() else path
        if not file.is_file():
            raise BadInput(f"there is no file {file}: give a transformers config.json")
        return model_of(json.loads(file.read_text()), file.parent.name if file.name == "config.json" else file.stem)
    short = name.rsplit("/", 1)[-1].lower()
    fits = [
        (len(begin), preset)
        for preset, each in _presets().items()
        for begin in each["match"]
        if short.startswith(begin)
    ]
    if not fits:
        raise UnknownName(f"there is no model {name!r}; give a config.json, or one of {', '.join(_presets())}")
    preset = max(fits)[1]
    return model_of(_presets()[preset], preset)
