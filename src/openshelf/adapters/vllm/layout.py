"""The Layout of a vLLM engine's KV cache, and which engines have one that can be shared.

A page of the CPU backend is one block of one layer: for each head all its keys, then all its values, packed as the
CPU's instructions like them. It is copied whole, so the pool's blocks have as many tokens as vLLM's.
"""

from __future__ import annotations

import re
from typing import Any

from openshelf.adapters.vllm.weights import model_name
from openshelf.errors import BadInput, Mismatch
from openshelf.kv import Layout

ORDER = "hktd"


def layout_of(config: Any, cache: Any, *, name: str | None = None, rank: int = 0, adapter: str = "") -> Layout:
    """The Layout of an engine's cache, from its VllmConfig and KVCacheConfig; its blocks have spec_of(cache).block_size
    tokens.

    `name` stands for the weights and their revision; without it, the files of a local model are hashed, a second for
    each GiB. `rank`: of the tensor-parallel ones. `adapter`: names a LoRA adapter.
    """
    spec = spec_of(cache)
    check_engine(config)
    return Layout(
        model=model_name(config, spec.head_size, name),
        layers=len(layer_names(cache)),
        heads=spec.num_kv_heads,
        head_dim=spec.head_size,
        dtype=str(spec.dtype).removeprefix("torch."),
        order=ORDER,
        rank=rank,
        ranks=config.parallel_config.tensor_parallel_size,
        adapter=adapter,
    )


def layer_names(cache: Any) -> list[str]:
    """Layers by their number: 10 after 9."""
    names: list[str] = cache.kv_cache_groups[0].layer_names
    return sorted(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def spec_of(cache: Any) -> Any:
    """What all layers keep. BadInput, saying why, unless each keeps keys and values of all tokens, and all alike."""
    groups = cache.kv_cache_groups
    if len(groups) != 1:
        raise BadInput(f"this model has {len(groups)} kinds of KV cache, only one kind of full attention is supported")
    spec = groups[0].kv_cache_spec
    kind = type(spec).__name__
    if kind != "FullAttentionSpec":
        raise BadInput(f"this model keeps a {kind}: only full attention is supported, neither latent nor hybrid")
    plain = {"head_size_v": spec.head_size, "num_head_slots": None, "state_content_bytes": None}
    plain |= {"page_size_padded": None, "tokens_per_state": 1, "non_causal": False}
    for field, expected in plain.items():
        if (came := getattr(spec, field)) != expected:
            raise BadInput(f"this model's KV cache has {field} = {came}, only {expected} is supported")
    return spec


def check_engine(config: Any) -> None:
    """BadInput, saying why, if something besides tokens and weights decides what is in a block, or where it is."""
    parallel = config.parallel_config
    for field in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if (came := getattr(parallel, field, 1)) != 1:
            raise BadInput(f"{field}={came} is not supported by the OpenshelfConnector, only 1")
    if config.device_config.device_type != "cpu":
        raise BadInput(f"vLLM runs on {config.device_config.device_type}: only the CPU backend is supported so far")
    speculative = config.speculative_config
    if speculative is not None and speculative.method != "ngram":
        raise BadInput(f"speculative decoding by {speculative.method!r} keeps a cache of its own: not supported")


def pages_of(tensor: Any, name: str, spec: Any) -> Any:
    """A layer's memory as Hit.read_pages and Draft.put_pages take it: block, head, key or value, token, element."""
    expected = (spec.num_kv_heads, spec.block_size, 2 * spec.head_size)
    if not hasattr(tensor, "shape") or tuple(tensor.shape[1:]) != expected or not tensor.is_contiguous():
        came = tuple(getattr(tensor, "shape", ())) or type(tensor).__name__
        raise Mismatch(
            f"vLLM's KV cache of {name} is {came}, expected (blocks, {', '.join(map(str, expected))}), contiguous: is "
            "it another attention backend, or another version of vLLM?"
        )
    return tensor.view(tensor.shape[0], spec.num_kv_heads, 2, spec.block_size, spec.head_size)
