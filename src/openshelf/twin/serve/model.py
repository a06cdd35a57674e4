"""ServedModel: what a transformer's shape says about serving it: bytes of weights and KV, operations of a token.

From a transformers config.json, from a preset of models.yaml, or from the name of one. Dense and mixture of experts,
grouped and latent attention, layers with a window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from openshelf.errors import BadInput, UnknownName
from openshelf.twin.ops import name_key, read_config, transformer_of

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
    shared_width: int = 0
    dense_layers: int = 0
    latent: int = 0
    query_rank: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    window: int = 0
    windowed_share: float = 0.0
    query_norm: bool = False
    gated: bool = True
    tied: bool = False
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
    def _matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def expert_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def expert_parameters(self) -> int:
        """Of one expert."""
        return self._matrices * self.hidden * self.expert_width

    @property
    def dense_parameters(self) -> int:
        """Of everything that every token uses, but embeddings and experts that are chosen."""
        plain = self.layers - self.expert_layers
        shared = self.expert_layers * (self._matrices * self.shared_width + self.experts) * self.hidden
        feed_forward = plain * self._matrices * self.hidden * self.feed_forward
        return self.layers * self.attention_parameters + feed_forward + shared

    @property
    def parameters(self) -> int:
        return self.dense_parameters + self.expert_layers * self.experts * self.expert_parameters + self.embeddings

    @property
    def embeddings(self) -> int:
        """Of tokens, and of the head, which may be the same."""
        return (1 if self.tied else 2) * self.hidden * self.vocabulary

    @property
    def kv_numbers(self) -> int:
        """Keys and values of a token in a layer, of all heads."""
        return self.latent + self.rope_dim if self.latent else 2 * self.kv_heads * self.head_dim

    @property
    def operators(self) -> int:
        """Kernels of a layer, about: what each costs in itself adds up where batches are small."""
        count = 9 + 2 * self.query_norm + (8 if self.latent else 0)
        if self.experts:
            count += 4 + 3 * bool(self.shared_width)
        return count

    def weight_bytes(self, dtype: str) -> float:
        """In all, with linear layers and experts in the given dtype unless the model says otherwise; embeddings in
        bfloat16."""
        linear, expert = BYTES[self.linear_dtype or dtype], BYTES[self.expert_dtype or dtype]
        experts = self.expert_layers * self.experts * self.expert_parameters
        return self.dense_parameters * linear + experts * expert + self.embeddings * 2.0

    def kv_bytes(self, dtype: str = "bfloat16") -> float:
        """Of a token, in all layers."""
        return self.layers * self.kv_numbers * BYTES[dtype]


def model_of(config: Mapping[str, Any], name: str = "") -> ServedModel:
    """From the words of a transformers config.json; a multimodal one's `text_config` is taken."""
    found = transformer_of(config, name or str(config.get("_name_or_path") or config.get("model_type") or "model"))
    return ServedModel(
        found.name, found.layers, found.hidden, found.heads, found.kv_heads, found.head_dim, found.ffn, found.vocab,
        experts=found.experts, experts_used=found.topk, expert_width=found.expert_ffn, shared_width=found.shared_ffn,
        dense_layers=found.layers - found.moe_layers if found.experts else 0, latent=found.kept,
        query_rank=found.query, rope_dim=found.rope, value_dim=found.value, window=found.window,
        windowed_share=found.windowed, query_norm=found.query_norm, gated=found.gated, tied=found.tied,
        linear_dtype=str(config.get("linear_dtype", "")), expert_dtype=str(config.get("expert_dtype", "")),
    )  # fmt: skip


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
        return model_of(read_config(file), file.parent.name if file.name == "config.json" else file.stem)
    short = name_key(name.rsplit("/", 1)[-1])
    fits = [
        (len(begin), preset)
        for preset, each in _presets().items()
        for begin in map(name_key, each["match"])
        if short.startswith(begin)
    ]
    if not fits:
        raise UnknownName(f"there is no model {name!r}; give a config.json, or one of {', '.join(_presets())}")
    preset = max(fits)[1]
    return model_of(_presets()[preset], preset)
