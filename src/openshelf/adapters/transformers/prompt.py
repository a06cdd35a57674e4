"""The prompts that are given to a model, as rows of tokens; refused where tokens alone do not tell what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from openshelf.errors import BadInput, Mismatch

Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Prompt:
    """A row for each prompt, all of one length; `pads[i]` tokens of row i are padding, on its left."""

    rows: Rows
    pads: Rows

    @property
    def length(self) -> int:
        return int(self.rows.shape[1])

    @property
    def is_padded(self) -> bool:
        return bool(self.pads.any())

    def tokens(self, row: int) -> Rows:
        """A prompt without its padding."""
        return self.rows[row, int(self.pads[row]) :]

    def repeated(self, sequences: int) -> Prompt:
        """As many rows as there are sequences: beams, and several answers, repeat each prompt."""
        times = sequences // len(self.rows)
        return self if times == 1 else Prompt(np.repeat(self.rows, times, 0), np.repeat(self.pads, times))


def prompt_of(inputs: Any, config: Any) -> Prompt:
    """`inputs`: tokens, or a mapping as tokenizers make it. `config` tells which token pads."""
    mask = None
    if isinstance(inputs, Mapping):
        mask = _without_more(inputs)
        inputs = inputs["input_ids"]
    rows = token_rows(inputs)
    if mask is None:
        check_padding(rows, config)
        return Prompt(rows, np.zeros(len(rows), np.int64))
    mask = mask[None] if mask.ndim == 1 else mask
    if mask.shape != rows.shape:
        raise BadInput(f"the attention_mask has the shape {mask.shape}, the tokens {rows.shape}: give one for each")
    return Prompt(rows, left_padding(mask))


def token_rows(inputs: Any) -> Rows:
    try:
        rows = np.asarray(inputs.cpu() if hasattr(inputs, "cpu") else inputs)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"prompts are rows of tokens of the same length; pad shorter ones on their left, and give the "
            f"attention_mask ({error})"
        ) from None
    if rows.ndim == 1:
        rows = rows[None]
    if rows.ndim != 2 or not rows.size:
        raise BadInput(f"a prompt is a row of at least one token, got an array of shape {rows.shape}")
    if rows.dtype.kind not in "iu":
        raise Mismatch(f"tokens are integers, got an array of {rows.dtype}")
    return np.ascontiguousarray(rows, np.int64)


def left_padding(mask: Any) -> Rows:
    """How many tokens of each row are masked, all of them on its left. BadInput if others are."""
    pads: Rows = np.argmax(mask == 1, 1).astype(np.int64)
    if (mask != (np.arange(mask.shape[1]) >= pads[:, None])).any():
        raise BadInput(
            "an attention_mask may hide padding on the left of a prompt, and nothing else: no token between others, "
            "none at its end, not all of them; set the tokenizer's padding_side='left'"
        )
    return pads


def _without_more(inputs: Mapping[str, Any]) -> Any:
    """The attention mask. BadInput if anything would change what the model computes of the same tokens."""
    if "input_ids" not in inputs:
        raise BadInput(f"the pool finds prefixes by their tokens, there are no 'input_ids' among {sorted(inputs)}")
    mask = None
    for name, value in inputs.items():
        if value is None or name == "input_ids":
            continue
        if name != "attention_mask":  # also token_type_ids of zeros: some models add an embedding for them
            raise BadInput(f"{name!r} changes what a model computes of the same tokens: not supported")
        mask = np.asarray(value.cpu() if hasattr(value, "cpu") else value)
    return mask


def check_padding(rows: Rows, config: Any) -> None:
    """generate masks padding by itself where it is told of none."""
    pad = getattr(config, "pad_token_id", None)
    ends = getattr(config, "eos_token_id", None)
    ends = ends if isinstance(ends, list | tuple) else [ends]
    if pad is not None and pad not in ends and (rows == pad).any():
        raise BadInput(
            f"the prompt contains the padding token {pad}, and generate would mask it: give what the tokenizer made, "
            "with its attention_mask"
        )
