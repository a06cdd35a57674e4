"""How far a model's keys depend on nothing but the tokens before them and their positions.

Most ways to scale rotary embeddings fix all frequencies when the model is made. Two change them by the length of the
call: `dynamic` stretches them beyond the length that the model was trained for, `longrope` takes other factors there.
Up to that length their keys are the same in every call, beyond it they are not. So it is with attention that picks some
of a call's tokens, those that follow among them, once there are more than a number of them (Doge), and with windows
that a model's cache has and its mask has not (Moshi): what is out of the window is seen in one call, not in two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from openshelf.adapters.transformers.layer import WindowLayer, layers_for
from openshelf.errors import BadInput

_MASKS = ("create_sliding_window_causal_mask", "create_chunked_causal_mask")  # a model with windows uses one of them
_FIXED = frozenset({"default", "linear", "yarn", "llama3", "proportional", "ntk_alpha", "axial", "mrope"})


def reach_of(model: Any) -> int | None:
    """The longest call, in tokens from the start, whose keys are those of every shorter one; None: any length.

    BadInput if the model scales its embeddings in a way that is not known here."""
    rotations = list(_rotations(model))
    if not rotations and (unknown := set(_named(model.config)) - _FIXED):
        raise BadInput(f"rotary embeddings of the type {unknown} are asked for, and no module says how: not supported")
    reaches = [reach for _, _, _, reach in rotations if reach is not None]
    windows = [layer.sliding_window - 1 for layer in layers_for(model.config) if isinstance(layer, WindowLayer)]
    masked = False
    for module in model.modules():
        if isinstance(picked := getattr(module, "keep_window_size", None), int):
            reaches.append(picked)
        masked = masked or any(hasattr(sys.modules.get(type(module).__module__), name) for name in _MASKS)
    reaches += windows if not masked else []
    return min(reaches, default=None)


def _named(config: Any) -> Iterator[str]:
    """The types of rotary embeddings that a configuration asks for, those of single kinds of layers too."""
    for given in (getattr(config, "rope_parameters", None), getattr(config, "rope_scaling", None)):
        for part in (given, *given.values()) if isinstance(given, Mapping) else ():
            if isinstance(part, Mapping) and isinstance(kind := part.get("rope_type", part.get("type")), str):
                yield kind


def changing_buffers(model: Any) -> set[str]:
    """Names of the buffers that a call may change: frequencies of whose original there is a copy."""
    names = set()
    for name, module, prefix, reach in _rotations(model):
        if reach is not None and hasattr(module, f"{prefix}original_inv_freq"):
            names.add(f"{name}.{prefix}inv_freq".lstrip("."))
    return names


def _rotations(model: Any) -> Iterator[tuple[str, Any, str, int | None]]:
    """Each rotation's module by name, the prefix of its buffers, and how far it reaches."""
    for name, module in model.named_modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str):
            yield name, module, "", _reach(module, kinds, None)
        elif isinstance(kinds, Mapping):
            for layer_type, kind in kinds.items():
                yield name, module, f"{layer_type}_", _reach(module, kind, layer_type)


def _reach(module: Any, kind: str, layer_type: str | None) -> int | None:
    if kind in _FIXED:
        return None
    config = getattr(module, "config", None)
    given = getattr(config, "rope_parameters", None) or {}
    given = given if layer_type is None else given.get(layer_type, {})
    if kind == "longrope" and isinstance(limit := given.get("original_max_position_embeddings"), int):
        return limit
    if kind == "dynamic" and isinstance(limit := getattr(module, "original_max_seq_len", None), int):
        return limit - 1  # at this very length the frequencies of a longer call may still be there
    raise BadInput(
        f"rotary embeddings of the type {kind!r} are not known here: keys may depend on more than the tokens before "
        "them, which is not supported"
    )
