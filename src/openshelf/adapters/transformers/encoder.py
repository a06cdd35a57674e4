"""What an encoder makes of an input, shared: `generate` takes it instead of running the encoder again.

An encoder looks ahead, so what it makes of a token depends on the whole input: there are no prefixes to share, only
whole rows, with their padding. Each is a plain value of the pool, named by all that the encoder is given of it. What
the decoder keeps depends on the input, too, and begins with it each time; it is not shared.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from openshelf._dtypes import element_type, to_torch
from openshelf.adapters.transformers.digest import feed
from openshelf.adapters.transformers.extra import torch
from openshelf.adapters.transformers.prompt import check_padding, token_rows
from openshelf.errors import BadInput, Mismatch, OpenshelfError
from openshelf.kv import KVPool

_TOKENS = 24
_NAME = b"OSFHFE1\0"
_OF_THE_DECODER = ("decoder_", "cross_attn")  # as generate tells them apart


class Encoded(NamedTuple):
    """What a model's encoder makes: the class of its output, and how wide a row of it is."""

    kind: Any
    width: int

    def layout(self) -> dict[str, Any]:
        """The fields of its Layout: a row for each token."""
        return {"layers": 1, "heads": 1, "head_dim": self.width, "latent": True}


def has_encoder(config: Any) -> bool:
    return bool(getattr(config, "is_encoder_decoder", False))


def probe_encoder(model: Any) -> Encoded:
    """Tries the encoder with some tokens. BadInput unless it makes the same of a row in any company."""
    kind = model.config.model_type
    row, other = _trial(model, 0), _trial(model, 1)
    together = {name: torch.cat([row[name], other[name]]) for name in row}
    alone, both = _run(model, row), _run(model, together)
    if tuple(both.shape) != (2, *alone.shape[1:]) or alone.ndim != 3:
        raise BadInput(
            f"the encoder of {kind} makes something of the shape {tuple(alone.shape)} of one row and "
            f"{tuple(both.shape)} of two: only a row for each token is supported"
        )
    off = (both[:1] - alone).float().norm() / alone.float().norm().clamp_min(1e-6)
    if not float(off) <= max(1e-3, 8 * float(torch.finfo(alone.dtype).eps)):
        raise BadInput(
            f"the encoder of {kind} makes something else of a row when there is another one beside it (by "
            f"{float(off):.1%}): not supported"
        )
    return Encoded(type(_encode(model, row)), alone.shape[-1])


def _trial(model: Any, number: int) -> dict[str, Any]:
    if model.main_input_name != "input_ids":
        raise BadInput(
            f"{model.config.model_type} is given {model.main_input_name}, not tokens: what its encoder makes is not "
            "shared"
        )
    size = model.get_input_embeddings().weight.shape[0]
    tokens = [[(at * 7919 + 13 + 5 * number) % size for at in range(_TOKENS)]]
    given = torch.tensor(tokens, device=next(model.get_encoder().parameters()).device)
    return {"input_ids": given, "attention_mask": torch.ones_like(given)}


def _encode(model: Any, given: dict[str, Any]) -> Any:
    """As generate runs the encoder."""
    try:
        with torch.no_grad():
            return model.get_encoder()(**given, return_dict=True)
    except Exception as error:  # whatever a model raises: it cannot be used like this
        raise BadInput(
            f"the encoder of {model.config.model_type} cannot be run on {' and '.join(given)} alone: "
            f"{type(error).__name__}: {error}"
        ) from error


def _run(model: Any, given: dict[str, Any]) -> Any:
    """The encoder's states. BadInput if there is more that a decoder might read."""
    out = _encode(model, given)
    more = [name for name, value in out.items() if value is not None and name != "last_hidden_state"]
    if more or "last_hidden_state" not in out:
        raise BadInput(
            f"the encoder of {model.config.model_type} returns {', '.join(more) or 'no last_hidden_state'}: only "
            "last_hidden_state is shared"
        )
    return out["last_hidden_state"]


def inputs_of_encoder(model: Any, inputs: Any) -> dict[str, Any]:
    """Tokens and their mask, one for each, as tensors; BadInput if there is anything else for the encoder."""
    given = inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}
    given = {name: value for name, value in given.items() if value is not None and not name.startswith(_OF_THE_DECODER)}
    more = [name for name in given if name not in ("input_ids", "attention_mask", "labels", "use_cache")]
    if more or "input_ids" not in given:
        raise BadInput(
            f"an encoder's work is shared by its tokens and their mask: expected input_ids and attention_mask, got "
            f"{', '.join(given) or 'nothing'}"
        )
    rows = token_rows(given["input_ids"])
    mask = given.get("attention_mask")
    if mask is None:
        check_padding(rows, model.config)
        masks = np.ones_like(rows)
    else:
        masks = np.asarray(mask.cpu() if hasattr(mask, "cpu") else mask)
        masks = masks[None] if masks.ndim == 1 else masks
        if masks.shape != rows.shape or not np.isin(masks, (0, 1)).all():
            raise BadInput(
                f"the attention_mask is 1 for each token and 0 for padding, of the shape {rows.shape}; got the shape "
                f"{masks.shape}"
            )
    device = next(model.get_encoder().parameters()).device
    return {
        "input_ids": torch.from_numpy(rows).to(device),
        "attention_mask": torch.from_numpy(masks.astype(np.int64)).to(device),
    }


def shared_states(pool: KVPool, model: Any, given: dict[str, Any], ttl: float | None) -> tuple[Any, int]:
    """What the encoder makes of each row, and how many rows the pool had. Trouble with the pool only warns."""
    rows = len(given["input_ids"])
    names = [_name(given, row) for row in range(rows)]
    shape = (given["input_ids"].shape[1], pool.layout.head_dim)
    try:
        found = [_read(pool, name, shape) for name in names]
    except OpenshelfError as error:
        warnings.warn(f"nothing was read from {pool!r}: {error}", RuntimeWarning, stacklevel=3)
        return _run(model, given), 0
    if missing := [row for row in range(rows) if found[row] is None]:
        made = _run(model, {name: value[missing] for name, value in given.items()})
        if tuple(made.shape[1:]) != shape or made.dtype != _dtype(pool):
            raise Mismatch(
                f"the encoder made {tuple(made.shape)} of {made.dtype}, expected rows of {shape} of "
                f"{pool.layout.dtype}, as the pool has them: under autocast, give layout_of(model, dtype=...)"
            )
        for at, row in enumerate(missing):
            found[row] = made[at]
            _write(pool, names[row], made[at], ttl)
    device = given["input_ids"].device
    return torch.stack([one.to(device) for one in found]), rows - len(missing)


def _name(given: dict[str, Any], row: int) -> bytes:
    digest = hashlib.sha256(_NAME)
    for name, value in sorted(given.items()):
        feed(digest, name, value[row])
    return digest.digest()


def _read(pool: KVPool, name: bytes, shape: tuple[int, int]) -> Any:
    room = torch.empty(shape, dtype=_dtype(pool))
    size = pool.get_into(name, room.view(torch.uint8).numpy())
    return room if size == room.nbytes else None


def _write(pool: KVPool, name: bytes, states: Any, ttl: float | None) -> None:
    flat = states.detach().cpu().contiguous().view(torch.uint8).numpy()
    try:
        pool.put(name, flat.reshape(-1), ttl=ttl)
    except OpenshelfError as error:
        warnings.warn(f"what the encoder made was not stored in {pool!r}: {error}", RuntimeWarning, stacklevel=4)


def _dtype(pool: KVPool) -> Any:
    element = element_type(pool.layout.dtype)
    return to_torch(element.code, element.name)
