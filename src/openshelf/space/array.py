"""An Array: a typed range of a space. It holds a pin, and so does every view made of it."""

from __future__ import annotations

import math
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from openshelf import _core
from openshelf._dtypes import ElementType, element_type, stored, to_numpy, to_torch, torch_module
from openshelf._sizes import flag, whole
from openshelf.errors import BadAddress, BadInput, Mismatch, NotPermitted, OutOfRange
from openshelf.space.atomic import Atomic
from openshelf.space.batches import teach_torch
from openshelf.space.devices.dirty import dirty, write_back
from openshelf.space.like_numpy import LikeNumpy
from openshelf.space.numbers import KEPT
from openshelf.space.sent import Handle, array_address, open_array, send

if TYPE_CHECKING:
    from openshelf.space.devices.block import Block
    from openshelf.space.devices.device import Device
    from openshelf.space.devices.replica import Replica
    from openshelf.space.folder import Folder
    from openshelf.space.locality.base import Locality
    from openshelf.space.transfer import Pinned, Transfer

_DRAFT, _LIVE = int(_core.State.DRAFT), int(_core.State.LIVE)
# How names begin that keep unnamed arrays alive in channels, those of claims, of the parts of tables, and of copies.
HIDDEN = ("\x01", "\x02", "\x03", KEPT)


class Array(Handle, LikeNumpy):
    """A typed range of a space, named or not. While it or any view of it lives, in any process, its memory is kept.

    Reading and writing through `numpy()` and `torch()` is plain load and store, shared with everybody who holds
    the array; nothing orders them but what you use for it (atomics, locks, publication). Operators, numpy's functions
    and indexing work as on `numpy()`.
    """

    __slots__ = ("_folder", "_pin")
    _offset = 0  # from the pinned array's first byte

    def __init__(self, pin: _core.Pin, folder: Folder | None = None) -> None:
        self._pin = pin
        self._folder = folder
        teach_torch(Array)

    @property
    def name(self) -> str | None:
        """Its full name in the space now; None if it has none or was deleted."""
        name = self._pin.name if self._pin.state == _LIVE else ""
        if name.startswith(KEPT):
            return name.partition("/")[2]
        return name if name and not name.startswith(HIDDEN) else None

    @property
    def address(self) -> int:
        """Where its first byte is: the same integer in every process."""
        return self._pin.address + self._offset

    @property
    def shape(self) -> tuple[int, ...]:
        return self._pin.shape

    @property
    def element(self) -> ElementType:
        return stored(self._pin.dtype, self._pin.descr)

    @property
    def dtype(self) -> str:
        """The dtype's name, such as 'float32' or 'bfloat16'."""
        return self.element.name

    @property
    def nbytes(self) -> int:
        return self._pin.nbytes

    @property
    def tier(self) -> str:
        """Where its bytes are now: 'dram', 'flash', or 'mixed'."""
        return self._locality.tier(self.address, self.nbytes) if self._folder is not None else "dram"

    @property
    def published(self) -> bool:
        return self.name is not None

    @property
    def home(self) -> str:
        """The host whose memory it has: where it is when nobody else uses it."""
        return self._locality.home(self.address)

    @property
    def owner(self) -> str | None:
        """The host that may write it now without asking; None while several read it, or different hosts have parts."""
        return self._locality.owner(self.address, self.nbytes)

    @property
    def state(self) -> str:
        """What this host has of it: 'home', 'invalid', 'shared', 'modified', or 'mixed'. It may change at any time."""
        return self._locality.state(self.address, self.nbytes)

    def prefetch(self, write: bool = False, *, priority: int = 0) -> Transfer:
        """Fetches it to this host's memory before it is touched; with `write`, for writing. Higher priorities first."""
        self._settle()
        return self._locality.prefetch(self.address, self.nbytes, write, priority)

    def demote(self, tier: str = "flash", *, priority: int = 0) -> Transfer:
        """Takes it out of memory; its address stays, and a touch brings it back. What shares a unit of 64 KiB with it
        goes along."""
        self._settle()
        return self._locality.demote(self.address, self.nbytes, tier, priority)

    def pin(self, tier: str = "dram", *, priority: int = 0) -> Pinned:
        """Brings it into memory, and keeps it there until the handle is released or dropped. NoRoom if it cannot be."""
        if not isinstance(tier, str) or tier != "dram":
            raise BadInput(f"pin({tier!r}): bytes can be pinned in 'dram'")
        return self._locality.pin(self.address, self.nbytes, priority)

    def on(self, where: Device | Block) -> Replica:
        """A replica on a device, in a block that is taken for it or in a given one; load() copies the bytes there.

        While it is dirty, calls of this process that hand out the array's bytes write it back first: docs/device.md.
        """
        from openshelf.space.devices.replica import Replica  # which needs this module

        return Replica(self, where)

    def read_only(self) -> Array:
        """The same array, whose numpy views cannot be written: so every host that only reads keeps its copy."""
        return _ReadOnly(self._pin, self._offset, self.shape, self.element, self._folder)

    @property
    def _locality(self) -> Locality:
        if self._folder is None:
            raise BadInput("this array was made without a space")
        return self._folder._locality

    def numpy(self, dtype: Any = None) -> np.ndarray[Any, np.dtype[Any]]:
        """A zero-copy view, read-only if the space is open with mode="r". `dtype` reinterprets like ndarray.view."""
        if dtype is not None:
            self._settle()
            raw = self._bytes()
            other = element_type(dtype)
            wanted = to_numpy(other.code, other.descr)
            return (
                raw.view(wanted).reshape(self.shape) if wanted.itemsize == self.element.itemsize else raw.view(wanted)
            )
        view = self._pin.numpy()  # None where the dtype is not one of the common ones, or while a replica is dirty
        return self._typed_view() if view is None else view

    def _typed_view(self) -> np.ndarray[Any, np.dtype[Any]]:
        self._settle()
        element = self.element
        return np.ndarray(self.shape, to_numpy(element.code, element.descr), *self._buffer())

    def _settle(self) -> None:
        """Before its bytes are handed out: newer ones that a device has are written back."""
        if dirty:
            write_back(self.address, self.nbytes)

    def _buffer(self) -> tuple[Any, int]:
        """An object with a buffer, and where this array begins in it."""
        return self._pin, self._offset

    def _bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The memory as it is: what a dirty replica has is not written back for this."""
        return np.ndarray(self.nbytes, np.uint8, *self._buffer())

    def torch(self) -> Any:
        """A zero-copy tensor. Torch knows no read-only memory: a store into a mode="r" space ends the process."""
        element = self.element
        dtype = to_torch(element.code, element.name)
        torch = torch_module()
        self._settle()
        if self.nbytes == 0:
            return torch.empty(self.shape, dtype=dtype)
        buffer, offset = self._buffer()
        flat = torch.frombuffer(buffer, dtype=dtype, count=math.prod(self.shape), offset=offset)
        return flat.view(self.shape)

    def __getitem__(self, index: Any) -> Any:
        """As of numpy. A row or a plain slice is an Array with its own address and the same pin, unless it is a number;
        everything else is numpy's: a number, a view or a copy."""
        if isinstance(index, slice) and self.shape:
            first, last, step = index.indices(self.shape[0])
            if step == 1:
                return self._part(self._row_at(first), (max(0, last - first), *self.shape[1:]), self.element)
        if index is None or isinstance(index, slice | tuple | list | np.ndarray | Array | str | bool | EllipsisType):
            return self._numpy_item(index)
        row = whole(index, "a row")
        if not self.shape:
            raise OutOfRange("an array without dimensions has no rows; array[()] is its element")
        length = self.shape[0]
        at = row + length if row < 0 else row
        if not 0 <= at < length:
            raise OutOfRange(f"row {row} is out of range for an array of {length} rows")
        part = self._part(self._row_at(at), self.shape[1:], self.element)
        return part if part.shape else part.numpy()[()]

    def _row_at(self, row: int) -> int:
        return self._offset + row * math.prod(self.shape[1:]) * self.element.itemsize

    def _part(self, offset: int, shape: tuple[int, ...], element: ElementType) -> Array:
        return _Part(self._pin, offset, shape, element, self._folder)

    def _is_read_only(self) -> bool:
        return memoryview(self._buffer()[0]).readonly

    def _torch_only(self) -> bool:
        return self.element.torch_only

    def atomic(self, index: int = 0) -> Atomic:
        """The `index`-th element (in flat order) as an atomic word; the dtype must be a 4- or 8-byte integer."""
        if self._pin.name.startswith(KEPT):
            raise BadInput(
                "atomics of a named array in a space with replicas: they would be lost with its host. Use an array "
                "without a name, or a space without replicas"
            )
        element = self.element
        index, count = whole(index, "an element's number"), math.prod(self.shape)
        if not 0 <= index < count:
            raise OutOfRange(f"element {index} is out of range for an array of {count} elements")
        self._settle()
        return Atomic(self._pin, self._offset + index * element.itemsize, element.name)

    def publish(self, name: str | None = None, *, replace: bool = False) -> Array:
        """Makes a draft findable under its name, whole, at once; an unnamed array needs a `name`."""
        folder = self._folder
        if folder is None or isinstance(self, _Part):
            raise BadInput("a part of an array cannot be published; publish the whole")
        self._settle()
        replace = flag(replace, "replace")
        if name is not None:
            if replace:
                raise BadInput("a name can be replaced by a draft or by put(), not by naming an unnamed array")
            folder._give_name(self._pin, name)
        else:
            folder._native.publish(self._pin, replace)
        return self

    def flush(self) -> None:
        """What was stored before is safe when this returns. In a space with replicas: a lost host does not take it.
        In a durable one: a power cut does not. BadInput in others."""
        if self._folder is None:
            raise BadInput("this array was made without a space")
        self._settle()
        self._folder._flush(self._pin)

    def __reduce__(self) -> Any:
        """Pickled as its name and address; BadInput without a name."""
        return send(open_array, lambda: array_address(self))

    def __enter__(self) -> Array:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an exception the draft is not published; its memory goes with the last view of it.
        if kind is None and self._pin.state == _DRAFT:
            self.publish()

    def __repr__(self) -> str:
        label = repr(self.name) if self.name else ("a draft" if self._pin.state == _DRAFT else "unnamed")
        return f"Array({label}, shape={self.shape}, dtype={self.dtype}, address={self.address:#x})"


class _Part(Array):
    """A contiguous part of an array, or a range of it with another type: the same pin, its own address."""

    __slots__ = ("_element", "_offset", "_shape")

    def __init__(
        self, pin: _core.Pin, offset: int, shape: tuple[int, ...], element: ElementType, folder: Folder | None
    ) -> None:
        super().__init__(pin, folder)
        self._offset, self._shape, self._element = offset, shape, element

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def element(self) -> ElementType:
        return self._element

    @property
    def nbytes(self) -> int:
        return math.prod(self._shape) * self._element.itemsize

    def numpy(self, dtype: Any = None) -> np.ndarray[Any, np.dtype[Any]]:
        return self._typed_view() if dtype is None else super().numpy(dtype)

    def _buffer(self) -> tuple[Any, int]:
        if self._folder is None:
            return self._pin, self._offset
        return self._folder._locality.buffer(self._pin, self._offset, self.nbytes)


class _ReadOnly(_Part):
    """All or a part of an array, through a buffer that numpy cannot write."""

    __slots__ = ()

    def _buffer(self) -> tuple[Any, int]:
        # Through an ndarray: on the memoryview itself numpy would look through to the pin, which can be written.
        buffer, offset = super()._buffer()
        return np.frombuffer(memoryview(buffer).toreadonly(), np.uint8), offset

    def _part(self, offset: int, shape: tuple[int, ...], element: ElementType) -> Array:
        return _ReadOnly(self._pin, offset, shape, element, self._folder)

    def atomic(self, index: int = 0) -> Atomic:
        raise NotPermitted("atomics write; take them of the array itself, not of its read_only()")


def typed_part(pin: _core.Pin, address: int, shape: tuple[int, ...], dtype: Any, folder: Folder) -> Array:
    """The range at an address inside a pinned array, with a type of the caller's."""
    element = element_type(dtype)
    if any(length < 0 for length in shape):
        raise Mismatch(f"a shape has no negative sizes, got {shape}")
    offset, size = address - pin.address, math.prod(shape) * element.itemsize
    if offset + size > pin.nbytes:
        raise BadAddress(
            f"{size} bytes at {address:#x} reach beyond the array there, which ends at {pin.address + pin.nbytes:#x}"
        )
    return _Part(pin, offset, shape, element, folder)
