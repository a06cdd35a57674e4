"""Transformer: the sizes of a decoder, read from a transformers config.json in the words of any architecture.

Architectures name the same sizes differently, and leave out of the file what is usual for them. What attention's costs
do not describe is refused with the reason: encoders, and layers that keep a state instead of keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openshelf._texts import json_of
from openshelf.errors import BadInput

_ENCODERS = (
    "bert", "roberta", "xlm-roberta", "distilbert", "albert", "electra", "deberta", "deberta-v2", "modernbert", "vit",
    "clip", "siglip", "wav2vec2", "dinov2", "esm",
)  # fmt: skip
_STATES = (
    "mamba", "mamba2", "falcon_mamba", "rwkv", "jamba", "bamba", "zamba", "zamba2", "falcon_h1", "recurrent_gemma",
    "lfm2", "lfm2_moe", "qwen3_next", "minimax", "granitemoehybrid", "nemotron_h", "kimi_linear", "xlstm",
)  # fmt: skip
_OTHERS = {
    "longcat_flash": "two attentions in each layer", "jetmoe": "experts of attention",
    "gemma3n": "layers of several widths", "openelm": "layers of several widths", "doge": "experts that are rows",
}  # fmt: skip
_UNGATED = (
    "gpt2", "gpt_neox", "gptj", "gpt_bigcode", "gpt_neo", "openai-gpt", "falcon", "bloom", "opt", "phi", "starcoder2",
    "nemotron", "mpt", "codegen", "xglm", "biogpt", "ctrl", "persimmon", "gpt_neox_japanese",
)  # fmt: skip
_TIED = (
    "gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "gpt_bigcode", "gpt_neo", "openai-gpt", "falcon", "bloom",
    "opt", "mpt", "ctrl", "xglm", "biogpt", "cohere", "cohere2", "starcoder2", "smollm3",
)  # fmt: skip
_ONE_IN = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
"""Of so many layers one sees everything, where the file does not say which."""


@dataclass(frozen=True)
class Transformer:
    """`ffn` is of a dense layer, `expert_ffn` of one expert; `shared_ffn` of what all tokens use beside experts.

    `kept` > 0 is latent attention: the numbers of a token that are kept, without `rope`. `window` tokens are seen by
    `windowed` of the layers (a share).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    positions: int
    gated: bool
    tied: bool
    experts: int = 0
    topk: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    moe_layers: int = 0
    kept: int = 0
    query: int = 0
    rope: int = 0
    value: int = 0
    window: int = 0
    windowed: float = 0.0
    query_norm: bool = False


def name_key(name: str) -> str:
    """A model's name as it is looked up: capitals and hyphens are set in many ways (Llama-3.1-8B, llama3.1-8b)."""
    return name.lower().replace("-", "")


def read_config(path: Path) -> dict[str, Any]:
    """A config.json as a dict; raises BadInput that says what it is instead."""
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        raise BadInput(f"{str(path)!r} cannot be read as a transformers config.json: {error}") from None
    found = json_of(text, f"{str(path)!r} cannot be read as a transformers config.json")
    if not isinstance(found, dict):
        raise BadInput(f"{str(path)!r} has a {type(found).__name__}; expected the dict of a transformers config.json")
    return found


class _Words:
    """A config's words, in the nested dicts that some architectures have, too."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        text = config.get("text_config") or config.get("llm_config") or config
        if not isinstance(text, Mapping):
            raise BadInput(f"text_config of {name!r} is a {type(text).__name__}; expected a dict")
        self.name = name
        self.all = {**text}
        for inner in ("attn_config", "ffn_config"):
            if isinstance(nested := text.get(inner), Mapping):
                self.all = {**nested, **self.all}
        self.type = str(self.all.get("model_type") or config.get("model_type") or "")

    def number(self, *names: str, default: int | None = None, least: int = 0) -> int:
        for each in names:
            value = self.all.get(each)
            if isinstance(value, list) and value and all(one == value[0] for one in value):
                value = value[0]
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < least:
                raise BadInput(f"{each} of {self.name!r} is {value!r}; expected a whole number from {least} on")
            return int(value)
        if default is None:
            raise BadInput(
                f"the config of {self.name!r} has no {' or '.join(names)}, which says how large the model is: expected "
                "a transformers config.json of a decoder"
            )
        return default

    def flag(self, name: str, default: bool) -> bool:
        value = self.all.get(name)
        return default if value is None else bool(value)

    def kinds(self) -> list[str]:
        found = self.all.get("layer_types") or self.all.get("layers_block_type") or ()
        return [str(each) for each in found] if isinstance(found, list | tuple) else []


def transformer_of(config: Mapping[str, Any], name: str) -> Transformer:
    """Sizes by a config; raises BadInput with what is missing, wrong, or not a decoder's."""
    words = _Words(config, name)
    _refuse(words, config)
    number = words.number
    hidden = number("hidden_size", "n_embd", "d_model", least=1)
    layers = number("num_hidden_layers", "n_layer", "n_layers", "num_layers", least=1)
    heads = number("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", least=1)
    ffn = number(
        "intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", "dff", "inner_size",
        default=number("expansion_ratio", default=4) * hidden, least=1,
    )  # fmt: skip
    one = words.flag("multi_query", False) and not words.flag("new_decoder_architecture", False)
    kv_heads = 1 if one else number("num_key_value_heads", "num_kv_heads", "kv_n_heads", default=heads, least=1)
    kept = number("kv_lora_rank", default=0)
    plain = hidden // heads
    window, windowed = _windows(words)
    return Transformer(
        name, layers, hidden, heads, kv_heads,
        number("qk_nope_head_dim", default=128, least=1) if kept else
        number("head_dim", "attention_head_dim", default=plain, least=1),
        number("intermediate_size_mlp", default=ffn, least=1), number("vocab_size", least=1),
        number("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=4096, least=1),
        words.type not in _UNGATED, words.flag("tie_word_embeddings", words.type in _TIED),
        kept=kept, query=number("q_lora_rank", default=0) if kept else 0,
        rope=number("qk_rope_head_dim", default=64) if kept else 0,
        value=number("v_head_dim", default=128) if kept else 0, window=window, windowed=windowed,
        query_norm=words.flag("qk_norm", words.type.startswith("qwen3")), **_experts(words, layers, ffn),
    )  # fmt: skip


def _refuse(words: _Words, config: Mapping[str, Any]) -> None:
    why = ""
    if config.get("is_encoder_decoder") or words.all.get("is_encoder_decoder"):
        why = "it has an encoder beside its decoder"
    elif words.type in _ENCODERS:
        why = "it is an encoder, which generates nothing"
    states = [kind for kind in words.kinds() if any(word in kind for word in ("linear", "mamba", "recurr", "conv"))]
    if words.type in _STATES or states or any(name in words.all for name in ("ssm_cfg", "mamba_d_state", "state_size")):
        why = "layers keep a state instead of keys and values" + (f" ({states[0]})" if states else "")
    why = why or _OTHERS.get(words.type, "")
    if why:
        raise BadInput(f"{words.name!r} ({words.type or 'no model_type'}) is not simulated: {why}")


def _experts(words: _Words, layers: int, ffn: int) -> dict[str, int]:
    number = words.number
    experts = number("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", default=0)
    if experts < 2 or not words.flag("is_moe", True):
        return {}
    topk = number(
        "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k", "moe_k", default=0
    )
    if not 0 < topk <= experts:
        raise BadInput(f"{words.name!r} uses {topk} of {experts} experts for a token; expected 1 to {experts}")
    own = number("moe_intermediate_size", "expert_ffn_size", default=ffn, least=1)
    shared = number("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts", default=-1)
    shared = max(shared, 1 if words.type.startswith("llama4") else 0)
    wide = number("shared_expert_intermediate_size", "shared_intermediate_size", default=shared * own)
    return {
        "experts": experts, "topk": topk, "expert_ffn": own, "shared_ffn": wide,
        "moe_layers": _layers_of_experts(words, layers),
    }  # fmt: skip


def _layers_of_experts(words: _Words, layers: int) -> int:
    named = words.all.get("moe_layers")
    if isinstance(named, list):
        return len(named)
    first = words.number("first_k_dense_replace", "moe_layer_start_index", default=0)
    every = words.number("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", default=1, least=1)
    dense = words.all.get("mlp_only_layers") or ()
    found = sum(at >= first and (at + 1) % every == 0 and at not in dense for at in range(layers))
    if every > 1 and words.type.startswith("deepseek"):
        found = sum(at >= first and at % every == 0 for at in range(layers))
    return found


def _windows(words: _Words) -> tuple[int, float]:
    """The window, and the share of layers that have one."""
    kinds = words.kinds()
    if any("chunked" in kind for kind in kinds):
        share = sum("chunked" in kind for kind in kinds) / len(kinds)
        return words.number("attention_chunk_size", default=8192), share
    used = words.flag("use_sliding_window", not words.type.startswith("qwen"))
    window = words.number("sliding_window", "window_size", default=0) if used else 0
    if not window:
        return 0, 0.0
    if kinds:
        share = sum("sliding" in kind or "local" in kind for kind in kinds) / len(kinds)
    elif (given := words.all.get("windowed_share")) is not None:
        share = float(given)
    else:
        pattern = words.number("sliding_window_pattern", default=_ONE_IN.get(words.type, 0))
        share = (pattern - 1) / pattern if pattern else 1.0
    return (window, share) if share else (0, 0.0)
