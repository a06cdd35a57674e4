"""A hook on a model that compares what it is run on with what its PooledCache was told: a Cache sees no tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from openshelf.errors import BadInput


def watch(model: Any) -> None:
    """From now on the model refuses to be run on other inputs than its PooledCache was made with."""
    if not getattr(model, "_openshelf_watches", False):
        model.register_forward_pre_hook(_compare, with_kwargs=True)
        model._openshelf_watches = True


def _compare(model: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    cache: Any = given.get("past_key_values")
    if not hasattr(cache, "told"):
        return
    tokens = given.get("input_ids", args[0] if args else None)
    if tokens is None:
        raise BadInput("a PooledCache knows prompts by their tokens; the model was given none (inputs_embeds?)")
    expected = cache.told(tokens.shape[1])
    if expected is None:
        cache.saw(tokens)
        return
    start, rows = expected
    got = tokens.cpu().numpy()
    if len(got) % len(rows) == 0 and rows.shape[1] == got.shape[1]:  # other shapes the cache itself refuses
        rows = np.repeat(rows, len(got) // len(rows), 0)
        if (differ := (got != rows)).any():
            row, at = (int(index[0]) for index in differ.nonzero())
            raise BadInput(
                f"the model was given other tokens than its PooledCache was made with: {got[row, at]} instead of "
                f"{rows[row, at]} at {start + at}"
            )
    mask, positions = given.get("attention_mask"), given.get("position_ids")
    if mask is not None and mask.ndim == 2 and not bool((mask == 1).all()):
        raise BadInput("padded prompts are not supported: give prompts of the same length, or run them one by one")
    if positions is not None and (positions.cpu().numpy() != np.arange(start, start + got.shape[1])).any():
        raise BadInput(f"positions must be counted from the prompt's start, here from {start}; got {positions}")
