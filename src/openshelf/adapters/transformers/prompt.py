"""The prompts that are given to a model, as rows of tokens; refused where tokens alone do not tell what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from openshelf.errors import BadInput, Mismatch

Rows = np.ndarray[Any, np.dtype[np.int64]]


def token_rows(inputs: Any, config: Any) -> Rows:
    """A row for each prompt. `inputs`: tokens, or a mapping as tokenizers make it. `config` tells which token pads."""
    mask = None
    if isinstance(inputs, Mapping):
        mask = _without_more(inputs)
        inputs = inputs["input_ids"]
    try:
        rows = np.asarray(inputs.cpu() if hasattr(inputs, "cpu") else inputs)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"prompts are rows of tokens of the same length; pad none, run them one by one ({error})"
        ) from None
    if rows.ndim == 1:
        rows = rows[None]
    if rows.ndim != 2 or not rows.size:
        raise BadInput(f"a prompt is a row of at least one token, got an array of shape {rows.shape}")
    if rows.dtype.kind not in "iu":
        raise Mismatch(f"tokens are integers, got an array of {rows.dtype}")
    if mask is None and config is not None:
        _check_padding(rows, config)
    return np.ascontiguousarray(rows, np.int64)


def _without_more(inputs: Mapping[str, Any]) -> Any:
    """The attention mask. BadInput if anything would change what the model computes of the same tokens."""
    if "input_ids" not in inputs:
        raise BadInput(f"the pool finds prefixes by their tokens, there are no 'input_ids' among {sorted(inputs)}")
    for name, value in inputs.items():
        if value is None or name == "input_ids":
            continue
        array = np.asarray(value.cpu() if hasattr(value, "cpu") else value)
        if name == "attention_mask":
            if not (array == 1).all():
                raise BadInput(
                    "padded prompts are not supported: give prompts of the same length, or run them one by one"
                )
        else:  # also token_type_ids of zeros: some models add an embedding for them
            raise BadInput(f"{name!r} changes what a model computes of the same tokens: not supported")
    return inputs.get("attention_mask")


def _check_padding(rows: Rows, config: Any) -> None:
    """generate masks padding by itself where it is told of none."""
    pad = getattr(config, "pad_token_id", None)
    ends = getattr(config, "eos_token_id", None)
    ends = ends if isinstance(ends, list | tuple) else [ends]
    if pad is not None and pad not in ends and (rows == pad).any():
        raise BadInput(
            f"the prompt contains the padding token {pad}, and generate would mask it: give what the tokenizer made, "
            "with its attention_mask"
        )
