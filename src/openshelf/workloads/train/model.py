"""Transformers as training sees them: sizes, parameters, operations; from numbers or a transformers config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openshelf.errors import BadInput, UnknownName
from openshelf.fabric import nearest


@dataclass(frozen=True)
class Model:
    """A decoder. `experts` of 0 is dense; else each of `moe_layers` layers has that many, of which `topk` are used.

    `lora` freezes all weights: their gradients are not computed, and neither gradients nor optimizer state are kept.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    seq: int
    ffn: int
    vocab: int = 51200
    kv_heads: int = 0
    head_dim: int = 0
    gated: bool = False
    experts: int = 0
    topk: int = 0
    shared_experts: int = 0
    moe_ffn: int = 0
    moe_layers: int = 0
    lora: bool = False
    low_rank: int = 0
    """Weights of a layer's attention where its projections are of low rank (MLA); 0: they are whole."""

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "heads", "seq", "ffn", "vocab"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} of {self.name!r} is {getattr(self, name)}; expected 1 or more")
        if self.experts and not 0 < self.topk <= self.experts:
            raise BadInput(f"{self.name!r} uses {self.topk} of {self.experts} experts; expected 1 to {self.experts}")

    @property
    def width(self) -> int:
        """Of all heads together."""
        return self.heads * (self.head_dim or self.hidden // self.heads)

    @property
    def kv_width(self) -> int:
        return (self.kv_heads or self.heads) * (self.head_dim or self.hidden // self.heads)

    @property
    def attention_weights(self) -> int:
        """Of one layer."""
        return self.low_rank or self.hidden * (2 * self.width + 2 * self.kv_width)

    @property
    def _matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def dense_weights(self) -> int:
        """Of the feed-forward part of one dense layer."""
        return self._matrices * self.hidden * self.ffn

    @property
    def expert_weights(self) -> int:
        """Of one expert."""
        return self._matrices * self.hidden * self.moe_ffn

    @property
    def parameters(self) -> int:
        dense = self.layers - self.moe_layers
        moe = self.moe_layers * (
            self.expert_weights * (self.experts + self.shared_experts) + self.hidden * self.experts
        )
        embedding = self.vocab * self.hidden * (2 if self.gated else 1)
        return self.layers * self.attention_weights + dense * self.dense_weights + moe + embedding

    @property
    def active_parameters(self) -> int:
        """Those that a token meets, without the look-up of its embedding."""
        dense = self.layers - self.moe_layers
        moe = self.moe_layers * self.expert_weights * (self.topk + self.shared_experts)
        return self.layers * self.attention_weights + dense * self.dense_weights + moe + self.vocab * self.hidden

    def forward_flop(self, sequences: float) -> float:
        """Operations of a forward pass, attention counted as causal kernels do it: half of the square."""
        attention = 2 * self.seq * self.width * self.layers
        return sequences * self.seq * (2 * self.active_parameters + attention)

    def step_flop(self, sequences: float) -> float:
        """Operations of a step without recomputation: what MFU counts."""
        return self.forward_flop(sequences) * (2 if self.lora else 3)


def gpt(name: str, hidden: int, layers: int, heads: int, seq: int, vocab: int = 51200) -> Model:
    """As GPT-3: a feed-forward part of four times the width, and no gate."""
    return Model(name, hidden, layers, heads, seq, 4 * hidden, vocab)


def mla_weights(hidden: int, heads: int, query: int, kept: int, rope: int, head: int, value: int) -> int:
    """Weights of multi-head latent attention: queries and keys go through `query` and `kept` numbers of a token."""
    queries = hidden * query + query * heads * (head + rope) if query else hidden * heads * (head + rope)
    return queries + hidden * (kept + rope) + kept * heads * (head + value) + heads * value * hidden


MODELS = {
    each.name: each
    for each in (
        gpt("gpt3-175b", 12288, 96, 96, 2048),
        gpt("megatron-22b", 6144, 48, 64, 2048),
        gpt("megatron-530b", 20480, 105, 128, 2048),
        gpt("megatron-1t", 25600, 128, 160, 2048),
        gpt("gopher-280b", 16384, 80, 128, 2048),
        Model("palm-540b", 18432, 118, 48, 2048, 73728, 256000, head_dim=256),
        Model("llama2-70b", 8192, 80, 64, 4096, 28672, 32000, 8, gated=True),
        Model("llama3.1-8b", 4096, 32, 32, 8192, 14336, 128256, 8, gated=True),
        Model("llama3.1-405b", 16384, 126, 128, 8192, 53248, 128256, 8, gated=True),
        Model(
            "deepseek-v3", 7168, 61, 128, 4096, 18432, 129280, gated=True, head_dim=128, experts=256, topk=8,
            shared_experts=1, moe_ffn=2048, moe_layers=58, low_rank=mla_weights(7168, 128, 1536, 512, 64, 128, 128),
        ),
        Model(
            "mixtral-8x7b", 4096, 32, 32, 4096, 14336, 32000, 8, gated=True, experts=8, topk=2, moe_ffn=14336,
            moe_layers=32,
        ),
    )
}  # fmt: skip
"""Models by name; shapes as published."""


def model_of(name: str, seq: int | None = None) -> Model:
    """A model by name, or by the path of a transformers config.json."""
    if name in MODELS:
        made = MODELS[name]
    elif Path(name).exists():
        made = _from_file(Path(name))
    else:
        raise UnknownName(
            f"there is no model {name!r}; there is {', '.join(MODELS)}{nearest(name, list(MODELS))}, or give the path "
            "of a transformers config.json"
        )
    return made if seq is None else Model(**{**made.__dict__, "seq": seq})


def _from_file(path: Path) -> Model:
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{str(path)!r} cannot be read as a transformers config.json: {error}") from None
    return from_config(config, path.stem if path.stem != "config" else path.resolve().parent.name)


def from_config(config: Mapping[str, Any], name: str) -> Model:
    """From a transformers config; raises BadInput with the fields that are missing."""
    text = config.get("text_config") or config

    def field(*names: str, default: int | None = None) -> int:
        for each in names:
            if text.get(each) is not None:
                return int(text[each])
        if default is None:
            raise BadInput(f"the config of {name!r} has no {' or '.join(names)}; it is needed to know the model's size")
        return default

    hidden, layers = field("hidden_size", "n_embd", "d_model"), field("num_hidden_layers", "n_layer", "num_layers")
    heads = field("num_attention_heads", "n_head")
    experts = field("num_local_experts", "n_routed_experts", "num_experts", default=0)
    gated = str(text.get("hidden_act", "silu")) in ("silu", "swiglu", "swish") and "n_embd" not in text
    dense_first = field("first_k_dense_replace", default=0)
    kept, low_rank = field("kv_lora_rank", default=0), 0
    if kept:
        head = field("qk_nope_head_dim", default=128)
        sizes = field("q_lora_rank", default=0), kept, field("qk_rope_head_dim", default=64), head
        low_rank = mla_weights(hidden, heads, *sizes, field("v_head_dim", default=head))
    return Model(
        name, hidden, layers, heads, field("max_position_embeddings", "n_positions", default=4096),
        field("intermediate_size", "n_inner", default=4 * hidden), field("vocab_size"),
        field("num_key_value_heads", default=heads), field("head_dim", default=hidden // heads), gated, experts,
        field("num_experts_per_tok", "num_experts_per_token", default=0), field("n_shared_experts", default=0),
        field("moe_intermediate_size", default=field("intermediate_size", default=4 * hidden)) if experts else 0,
        layers - dense_first if experts else 0, low_rank=low_rank,
    )  # fmt: skip
