"""torch, or an error that names the extra. Untyped: type-checking it takes minutes."""

from __future__ import annotations

from typing import Any

from openshelf._core import DeviceArena
from openshelf._dtypes import torch_module

torch: Any = torch_module()


def bytes_of(tensor: Any) -> Any:
    """All of a tensor's storage, as bytes that share its memory."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),))


def arena_bytes(arena: DeviceArena) -> Any:
    """All of an arena, as bytes that share its memory."""
    return torch.frombuffer(memoryview(arena.range(0, arena.nbytes, None)), dtype=torch.uint8)


def strided(storage: Any, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Any:
    """A tensor that shares the memory of `storage`, a tensor of bytes; `offset` in elements."""
    if 0 in shape:  # numpy's empty arrays have no strides to speak of
        return torch.empty_strided(shape, strides, dtype=dtype)
    return torch.as_strided(storage.view(dtype), shape, strides, offset)
