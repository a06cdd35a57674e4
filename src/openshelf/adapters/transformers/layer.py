"""One layer of a PooledCache."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from openshelf.adapters.transformers.extra import caches, torch


class PooledLayer(caches.DynamicLayer):  # type: ignore[misc]  # mypy does not read transformers
    """One layer: a DynamicLayer with room for the tokens to come, so that neither a prefix nor a token makes a copy.

    Keys and values that are still on their way from the pool are waited for when they are asked for.
    """

    def __init__(self) -> None:
        self._coming: list[Future[Any]] = []
        self._rooms: dict[str, Any] = {}
        super().__init__()

    def expect(self, keys: Any, values: Any, length: int, coming: list[Future[Any]]) -> None:
        """Takes memory whose first `length` tokens are being read into it."""
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._rooms = {"keys": keys, "values": values}
        self.keys, self.values = keys[:, :, :length], values[:, :, :length]
        self._coming = coming

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
            self._coming[0].result()
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

    def reset(self) -> None:
        self.arrive()
        super().reset()


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
