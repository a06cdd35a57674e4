"""Tries on the model itself whether its cache can be shared: an experiment instead of a list of architectures.

The first half of a few tokens goes through the model; then all of them at once; then the second half, with a cache that
has only what the first half left. All three must agree, with each other and with transformers' own cache. Whatever
looks ahead, keeps a state of its own, draws random numbers, or computes a token by what else is in the call, does not.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from openshelf.adapters.transformers.extra import caches, torch
from openshelf.adapters.transformers.kept import Kept, kept_in
from openshelf.adapters.transformers.layer import StateLayer, layers_for
from openshelf.adapters.transformers.states import load_states, save_states
from openshelf.errors import BadInput

CACHES = ("past_key_values", "cache_params")  # what models call it; the second is of those without attention
_TOKENS, _HALF, _PADS = 24, 12, 5


class Tried(NamedTuple):
    """What a model's cache keeps, and how the model must be called. `needs_positions`: it counts tokens otherwise where
    position_ids are not given, as generate gives them. `one_by_one`: it goes on from a state by single tokens only."""

    kept: Kept
    needs_positions: bool
    one_by_one: bool


def probe(model: Any) -> Tried:
    """BadInput, saying why, unless what the cache keeps of a token depends on it and those before it, and on nothing
    else."""
    states = any(isinstance(layer, StateLayer) for layer in layers_for(model.config))
    why = None
    for one_by_one in (False, True) if states else (False,):
        for positions in (False, True) if takes_positions(model) else (False,):
            try:
                return Tried(_try(model, positions, one_by_one), positions, one_by_one)
            except BadInput as error:
                why = why or error
    assert why is not None
    raise why


def _try(model: Any, positions: bool, one_by_one: bool) -> Kept:
    kind = model.config.model_type
    tokens = _tokens(model)
    with torch.no_grad():
        logits = _run(model, tokens, caches.DynamicCache(config=model.config), positions=takes_positions(model))
        whole, first = _fresh(model), _fresh(model)
        _run(model, tokens[:, :_HALF], first, positions=positions)
        ours = _run(model, tokens, whole, positions=positions)  # after the first: its modules may remember a call
        kept = kept_in(whole, _TOKENS, kind)
        if kept_in(first, _HALF, kind) != kept:
            raise BadInput(f"{kind} keeps other things of few tokens than of many: not supported")
        second = _going_on(model, kept, first, 0)
        step = 1 if one_by_one else _TOKENS
        for start in range(_HALF, _TOKENS, step):
            last = _run(model, tokens[:, start : start + step], second, start=start, positions=positions)
    _compare(kind, kept, whole, first, second)
    for got in (ours, last):
        if (off := _off(logits[:, -1:], got[:, -1:])) > _may_differ(logits):
            raise BadInput(
                f"{kind} answers otherwise when its first tokens come from a cache (by {off:.1%}): not supported"
            )
    return kept


def probe_padding(model: Any, kept: Kept) -> str:
    """Why a prompt that is padded on its left does not leave in the cache what it leaves alone; "" if it does."""
    tokens = _tokens(model).repeat(2, 1)
    mask = torch.ones((2, _PADS + _TOKENS), dtype=torch.int64, device=tokens.device)
    mask[1, :_PADS] = 0  # the first prompt is longer
    padded = torch.cat([tokens[:, :_PADS], tokens], 1)
    half, positions = _PADS + _HALF, takes_positions(model)
    with torch.no_grad():
        alone, first = _fresh(model), _fresh(model)
        _run(model, padded[:, :half], first, mask=mask[:, :half], positions=positions)
        logits = _run(model, tokens[1:], alone, positions=positions)
        second = _going_on(model, kept, first, _PADS)
        last = _run(model, padded[:, half:], second, start=half, mask=mask, positions=positions)
    for layer in kept.layers:
        for part in layer.parts:
            one, other = (getattr(of.layers[layer.number], part.name)[-1:] for of in (alone, second))
            if _off(*(_by_token(each, part.axis)[:, -_TOKENS:] for each in (one, other))) > _may_differ(one):
                return f"{part.name} of layer {layer.number} are others behind padding"
    return "" if _off(logits[:, -1:], last[1:, -1:]) <= _may_differ(logits) else "it answers otherwise behind padding"


def takes_positions(module: Any) -> bool:
    return "position_ids" in inspect.signature(type(module).forward).parameters


def _cache_name(module: Any) -> str:
    parameters = inspect.signature(type(module).forward).parameters
    return next((name for name in CACHES if name in parameters), CACHES[0])


def _fresh(model: Any) -> Any:
    return caches.Cache(layers=layers_for(model.config))


def _going_on(model: Any, kept: Kept, first: Any, pads: int) -> Any:
    """A cache with copies of what is in the first; of padding, with zeros."""
    given = _fresh(model)
    for layer in kept.layers:
        rooms = {part.name: getattr(first.layers[layer.number], part.name).clone() for part in layer.parts}
        length = rooms["keys"].shape[2]
        for part in layer.parts:
            rooms[part.name][-1:].narrow(part.axis, 0, pads).zero_()
        given.layers[layer.number].expect(rooms, 0, length, [])
    load_states(given, kept.states, save_states(first, kept.states))
    return given


def _compare(kind: str, kept: Kept, whole: Any, first: Any, second: Any) -> None:
    for layer in kept.layers:
        for part in layer.parts:
            all_of_it, half, rest = (
                _by_token(getattr(cache.layers[layer.number], part.name), part.axis) for cache in (whole, first, second)
            )
            where = f"in layer {layer.number} of {kind} the {part.name}"
            if (off := _off(all_of_it[:, :_HALF], half)) > _may_differ(half):
                raise BadInput(
                    f"{where} of the first {_HALF} tokens change when others follow them (by {off:.1%}): they depend "
                    "on more than the tokens before them, which is not supported"
                )
            if (off := _off(all_of_it, rest)) > _may_differ(rest):
                raise BadInput(
                    f"{where} are others when the first {_HALF} tokens come from a cache (by {off:.1%}): the model "
                    "needs more than it keeps of them there, which is not supported"
                )
    for state, one, other in zip(
        kept.states, save_states(whole, kept.states), save_states(second, kept.states), strict=True
    ):
        if (off := _off(one.flatten(1)[:, None], other.flatten(1)[:, None])) > _may_differ(one):
            raise BadInput(
                f"in layer {state.layer} of {kind} the {state.name} are others when the first {_HALF} tokens come from "
                f"a cache (by {off:.1%}): not supported"
            )


def _tokens(model: Any) -> Any:
    """Tokens of all the vocabulary, the one that pads among them: some models count positions by it."""
    size = model.config.get_text_config().vocab_size
    tokens = [(at * 7919 + 13) % size for at in range(_TOKENS)]
    pad = getattr(model.config, "pad_token_id", None)
    if isinstance(pad, int) and 0 <= pad < size:
        tokens[1] = pad
    return torch.tensor([tokens], device=model.get_input_embeddings().weight.device)


def _run(model: Any, tokens: Any, cache: Any, *, start: int = 0, mask: Any = None, positions: bool = False) -> Any:
    """The logits of a call; with `positions`, as generate makes it."""
    rows, count = tokens.shape
    name = _cache_name(model)
    given: dict[str, Any] = {name: cache}
    if mask is None and name == CACHES[0]:
        mask = torch.ones((rows, start + count), dtype=torch.int64, device=tokens.device)
    if mask is not None and positions:
        given["position_ids"] = (mask.cumsum(-1) - 1).clamp_min(0)[:, start:]
    try:
        out = model(input_ids=tokens, attention_mask=mask, use_cache=True, **given)
    except Exception as error:  # whatever a model raises: it cannot be used like this
        raise BadInput(
            f"{model.config.model_type} cannot be run on tokens and a cache alone, as a PooledCache needs it: "
            f"{type(error).__name__}: {error}"
        ) from error
    return out[0]


def _by_token(tensor: Any, axis: int) -> Any:
    return tensor.movedim(axis, 1).flatten(2)


def _off(one: Any, other: Any) -> float:
    """How far two are apart, relative to their size: the median over the tokens, for a rounding may send a token to
    another expert."""
    one, other = (part.float() for part in (one, other))
    size = other.norm(dim=-1).clamp_min(1e-6)
    return float(((one - other).norm(dim=-1) / size).nan_to_num(1.0).median())


def _may_differ(tensor: Any) -> float:
    """Sums in another order, layer after layer."""
    return max(1e-3, 8 * float(torch.finfo(tensor.dtype).eps))
