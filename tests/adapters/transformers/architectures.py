"""Tiny models of every causal language model that transformers has, and what becomes of them with a pool.

A short prompt and then a long one that begins with it, as in tests/kv/models.py: right, or refused with a reason.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import warnings
from typing import Any

import numpy as np

from openshelf import KVPool, Space
from openshelf.adapters.transformers import PooledCache, layout_of
from openshelf.errors import OpenshelfError

torch: Any = importlib.import_module("torch")
transformers: Any = importlib.import_module("transformers")
auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "initializer_range": 0.2,
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "d_model": 32, "n_layer": 2, "n_layers": 2, "n_head": 4,
    "n_heads": 4, "n_embd": 32, "n_positions": 256, "n_inner": 48, "ffn_dim": 48, "d_ff": 48, "dff": 48,
    "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "encoder_layers": 2,
    "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "word_embed_proj_dim": 32, "num_layers": 2, "num_heads": 4,
    "attention_types": [[["global"], 2]], "rotary_dim": 4, "embedding_size": 32, "shared_expert_intermediate_size": 16,
    "max_seq_len": 256, "hidden_dim": 32, "ffn_hidden_size": 48, "expert_dim": 16, "num_kv_heads": 2,
    "eos_token_id": None, "bos_token_id": None, "pad_token_id": None, "is_decoder": True,
}  # fmt: skip
# Kinds of caches: windows, windows and all tokens, latent attention, a recurrence, a convolution, no attention.
KINDS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 24},
    "gemma3_text": {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]},
    "deepseek_v3": {
        "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6,
        "head_dim": 4, "num_key_value_heads": 4, "first_k_dense_replace": 1,
    },
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mamba": {"state_size": 4},
}  # fmt: skip
TOO_LARGE = 20_000_000  # weights: sizes that this does not know of
MAY_DIFFER = 1e-3  # of the largest logit; rounding makes some 1e-6


class NotBuilt(Exception):
    """No tiny model can be made like this."""


SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    },
    "longrope": {
        "short_factor": 4 * [1.0], "long_factor": [1.0 + at for at in range(4)], "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}  # fmt: skip


def build(kind: str, scaling: str | None = None, **changes: Any) -> Any:
    """A tiny model of an architecture, weights drawn at random; with a `scaling`, long from 65 tokens on."""
    made = transformers.AutoConfig.for_model(kind)
    if scaling is not None:
        if "rope_type" not in (getattr(made, "rope_parameters", None) or {}):
            raise NotBuilt("no such rotary embeddings")
        changes["rope_parameters"] = {"rope_theta": 10000.0, "rope_type": scaling, **SCALINGS[scaling]}
        changes["max_position_embeddings"] = 64 if scaling == "dynamic" else 256
    fixed = [name for name in SIZES if isinstance(getattr(type(made), name, None), property)]
    given = {name: value for name, value in SIZES.items() if hasattr(made, name) and name not in fixed} | changes
    try:
        config = transformers.AutoConfig.for_model(kind, **given)
        with torch.device("meta"):
            size = sum(p.numel() for p in transformers.AutoModelForCausalLM.from_config(config).parameters())
        if size > TOO_LARGE:
            raise NotBuilt(f"{size} weights")
        torch.manual_seed(1)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    except (NotBuilt, ImportError):
        raise
    except Exception as error:  # every architecture has its own ways to dislike sizes
        raise NotBuilt(f"{type(error).__name__}: {error}") from error


def prompt(length: int, padding: int | None = None) -> Any:
    tokens = np.random.default_rng(3).integers(5, 96, (1, length))
    return torch.from_numpy(np.where(tokens == padding, 5 if padding != 5 else 6, tokens))


def logits(model: Any, tokens: Any, cache: Any, new: int) -> Any:
    how = {"max_new_tokens": new, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    if cache is not None:
        takes = inspect.signature(model.forward).parameters
        how["past_key_values" if "past_key_values" in takes else "cache_params"] = cache
    out = model.generate(tokens, attention_mask=torch.ones_like(tokens), **how)
    return torch.cat(out.logits), out


def outcome(space: Space, model: Any, lengths: tuple[int, ...] = (40, 100, 70, 40), new: int = 6) -> str:
    """'right', or why it was refused. AssertionError if a prompt's logits are others with the pool than without."""
    whole = prompt(max(lengths), model.generation_config.pad_token_id)
    twin = copy.deepcopy(model)  # `dynamic` remembers its longest call: both must have the same past
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            layout = layout_of(model)
        except OpenshelfError as error:
            return str(error)
        hits = 0
        with KVPool(space, layout, 16, name=layout.model, capacity="2MiB") as pool:
            for length in lengths:
                tokens = whole[:, :length]
                expected = plainly(twin, tokens, new)
                try:
                    cache = PooledCache(pool, model, tokens)
                    got, out = logits(model, tokens, cache, new)
                    cache.store(out)
                except OpenshelfError as error:
                    return str(error)
                hits += cache.hit_tokens
                try:
                    assert_close(length, zip(got, expected, strict=True))
                except AssertionError:
                    if in_pieces_differs(twin, tokens, expected):
                        raise NotBuilt("transformers alone differs when a prompt comes in two pieces") from None
                    raise
    return "right" if hits else "no hits"


def plainly(model: Any, tokens: Any, new: int) -> Any:
    try:
        return logits(model, tokens, None, new)[0]
    except Exception as error:  # it does not run without a pool either
        raise NotBuilt(f"{type(error).__name__}: {error}") from error


def in_pieces_differs(model: Any, tokens: Any, expected: Any) -> bool:
    """Whether the answers after a prompt in two pieces, with a cache of transformers, are as far off."""
    length = tokens.shape[1]
    for cut in (*range(16, length, 16), length - 1):
        cache = transformers.DynamicCache(config=model.config)
        got, piece = [], tokens[:, cut:]
        with torch.no_grad():
            model(input_ids=tokens[:, :cut], past_key_values=cache, use_cache=True)
            for each in expected:
                got.append(model(input_ids=piece, past_key_values=cache, use_cache=True).logits[0, -1])
                piece = each.argmax().reshape(1, 1)
        try:
            assert_close(length, zip(got, expected, strict=True))
        except AssertionError:
            return True
    return False


def assert_close(length: int, steps: Any) -> None:
    """Up to the first token whose choice is too close to call."""
    for number, (got, expected) in enumerate(steps):
        largest = float(expected.abs().max())
        off = float((got - expected).abs().max())
        assert off <= MAY_DIFFER * largest, f"step {number} after {length} tokens: off by {off} of {largest}"
        second, first = expected.sort().values[-2:]
        if float(first - second) <= 2 * MAY_DIFFER * largest:
            return


def kinds() -> list[str]:
    return sorted(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
