"""Block: a range of a device's memory that was taken."""

from __future__ import annotations

import math
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from openshelf._dtypes import element_type, to_numpy, to_torch
from openshelf.errors import Closed, Mismatch
from openshelf.space.numbers import sizes_of

if TYPE_CHECKING:
    from openshelf.space.devices.device import Device


class Taken:
    """Says that a range is taken, to whoever holds it: blocks, views, copies under way. With the last it is free."""

    __slots__ = ("_back", "nbytes", "offset")

    def __init__(self, offset: int, nbytes: int, back: deque[tuple[int, int]]) -> None:
        self.offset, self.nbytes, self._back = offset, nbytes, back

    def __del__(self) -> None:
        # Not into the room itself: this may run at any moment, in the middle of a change of it too.
        self._back.append((self.offset, self.nbytes))


class Block:
    """A range of a device's memory, until release(); of a placement, one that shares it with blocks of other times.

    Views stay valid after release(): their memory is reused when the last of them is gone.
    """

    __slots__ = ("__weakref__", "_taken", "device", "nbytes", "offset")

    def __init__(self, device: Device, taken: Taken, offset: int, nbytes: int) -> None:
        self.device, self.offset, self.nbytes = device, offset, nbytes
        self._taken: Taken | None = taken

    def check(self) -> None:
        """Closed if it was released, or its device is."""
        self.device.check()
        if self._taken is None:
            raise Closed(f"this block of {self.nbytes} bytes was released; take another")

    @property
    def taken(self) -> Taken:
        """What holds the range."""
        self.check()
        assert self._taken is not None
        return self._taken

    @property
    def released(self) -> bool:
        return self._taken is None

    @property
    def pointer(self) -> int:
        """Of its first byte, for code that runs on the device."""
        self.check()
        return self.device.arena.pointer + self.offset

    def numpy(self, dtype: Any = "uint8", shape: Any = None) -> np.ndarray[Any, np.dtype[Any]]:
        """The memory itself, typed: as long as the block, or of `shape`. Mismatch on a device that only torch sees."""
        element = element_type(dtype)
        wanted = to_numpy(element.code, element.descr)
        sizes, nbytes = self._sizes(shape, wanted.itemsize, str(wanted))
        return self.device.arena.numpy(self.offset, nbytes, self.taken).view(wanted).reshape(sizes)

    def torch(self, dtype: Any = "uint8", shape: Any = None) -> Any:
        """The memory itself as a tensor on the device."""
        element = element_type(dtype)
        wanted = to_torch(element.code, element.name)
        sizes, nbytes = self._sizes(shape, element.itemsize, element.name)
        return self.device.arena.torch(self.offset, nbytes, self.taken).view(wanted).view(sizes)

    def _sizes(self, shape: Any, itemsize: int, name: str) -> tuple[tuple[int, ...], int]:
        if shape is None:
            if self.nbytes % itemsize:
                raise Mismatch(f"a block of {self.nbytes} bytes is no whole number of {name} ({itemsize} bytes each)")
            return (self.nbytes // itemsize,), self.nbytes
        sizes = sizes_of(shape)
        nbytes = math.prod(sizes) * itemsize
        if nbytes > self.nbytes:
            raise Mismatch(f"{name} of shape {sizes} needs {nbytes} bytes, the block has {self.nbytes}")
        return sizes, nbytes

    def release(self) -> None:
        """Gives the memory up, at once or when the last view of it and the last copy under way is gone."""
        if self._taken is None:
            raise Closed(f"this block of {self.nbytes} bytes was released already")
        self._taken = None

    def __enter__(self) -> Block:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._taken = None

    def __repr__(self) -> str:
        state = "released" if self.released else f"at {self.offset}"
        return f"Block({self.nbytes} bytes, {state}, of {self.device!r})"
