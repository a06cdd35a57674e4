"""Hooks on a model that tell its PooledCache of every call, before it computes: a Cache itself sees no tokens.

Without such a call nothing is taken into a PooledCache, whoever computed it. So a model that is reached another way
(compiled, its inner modules, another model) is refused, not stored under a wrong name.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from openshelf.adapters.transformers.extra import torch
from openshelf.adapters.transformers.probe import CACHES, takes_positions
from openshelf.errors import BadInput, Mismatch

# What changes neither keys nor values.
_HARMLESS = frozenset(
    {
        "input_ids", *CACHES, "use_cache", "labels", "logits_to_keep", "num_logits_to_keep", "return_dict",
        "output_attentions", "output_hidden_states", "output_router_logits", "output_logits",
    }
)  # fmt: skip
_COUNTED = ("position_ids", "cache_position")


def watch(model: Any) -> None:
    """From now on every call of the model, or of one inside it, is told to the PooledCache that it gets."""
    for module in model.modules():
        if (module is model or _takes_tokens(module)) and _before not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_before, with_kwargs=True)
            module.register_forward_hook(_after, with_kwargs=True, always_call=True)


def _takes_tokens(module: Any) -> bool:
    return "input_ids" in inspect.signature(type(module).forward).parameters


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = whole = _by_name(module, args, kwargs)
    cache = _cache_in(given)
    if cache is None:
        return None
    if there := cache.tokens_given_twice(given):
        given = _columns(given, there, there, None)
    while first := cache.tokens_to_begin_with(given):
        module(**_columns(given, cache.get_seq_length(), 0, first))
        given = _columns(given, cache.get_seq_length(), first, None)
    cache.call_begins(module, given)
    return None if given is whole else ((), given)


def _cache_in(given: dict[str, Any]) -> Any:
    """The PooledCache that a call is given, or None."""
    for name in CACHES:
        if hasattr(given.get(name), "call_begins"):
            return given[name]
    return None


def _columns(given: dict[str, Any], start: int, first: int, last: int | None) -> dict[str, Any]:
    """The arguments of a call of some of its tokens; `start` of all tokens were computed before them."""
    tokens = given["input_ids"][:, first:last]
    part = {**given, "input_ids": tokens}
    for name in _COUNTED:
        if part.get(name) is not None:
            part[name] = part[name][..., first:last]
    if part.get("attention_mask") is not None:  # of all tokens, or of those of the call: there is no padding
        part["attention_mask"] = (
            None if "cache_params" in given else part["attention_mask"][:, : start + tokens.shape[1]]
        )
    return part


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _after(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    cache = _cache_in(_by_name(module, args, kwargs))
    if cache is not None:
        cache.call_ends(module, output is not None)


def _by_name(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call that were given, those by position too."""
    if not args:
        return kwargs
    signature = inspect.signature(type(module).forward)
    bound = signature.bind_partial(module, *args, **kwargs).arguments
    del bound["self"]
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            bound |= bound.pop(parameter.name, {})
    return bound


def check_call(module: Any, given: dict[str, Any], start: int, count: int, pads: Any) -> None:
    """BadInput if a call is given anything that changes what it computes of its tokens, which begin at `start`, behind
    so much padding in each row."""
    if given.get("use_cache") is False:
        raise BadInput("a PooledCache needs use_cache=True: without it generate gives the model all tokens each time")
    for name, value in given.items():
        if value is None or value is False or name in _HARMLESS or (isinstance(value, dict) and not value):
            continue
        if name == "attention_mask":
            _check_mask(value, start + count, pads)
        elif name in _COUNTED:
            columns = np.arange(start, start + count)
            expected = columns if name == "cache_position" or not pads.any() else columns - pads[:, None]
            if ((_array(value) != expected) & (expected >= 0)).any():
                raise BadInput(
                    f"{name} must count from the prompt's start, padding left out, here from {expected.flat[0]}; got "
                    f"{value}"
                )
        else:
            raise BadInput(
                f"{name!r} may change what a model computes of the same tokens: not supported with a PooledCache"
            )


def check_positions(module: Any, given: dict[str, Any], padded: bool, needed: bool) -> None:
    """BadInput if a call is not given what it needs to count right: behind padding, or always."""
    names = ["attention_mask"] if padded else []
    if needed or (padded and takes_positions(module)):
        names.append("position_ids")
    if missing := [name for name in names if given.get(name) is None]:
        raise BadInput(
            f"the model was not given {' and '.join(missing)}, as generate gives it: it would count "
            f"{'padding, too' if padded else 'tokens otherwise'}, and compute other keys and values"
        )


def _check_mask(mask: Any, length: int, pads: Any) -> None:
    if getattr(mask, "ndim", None) != 2 or mask.shape[1] != length:
        shape = tuple(getattr(mask, "shape", ())) or type(mask).__name__
        raise BadInput(
            f"an attention_mask of 2 dimensions over all {length} tokens is needed, or none; got {shape}: others may "
            "hide what comes before a token, or show what comes after it"
        )
    if (_array(mask) != (np.arange(length) >= pads[:, None])).any():
        raise BadInput(
            f"the attention_mask is not that of the prompts, which are padded by {pads.tolist()} tokens: give the "
            "PooledCache the very inputs that generate gets, attention_mask included"
        )


def check_tensor(tensor: Any) -> None:
    """Mismatch unless it is a plain tensor with numbers in it, not one that a tracer or compiler puts in its place."""
    if type(tensor) is not torch.Tensor or torch.jit.is_tracing() or tensor.device.type == "meta":
        raise Mismatch(f"a PooledCache needs plain tensors, not traced or wrapped ones; got a {type(tensor).__name__}")


def _array(tensor: Any) -> Any:
    check_tensor(tensor)
    return tensor.detach().cpu().numpy()


def check_tokens(tokens: Any, rows: Any, start: int) -> None:
    """BadInput if a call is given other tokens than these rows, which begin at `start`; beams repeat each of them."""
    got = _array(tokens)
    if len(got) % len(rows):
        raise BadInput(f"this cache was made for {len(rows)} prompts, the model was given {len(got)}")
    rows = np.repeat(rows, len(got) // len(rows), 0)
    if (differ := (got != rows)).any():
        row, at = (int(index[0]) for index in differ.nonzero())
        raise BadInput(
            f"the model was given other tokens than its PooledCache was made with: {got[row, at]} instead of "
            f"{rows[row, at]} at {start + at}"
        )


def check_precision(device: Any, dtype: str) -> None:
    """Mismatch if autocast computes in another type than the pool keeps: the keys would be of another precision."""
    if torch.is_autocast_enabled(device.type):
        came = str(torch.get_autocast_dtype(device.type)).removeprefix("torch.")
        if came != dtype:
            raise Mismatch(f"autocast computes in {came}, the pool's layout is of {dtype}: give dtype={came!r} to it")
