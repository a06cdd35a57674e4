"""Transformers as training sees them: sizes, parameters, operations; from numbers or a transformers config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openshelf.errors import BadInput, UnknownName
from openshelf.fabric import nearest
from openshelf.twin.ops import name_key, read_config, transformer_of


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
    shared_ffn: int = 0
    moe_ffn: int = 0
    moe_layers: int = 0
    lora: bool = False
    tied: bool = False
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
    def shared_weights(self) -> int:
        """Of one layer's part that all tokens use beside their experts."""
        return self._matrices * self.hidden * self.shared_ffn

    @property
    def parameters(self) -> int:
        dense = self.layers - self.moe_layers
        moe = self.moe_layers * (self.expert_weights * self.experts + self.shared_weights + self.hidden * self.experts)
        embedding = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * self.attention_weights + dense * self.dense_weights + moe + embedding

    @property
    def active_parameters(self) -> int:
        """Those that a token meets, without the look-up of its embedding."""
        dense = self.layers - self.moe_layers
        moe = self.moe_layers * (self.expert_weights * self.topk + self.shared_weights)
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
    return Model(name, hidden, layers, heads, seq, 4 * hidden, vocab, tied=True)


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
        Model("palm-540b", 18432, 118, 48, 2048, 73728, 256000, head_dim=256, tied=True),
        Model("llama2-70b", 8192, 80, 64, 4096, 28672, 32000, 8, gated=True),
        Model("llama3.1-8b", 4096, 32, 32, 8192, 14336, 128256, 8, gated=True),
        Model("llama3.1-405b", 16384, 126, 128, 8192, 53248, 128256, 8, gated=True),
        Model(
            "deepseek-v3", 7168, 61, 128, 4096, 18432, 129280, gated=True, head_dim=128, experts=256, topk=8,
            shared_ffn=2048, moe_ffn=2048, moe_layers=58, low_rank=mla_weights(7168, 128, 1536, 512, 64, 128, 128),
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
    byname_key = {name_key(each): made for each, made in MODELS.items()}
    if name_key(name) in byname_key:
        made = byname_key[name_key(name)]
    elif Path(name).exists():
        made = _from_file(Path(name))
    else:
        raise UnknownName(
            f"there is no model {name!r}; there is {', '.join(MODELS)}, or give the path of a transformers config.json"
            f"{nearest(name, list(MODELS))}"
        )
    return made if seq is None else Model(**{**made.__dict__, "seq": seq})


def _from_file(path: Path) -> Model:
    file = path / "config.json" if path.is_dir() else path
    return from_config(read_config(file), file.stem if file.stem != "config" else file.resolve().parent.name)


def from_config(config: Mapping[str, Any], name: str) -> Model:
    """From a transformers config; raises BadInput with what is missing, or why it is none that can be simulated."""
    found = transformer_of(config, name)
    low_rank = 0
    if found.kept:
        low_rank = mla_weights(
            found.hidden, found.heads, found.query, found.kept, found.rope, found.head_dim, found.value
        )
    return Model(
        name, found.hidden, found.layers, found.heads, found.positions, found.ffn, found.vocab, found.kv_heads,
        found.head_dim, found.gated, found.experts, found.topk, found.shared_ffn, found.expert_ffn, found.moe_layers,
        low_rank=low_rank, tied=found.tied,
    )  # fmt: skip
