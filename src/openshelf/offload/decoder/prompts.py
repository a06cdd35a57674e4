"""What a decoder is given to continue: whole numbers of sequences of equal length, and nothing that it would ignore."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from openshelf.errors import BadInput
from openshelf.offload.program.torch import torch

_INSTEAD = {
    "input_ids": "they are its first argument",
    "attention_mask": "the sequences of a batch have equal length, without padding",
    "max_new_tokens": "that is `count`",
    "eos_token_id": "that is `stop`",
    "assistant_model": "there are no assistant models",
    "num_beams": "there are no beams",
    **dict.fromkeys(("do_sample", "temperature", "top_k", "top_p"), "`choose` makes tokens of logits"),
}


def check_arguments(others: Iterable[str]) -> None:
    """BadInput for arguments of transformers' generate() that are not ours."""
    if found := [f"{name}= ({_INSTEAD[name]})" if name in _INSTEAD else f"{name}=" for name in others]:
        raise BadInput(
            f"a decoder's generate() takes tokens, count, stop= and choose=, not {', '.join(found)}; "
            "offload.wrap(model, budget).generate() takes what the model's own does, and is slower"
        )


def ids_of(tokens: Any, batch: int) -> Any:
    """As a tensor of `batch` rows."""
    if isinstance(tokens, Mapping):
        raise BadInput(f"tokens are whole numbers, got a {type(tokens).__name__}: give its input_ids")
    try:
        ids = torch.as_tensor(tokens)
    except (TypeError, ValueError, RuntimeError) as error:  # torch's, of rows that differ in length, say
        raise BadInput(f"tokens are whole numbers of {batch} sequences of equal length: {error}") from None
    if ids.dim() == 1:
        ids = ids[:, None] if batch > 1 or len(ids) == 1 else ids[None]
    if ids.dim() != 2 or ids.shape[0] != batch or ids.is_floating_point():
        raise BadInput(f"tokens are whole numbers of {batch} sequences, got {ids.dtype} {tuple(ids.shape)}")
    return ids


def check_padding(model: Any, ids: Any) -> None:
    """BadInput for a batch that is padded: nothing here would mask that, so the model would read it as text."""
    configs = [getattr(model, name, None) for name in ("generation_config", "config")]

    def tokens(name: str) -> list[Any]:
        found = [getattr(config, name, None) for config in configs]
        return [one for some in found for one in (some if isinstance(some, list) else [some]) if one is not None]

    text = {*tokens("eos_token_id"), *tokens("bos_token_id")}  # with which sequences of text begin and end
    for pad in {*tokens("pad_token_id")} - text:
        for number, row in enumerate(ids.tolist() if len(ids) > 1 else []):
            if row and pad in (row[0], row[-1]):
                raise BadInput(
                    f"sequence {number} is padded with the token {pad}, which nothing masks here: the sequences of a "
                    "batch have equal length. Call decode() for each length, or wrap(model, budget).generate()"
                )
