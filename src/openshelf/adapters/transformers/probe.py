"""Tries on the model itself whether its cache can be shared: an experiment instead of a list of architectures.

A few tokens go through the model at once; then their first half alone; then the second half, with a cache that has only
the first half's keys and values. All three must agree. Whatever looks ahead, keeps a state of its own, draws random
numbers, or computes a token by what else is in the call, does not.
"""

from __future__ import annotations

from typing import Any

from openshelf.adapters.transformers.extra import caches, torch
from openshelf.errors import BadInput

_TOKENS, _HALF = 24, 12


def probe(model: Any) -> None:
    """BadInput, saying why, unless keys and values of a token depend on it and those before it, and on nothing else."""
    kind = model.config.model_type
    tokens = _tokens(model)
    with torch.no_grad():
        whole, logits = _run(model, tokens, 0, caches.DynamicCache(config=model.config))
        first, _ = _run(model, tokens[:, :_HALF], 0, caches.DynamicCache(config=model.config))
        given = caches.DynamicCache(config=model.config)
        for number, (keys, values) in enumerate(first):
            given.update(keys.clone(), values.clone(), number)
        second, last = _run(model, tokens[:, _HALF:], _HALF, given)
    for number, (pair, alone, after) in enumerate(zip(whole, first, second, strict=True)):
        for what, all_of_it, half, rest in zip(("keys", "values"), pair, alone, after, strict=True):
            if (off := _off(all_of_it[:, :, :_HALF], half)) > _may_differ(half):
                raise BadInput(
                    f"in layer {number} of {kind} the {what} of the first {_HALF} tokens change when others follow "
                    f"them (by {off:.1%}): they depend on more than the tokens before them, which is not supported"
                )
            if (off := _off(all_of_it, rest)) > _may_differ(rest):
                raise BadInput(
                    f"in layer {number} of {kind} the {what} are others when the first {_HALF} tokens come from a "
                    f"cache (by {off:.1%}): the model needs more than their keys and values, which is not supported"
                )
    if (off := _off(logits[:, None, -1:], last[:, None, -1:])) > _may_differ(logits):
        raise BadInput(
            f"{kind} answers otherwise when its first tokens come from a cache (by {off:.1%}): not supported"
        )


def _tokens(model: Any) -> Any:
    """Tokens of all the vocabulary, the one that pads among them: some models count positions by it."""
    size = model.config.vocab_size
    tokens = [(at * 7919 + 13) % size for at in range(_TOKENS)]
    pad = getattr(model.config, "pad_token_id", None)
    if isinstance(pad, int) and 0 <= pad < size:
        tokens[1] = pad
    return torch.tensor([tokens], device=model.get_input_embeddings().weight.device)


def _run(model: Any, tokens: Any, start: int, cache: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Keys and values of each layer after a call, and its logits."""
    length = start + tokens.shape[1]
    mask = torch.ones((1, length), dtype=torch.int64, device=tokens.device)
    try:
        out = model(input_ids=tokens, attention_mask=mask, past_key_values=cache, use_cache=True)
    except Exception as error:  # whatever a model raises: it cannot be used like this
        raise BadInput(
            f"{model.config.model_type} cannot be run on tokens and a cache alone, as a PooledCache needs it: "
            f"{type(error).__name__}: {error}"
        ) from error
    pairs = [(layer.keys, layer.values) for layer in cache.layers]
    for number, (keys, values) in enumerate(pairs):
        if keys is None or keys.ndim != 4 or keys.shape[-2] != length or values.shape[-2] != length:
            raise BadInput(
                f"layer {number} of {model.config.model_type} does not keep keys and values of each token in its "
                "cache: not supported"
            )
    return pairs, out[0]


def _off(one: Any, other: Any) -> float:
    """How far two are apart, relative to their size: the median over the tokens, for a rounding may send a token to
    another expert."""
    one, other = (part.transpose(1, 2).flatten(2).float() for part in (one, other))
    size = other.norm(dim=-1).clamp_min(1e-6)
    return float(((one - other).norm(dim=-1) / size).nan_to_num(1.0).median())


def _may_differ(tensor: Any) -> float:
    """Sums in another order, layer after layer."""
    return max(1e-3, 8 * float(torch.finfo(tensor.dtype).eps))
