"""The layers of a PooledCache: transformers' own, but with room for tokens to come and with what a pool has."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from openshelf.adapters.transformers.extra import caches, torch
from openshelf.errors import BadInput


class PooledLayer(caches.DynamicLayer):  # type: ignore[misc]  # mypy does not read transformers
    """One layer: a DynamicLayer with room for the tokens to come, so that neither a prefix nor a token makes a copy.

    Keys and values that are still on their way from the pool are waited for when they are asked for. `base`: the first
    token that it has; those before it are out of its window.
    """

    base = 0

    def __init__(self, **kwargs: Any) -> None:
        self._coming: list[Callable[[], Any]] = []
        self._rooms: dict[str, Any] = {}
        super().__init__(**kwargs)

    def expect(self, rooms: dict[str, Any], base: int, length: int, coming: list[Callable[[], Any]]) -> None:
        """Takes memory for its parts, whose first tokens, from `base` to `length`, come when `coming` are called."""
        keys, values = rooms["keys"], rooms["values"]
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._rooms = {"keys": keys, "values": values}
        self.base, self._coming = base, coming
        self.keys, self.values = (self._rooms[which][:, :, : length - base] for which in self._rooms)
        for name, tensor in rooms.items():
            if name not in self._rooms:  # an index, say: nobody waits for it when it is asked for
                self.arrive()
                self._begin_more(name, tensor, length)

    def _begin_more(self, name: str, tensor: Any, length: int) -> None:
        if hasattr(self, "lazy_initialization_indexer"):
            self.lazy_initialization_indexer(tensor)
        axis = 1 if tensor.ndim == 3 else tensor.ndim - 2
        setattr(self, name, tensor.narrow(axis, 0, length))

    @property
    def keys(self) -> Any:
        self.arrive()
        return self._keys

    @keys.setter
    def keys(self, tensor: Any) -> None:
        self._keys = tensor

    @property
    def values(self) -> Any:
        self.arrive()
        return self._values

    @values.setter
    def values(self, tensor: Any) -> None:
        self._values = tensor

    def arrive(self) -> None:
        """Waits for what is on its way from the pool."""
        while self._coming:
            self._coming[0]()
            del self._coming[0]

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self._append("keys", self.keys, key_states)
        self.values = self._append("values", self.values, value_states)
        return self.keys, self.values

    def _append(self, which: str, past: Any, new: Any) -> Any:
        length = past.shape[-2] if past.numel() else 0
        if new.requires_grad:  # who trains keeps every version
            return torch.cat([past, new], dim=-2) if length else new
        total = length + new.shape[-2]
        room = self._rooms.get(which)
        if room is None or total > room.shape[-2] or not (_begins(room, past, new) if length else _fits(room, new)):
            room = new.new_empty((*new.shape[:2], total + max(128, total // 4), new.shape[-1]))
            if length:
                room[:, :, :length] = past
            self._rooms[which] = room
        room[:, :, length:total] = new
        return room[:, :, :total]

    def get_seq_length(self) -> int:
        if not self.is_initialized or self._keys.numel() == 0:
            return 0
        return self.base + int(self._keys.shape[-2])

    def reset(self) -> None:
        self.arrive()
        super().reset()
        self.base = 0


class WindowLayer(PooledLayer):
    """One that shows a window of the tokens, as transformers' own does, and has all of them for the pool."""

    sliding_window: int

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        shown = key_states.shape[-2] + min(self.get_seq_length(), self.sliding_window - 1)
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        return keys[:, :, -shown:], values[:, :, -shown:]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        length = self.get_seq_length()
        return query_length + min(length, self.sliding_window - 1), max(length - self.sliding_window + 1, 0)

    def crop(self, tokens_to_remove: int) -> None:
        caches.DynamicLayer.crop(self, tokens_to_remove)


class StateLayer:
    """What transformers' layers with states lack."""

    conv_states: dict[int, Any]
    recurrent_states: dict[int, Any]

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._for_all_states(lambda tensor: tensor.repeat_interleave(repeats, dim=0))
        if isinstance(self, PooledLayer):
            super().batch_repeat_interleave(repeats)  # type: ignore[misc]

    def batch_select_indices(self, indices: Any) -> None:
        self._for_all_states(lambda tensor: tensor[indices, ...])
        if isinstance(self, PooledLayer):
            super().batch_select_indices(indices)  # type: ignore[misc]

    def _for_all_states(self, change: Callable[[Any], Any]) -> None:
        for states in (self.conv_states, self.recurrent_states):
            for index, tensor in states.items():
                if tensor is not None:
                    states[index] = change(tensor)


def layers_for(config: Any) -> list[Any]:
    """The layers of a cache for a model of this configuration. BadInput if one is of a kind that is not known here."""
    kinds, options = caches.get_layer_types_and_kwargs(config.get_text_config(decoder=True))
    layers = []
    for kind, given in zip(kinds, options, strict=False):  # layers that share keys and values have options, too
        cls = caches.DYNAMIC_LAYER_TYPE_MAPPING.get(kind)
        if (pooled := _pooled(cls)) is None:
            raise BadInput(
                f"{config.model_type} keeps its cache in layers of the type {kind!r}"
                f"{'' if cls is None else f' ({cls.__name__})'}, which is not known here: only full and sliding "
                "attention, indexes of sparse attention, convolutions and recurrences are supported"
            )
        layers.append(pooled(**given))
    return layers


@cache
def _pooled(kind: Any) -> Any:
    """The class of layers that does what `kind` does, with a pool; None if that is not known."""
    bases: dict[Any, tuple[Any, ...]] = {
        caches.DynamicSlidingWindowLayer: (WindowLayer,),
        caches.DynamicIndexedLayer: (PooledLayer,),
        caches.LinearAttentionLayer: (StateLayer,),
        caches.LinearAttentionAndFullAttentionLayer: (StateLayer, PooledLayer),
        caches.LinearAttentionAndSlidingWindowAttentionLayer: (StateLayer, WindowLayer),
    }
    ours = bases.get(kind)
    if getattr(kind, "__name__", "") == "MiniMaxM3VLSparseCacheLayer":  # it is defined where its model is
        ours = (PooledLayer,)
    if kind is caches.DynamicLayer:
        return PooledLayer
    if ours is None:
        return None
    return type(f"Pooled{kind.__name__}", (*ours, kind), {"_layer_type": None})  # None: it is not registered


def _fits(room: Any, new: Any) -> bool:
    return bool(
        room.shape[:2] == new.shape[:2]
        and room.device == new.device
        and room.dtype == new.dtype
        and room.is_inference() == torch.is_inference_mode_enabled()
    )


def _begins(room: Any, past: Any, new: Any) -> bool:
    """Whether `past` is still the beginning of `room`: reordering or repeating makes other tensors of it."""
    return _fits(room, new) and bool(past.data_ptr() == room.data_ptr() and past.stride() == room.stride())
