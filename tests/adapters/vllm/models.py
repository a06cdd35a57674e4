"""Tiny models and LoRA adapters with random weights, on disk as vLLM reads them. Needs no vLLM.

Weights are drawn ten times larger than usual, so that attention looks at single tokens and a wrong block would show.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 32
VOCABULARY = 256
LAYERS, HEADS, HEAD_DIM, HIDDEN = 3, 2, 32, 128
BLOCK_BYTES = LAYERS * HEADS * 2 * BLOCK * HEAD_DIM * 4
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}


def save_model(folder: Path, kind: str = "llama", seed: int = 1) -> str:
    """A model's folder; the same weights for the same seed."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(seed)
    config = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[kind](**_SIZES)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return str(folder)


def save_adapter(folder: Path, seed: int) -> str:
    """A LoRA adapter's folder: it changes all keys and values of the Llama."""
    torch: Any = importlib.import_module("torch")
    folder.mkdir()
    torch.manual_seed(seed)
    weights = {}
    for layer in range(LAYERS):
        for part in ("k_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            weights[f"{name}.lora_A.weight"] = torch.randn(8, HIDDEN) / 8
            weights[f"{name}.lora_B.weight"] = torch.randn(HEADS * HEAD_DIM, 8) / 8
    importlib.import_module("safetensors.torch").save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["k_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


def prompt(length: int, seed: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()
    return tokens
