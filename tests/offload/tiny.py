"""Tiny models of transformers' architectures, of random weights, that nobody here wrote."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY, WINDOW = 97, 8
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256,
    "sliding_window": WINDOW, "attention_chunk_size": WINDOW, "use_sliding_window": True, "max_window_layers": 1,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "intermediate_size_mlp": 48,
    "query_pre_attn_scalar": 8, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "state_size": 8, "mamba_d_state": 8, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_dt_rank": 4, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1,
    "mamba_chunk_size": 8, "mamba_d_ssm": 64, "conv_kernel": 4, "chunk_size": 8, "n_groups": 1, "num_heads": 4,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8, "kv_lora_rank": 16, "q_lora_rank": 16,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "attn_layer_period": 2, "attn_layer_offset": 1,
    "expert_layer_period": 2, "expert_layer_offset": 1, "attn_layer_indices": [1, 3], "lru_width": 32,
    "conv_L_cache": 3, "block_auto_adjust_ff_dim": False, "block_multiple_of": 8, "attention_window_size": WINDOW,
    "pad_token": 0, "n_embd": 32, "n_head": 4, "n_layer": 4, "n_inner": 48, "n_positions": 256, "ffn_dim": 48,
    "word_embed_proj_dim": 32, "rotary_dim": 8, "d_model": 32, "n_heads": 4, "n_layers": 4, "num_layers": 4,
    "num_key_value_layers": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "decoder_layers": 4, "encoder_layers": 2,
    "decoder_attention_heads": 4, "encoder_attention_heads": 4, "activation_sparsity_pattern": 0.0,
    "num_kv_shared_layers": 0, "laurel_rank": 8, "altup_num_inputs": 2, "time_step_rank": 4,
}  # fmt: skip

_MORE: dict[str, dict[str, Any]] = {"bamba": {"attn_layer_indices": [1, 3]}}


def made(kind: str, **more: Any) -> Any:
    """A causal language model of an architecture, tiny, in eval mode. Some need more said than sizes."""
    known = AutoConfig.for_model(kind)
    text = known.get_text_config(decoder=True)
    settable = {name for name in dir(text) if not isinstance(getattr(type(text), name, None), property)}
    sizes = {name: value for name, value in _SIZES.items() if name in settable and getattr(text, name) is not None}
    config = type(text)(**{**sizes, **_MORE.get(kind, {}), **more})
    torch.manual_seed(4)
    return AutoModelForCausalLM.from_config(config).eval()


def prompt(length: int = 20) -> Any:
    return torch.randint(3, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(7))
