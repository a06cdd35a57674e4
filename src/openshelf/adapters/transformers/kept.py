"""What a model's cache keeps: of each token in each layer, and of all tokens together.

It is read off a cache that the model has filled, not off its configuration: heads and their sizes differ by layer in
some models, keys and values in others (latent attention), and some keep more than keys and values of a token (sparse
attention: an index). What is not of single tokens are states: those of recurrences and convolutions after the last.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from openshelf.adapters.transformers.extra import caches, torch
from openshelf.errors import BadInput

_PAIR = ("keys", "values")
_STATES = ("conv_states", "recurrent_states")


class Part(NamedTuple):
    """A tensor with something of each token: its attribute, its axis of tokens (batches are 0), a token's shape."""

    name: str
    axis: int
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        return math.prod(self.shape)

    def room(self, rows: int, tokens: int, dtype: Any, device: Any) -> Any:
        """Memory for so many tokens, empty."""
        shape = [rows, *self.shape]
        shape.insert(self.axis, tokens)
        return torch.empty(shape, dtype=dtype, device=device)


class LayerParts(NamedTuple):
    """What layer `number` of the cache keeps of each token; the last `window` of them are all that it needs."""

    number: int
    parts: tuple[Part, ...]
    window: int | None

    @property
    def width(self) -> int:
        return sum(part.width for part in self.parts)

    @property
    def is_pair(self) -> bool:
        """Whether it keeps keys and values alone."""
        return tuple(part.name for part in self.parts) == _PAIR


class State(NamedTuple):
    """A tensor that stands for all tokens so far: its layer, attribute and number there; its shape without batches."""

    layer: int
    name: str
    place: int
    shape: tuple[int, ...]
    dtype: Any
    seen: bool  # whether the layer then says that it has a state of tokens before

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype.itemsize)


class Kept(NamedTuple):
    """All that a model's cache keeps. Layers without anything (experts, layers that share) are left out."""

    layers: tuple[LayerParts, ...]
    states: tuple[State, ...]

    @property
    def state_bytes(self) -> int:
        return sum(state.nbytes for state in self.states)

    @property
    def is_uniform(self) -> bool:
        """Whether all layers have keys and values of one shape: then a block has them as they are."""
        shapes = {part.shape for layer in self.layers for part in layer.parts}
        return bool(self.layers) and len(shapes) == 1 and all(layer.is_pair for layer in self.layers)

    def layout(self) -> dict[str, Any]:
        """The fields of its Layout. What is not uniform is packed: a row of one width for each token and layer.

        Without anything of single tokens, blocks only tell which prompts there were, and have room for states: a
        state takes some 64 of them, of 16 tokens each."""
        if self.is_uniform:
            heads, width = self.layers[0].parts[0].shape
            return {"layers": len(self.layers), "heads": heads, "head_dim": width, "order": "khtd"}
        row = max((layer.width for layer in self.layers), default=0) or max(1, self.state_bytes // (64 * 16 * 4))
        return {"layers": len(self.layers) or 1, "heads": 1, "head_dim": row, "latent": True}


def kept_in(cache: Any, length: int, kind: str) -> Kept:
    """What is in a cache after a call of `length` tokens. BadInput if that cannot be told."""
    layers, states = [], []
    for number, layer in enumerate(cache.layers):
        if isinstance(layer, caches.CacheLayerMixin) and layer.is_initialized and layer.keys.numel():
            window = layer.sliding_window if getattr(layer, "is_sliding", False) else None
            layers.append(LayerParts(number, _parts_of(layer, number, length, kind), window))
        if isinstance(layer, caches.LinearAttentionCacheLayerMixin):
            states += _states_of(layer, number)
    if not layers and not states:
        raise BadInput(f"{kind} keeps neither keys and values nor states in its cache: not supported")
    return Kept(tuple(layers), tuple(states))


def _parts_of(layer: Any, number: int, length: int, kind: str) -> tuple[Part, ...]:
    parts = []
    more = [
        name for name, value in vars(layer).items()
        if isinstance(value, torch.Tensor) and value.ndim and name.lstrip("_") not in _PAIR
    ]  # fmt: skip
    for name in (*_PAIR, *sorted(more)):
        tensor = getattr(layer, name)
        axes = [axis for axis in range(1, tensor.ndim) if tensor.shape[axis] == length]
        if name in _PAIR:
            axes = [2] if tensor.ndim == 4 and tensor.shape[2] == length else []
        if len(axes) != 1 or tensor.dtype != layer.keys.dtype:
            raise BadInput(
                f"layer {number} of {kind} keeps {name} of {tensor.dtype} and shape {tuple(tensor.shape)} of {length} "
                "tokens, which are not of single tokens: not supported"
            )
        shape = tuple(size for axis, size in enumerate(tensor.shape) if axis not in (0, *axes))
        parts.append(Part(name, axes[0], shape))
    return tuple(parts)


def _states_of(layer: Any, number: int) -> list[State]:
    return [
        State(number, name, index, tuple(tensor.shape[1:]), tensor.dtype, bool(layer.has_previous_state[index]))
        for name in _STATES
        for index, tensor in getattr(layer, name).items()
        if tensor is not None
    ]


def pack(layer: Any, parts: tuple[Part, ...], row: int, tokens: slice, width: int) -> Any:
    """Some tokens of one row of a layer: tokens, then all parts of each side by side, filled up to `width`."""
    rows = [
        getattr(layer, part.name)[row].movedim(part.axis - 1, 0)[tokens].flatten(1).detach().cpu() for part in parts
    ]
    packed = torch.cat(rows, 1)
    return torch.nn.functional.pad(packed, (0, width - packed.shape[1])).contiguous()


def unpack(packed: Any, parts: tuple[Part, ...], rooms: dict[str, Any], row: int, at: int) -> None:
    """The reverse: into a row of each part's room, from token `at` on."""
    first = 0
    for part in parts:
        tokens = packed[:, first : first + part.width].reshape(-1, *part.shape)
        rooms[part.name][row].movedim(part.axis - 1, 0)[at : at + len(tokens)] = tokens
        first += part.width
