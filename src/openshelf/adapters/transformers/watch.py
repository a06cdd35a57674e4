"""Hooks on a model that tell its PooledCache of every call, before it computes: a Cache itself sees no tokens.

Without such a call nothing is taken into a PooledCache, whoever computed it. So a model that is reached another way
(compiled, its inner modules, another model) is refused, not stored under a wrong name.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from openshelf.adapters.transformers.extra import torch
from openshelf.errors import BadInput, Mismatch

# What changes neither keys nor values.
_HARMLESS = frozenset(
    {
        "input_ids", "past_key_values", "use_cache", "labels", "logits_to_keep", "num_logits_to_keep", "return_dict",
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
def _before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = _by_name(module, args, kwargs)
    cache: Any = given.get("past_key_values")
    if hasattr(cache, "call_begins"):
        cache.call_begins(module, given)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _after(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    cache: Any = _by_name(module, args, kwargs).get("past_key_values")
    if hasattr(cache, "call_ends"):
        cache.call_ends(module)


def _by_name(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call that were given, those by position too."""
    if not args:
        return kwargs
    signature = inspect.signature(type(module).forward)
    bound = signature.bind_partial(module, *args, **kwargs).arguments
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            bound |= bound.pop(parameter.name, {})
    return bound


def check_call(given: dict[str, Any], start: int, count: int) -> None:
    """BadInput if a call is given anything that changes what it computes of its tokens, which begin at `start`."""
    if given.get("use_cache") is False:
        raise BadInput("a PooledCache needs use_cache=True: without it generate gives the model all tokens each time")
    for name, value in given.items():
        if value is None or value is False or name in _HARMLESS or name == "self":
            continue
        if name == "attention_mask":
            _check_mask(value, start + count)
        elif name in _COUNTED:
            if (_array(value) != np.arange(start, start + count)).any():
                raise BadInput(f"{name} must count from the prompt's start, here from {start}; got {value}")
        else:
            raise BadInput(
                f"{name!r} may change what a model computes of the same tokens: not supported with a PooledCache"
            )


def _check_mask(mask: Any, length: int) -> None:
    if getattr(mask, "ndim", None) != 2 or mask.shape[1] != length:
        shape = tuple(getattr(mask, "shape", ())) or type(mask).__name__
        raise BadInput(
            f"an attention_mask of 2 dimensions over all {length} tokens is needed, or none; got {shape}: others may "
            "hide what comes before a token, or show what comes after it"
        )
    if not (_array(mask) == 1).all():
        raise BadInput("padded prompts are not supported: give prompts of the same length, or run them one by one")


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
