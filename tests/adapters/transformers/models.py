"""Tiny models of transformers with random weights, equal in every process, and what they answer with a pool or without.

Weights are drawn ten times larger than usual, so that attention looks at single tokens and a wrong block would show.
"""

from __future__ import annotations

import gc
import importlib
from typing import Any, NamedTuple

import numpy as np

from openshelf import KVPool, Space
from openshelf.adapters.transformers import PooledCache, layout_of

torch: Any = importlib.import_module("torch")  # untyped: mypy would read all of them
transformers: Any = importlib.import_module("transformers")
torch.set_num_threads(1)
gc.freeze()  # what was imported: a collection after each test would go through all of it

# Float32 sums in another order: a prefill of the last tokens only multiplies matrices of other shapes. A sum of 128
# terms may be off by 128 * 2^-24 = 8e-6 of their size, and some ten of them follow each other. Logits are below 10
# here; 5e-6 was the most that was seen.
LOGITS_MAY_DIFFER = 1e-4
MARGIN = 2 * LOGITS_MAY_DIFFER  # of the two best tokens, above which both must choose the same

BLOCK = 16
VOCABULARY = 256
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
KINDS = ("llama", "qwen2", "qwen3", "gpt2")


def config_of(kind: str, **changes: Any) -> Any:
    if kind == "gpt2":
        sizes = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512}
        more = {name: _SIZES[name] for name in ("vocab_size", "initializer_range", "eos_token_id", "bos_token_id")}
        return transformers.GPT2Config(**{**sizes, **more, **changes})
    if kind == "qwen3":
        return transformers.Qwen3Config(**{**_SIZES, "head_dim": 32, **changes})
    kinds = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}
    return kinds[kind](**{**_SIZES, **changes})


def model_of(kind: str, seed: int = 1, **changes: Any) -> Any:
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config_of(kind, **changes), dtype=torch.float32).eval()


def pool_of(space: Space, model: Any, **options: Any) -> KVPool:
    """Models of other sizes have pools of their own."""
    layout = layout_of(model)
    options = {"name": f"kv-{layout.heads}x{layout.head_dim}", "capacity": "4MiB", **options}
    return KVPool(space, layout, BLOCK, **options)


def prompt(length: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length)


class Answer(NamedTuple):
    """What came of a generation; `kv` is all keys and values of the cache."""

    hit: int
    stored: int
    tokens: list[int]
    logits: np.ndarray[Any, np.dtype[np.float32]]
    kv: np.ndarray[Any, np.dtype[np.float32]]


def answer(model: Any, pool: KVPool | None, tokens: Any, new: int = 8, keep: bool = False, **options: Any) -> Answer:
    """Greedy; `keep` stores what was generated, too."""
    ids = torch.from_numpy(np.asarray(tokens))[None]
    cache = transformers.DynamicCache() if pool is None else PooledCache(pool, model, {"input_ids": ids})
    greedy = {"max_new_tokens": new, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    out = model.generate(ids, past_key_values=cache, **greedy, **options)
    hit = stored = 0
    if isinstance(cache, PooledCache):
        hit, stored = cache.hit_tokens, sum(done.stored for done in cache.stored)
        if keep:
            stored += cache.store(out)[0].stored
    logits = torch.cat(out.logits).numpy()
    return Answer(hit, stored, out.sequences[0, len(tokens) :].tolist(), logits, kv_of(cache))


def kv_of(cache: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Layers, keys and values, heads, tokens, elements: of the first prompt."""
    return np.stack([np.stack([layer.keys[0].numpy(), layer.values[0].numpy()]) for layer in cache.layers])


def assert_same(ours: Answer, plain: Answer) -> None:
    """Logits close and tokens equal, up to the first token whose choice is too close to call."""
    for step, (got, expected) in enumerate(zip(ours.logits, plain.logits, strict=True)):
        assert np.abs(got - expected).max() < LOGITS_MAY_DIFFER, f"step {step}"
        second, first = np.sort(expected)[-2:]
        if first - second <= MARGIN:
            return
        assert ours.tokens[step] == plain.tokens[step]
