"""An Array: a typed range of a space. It holds a pin, and so does every view made of it."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from openshelf import _core
from openshelf.errors import BadAddress, BadInput, Mismatch
from openshelf.space._atomic import Atomic
from openshelf.space._dtypes import NUMPY_BY_CODE, ElementType, element_type, stored, to_numpy, to_torch, torch_module

if TYPE_CHECKING:
    from openshelf.space._space import Folder

_DRAFT, _LIVE = 1, 2  # of native Record::state


class Array:
    """A typed range of a space, named or not. While it or any view of it lives, in any process, its memory is kept.

    Reading and writing through `numpy()` and `torch()` is plain load and store, shared with everybody who holds
    the array; nothing orders them but what you use for it (atomics, locks, publication).
    """

    __slots__ = ("_element", "_folder", "_offset", "_pin", "_shape")

    def __init__(self, pin: _core.Pin, folder: Folder | None = None) -> None:
        self._pin = pin
        self._folder = folder
        self._offset = -1  # the whole of it; else a part, with _shape and _element
        self._shape: tuple[int, ...] = ()
        self._element: ElementType | None = None

    def _part(self, offset: int, shape: tuple[int, ...], element: ElementType) -> Array:
        part = Array(self._pin, self._folder)
        part._offset, part._shape, part._element = offset, shape, element
        return part

    @property
    def name(self) -> str | None:
        """Its full name in the space now; None if it has none or was deleted."""
        return self._pin.name if self._pin.state == _LIVE else None

    @property
    def address(self) -> int:
        """Where its first byte is: the same integer in every process."""
        return self._pin.address + max(self._offset, 0)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._pin.shape if self._offset < 0 else self._shape

    @property
    def element(self) -> ElementType:
        return self._element if self._element is not None else stored(self._pin.dtype, self._pin.descr)

    @property
    def dtype(self) -> str:
        """The dtype's name, such as 'float32' or 'bfloat16'."""
        return self.element.name

    @property
    def nbytes(self) -> int:
        return self._pin.nbytes if self._offset < 0 else _count(self._shape) * self.element.itemsize

    @property
    def tier(self) -> str:
        """Where its bytes are now."""
        return "dram"

    @property
    def published(self) -> bool:
        return self._pin.state == _LIVE

    def __len__(self) -> int:
        if not self.shape:
            raise Mismatch("an array without dimensions has no length")
        return self.shape[0]

    def numpy(self, dtype: Any = None) -> np.ndarray[Any, np.dtype[Any]]:
        """A zero-copy view. Read-only if the space is open with mode="r". `dtype` reinterprets, as ndarray.view does."""
        pin = self._pin
        if self._offset < 0 and dtype is None:
            known = NUMPY_BY_CODE.get(pin.dtype)
            return np.ndarray(pin.shape, to_numpy(0, pin.descr) if known is None and pin.dtype == 0 else known or to_numpy(pin.dtype, ""), pin)
        element = self.element
        if dtype is not None:
            raw = np.ndarray(self.nbytes, np.uint8, pin, max(self._offset, 0))
            wanted = np.dtype(dtype)
            if wanted.itemsize == element.itemsize:
                return raw.view(wanted).reshape(self.shape)
            return raw.view(wanted)
        return np.ndarray(self.shape, to_numpy(element.code, element.descr), pin, self._offset)

    def torch(self) -> Any:
        """A zero-copy tensor. Torch knows no read-only memory: storing into one of a mode="r" space ends the process."""
        element = self.element
        dtype = to_torch(element.code, element.name)
        torch = torch_module()
        if self.nbytes == 0:
            return torch.empty(self.shape, dtype=dtype)
        flat = torch.frombuffer(self._pin, dtype=dtype, count=_count(self.shape), offset=max(self._offset, 0))
        return flat.view(self.shape)

    def __getitem__(self, index: int | slice) -> Array:
        """A contiguous part along the first axis, as an Array with its own address and the same pin."""
        if not self.shape:
            raise Mismatch("an array without dimensions has no parts")
        element, length = self.element, self.shape[0]
        row = _count(self.shape[1:]) * element.itemsize
        start = max(self._offset, 0)
        if isinstance(index, slice):
            first, last, step = index.indices(length)
            if step != 1:
                raise Mismatch(f"a part must be contiguous, got step {step}; slice .numpy() for strided views")
            return self._part(start + first * row, (max(0, last - first), *self.shape[1:]), element)
        at = index + length if index < 0 else index
        if not 0 <= at < length:
            raise IndexError(f"row {index} is out of range for an array of {length} rows")
        return self._part(start + at * row, self.shape[1:], element)

    def atomic(self, index: int = 0) -> Atomic:
        """The `index`-th element (in flat order) as an atomic word; the dtype must be a 4- or 8-byte integer."""
        element = self.element
        count = _count(self.shape)
        if not 0 <= index < count:
            raise BadAddress(f"element {index} is out of range for an array of {count} elements")
        return Atomic(self._pin, max(self._offset, 0) + index * element.itemsize, element.name)

    def publish(self, *, replace: bool = False) -> Array:
        """Makes a draft findable under its name, whole, at once. Called by the end of a `with` block."""
        if self._folder is None:
            raise BadInput("only an array made by new() can be published")
        self._folder._core.publish(self._pin, replace)
        return self

    def __enter__(self) -> Array:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # After an exception the draft is not published; its memory goes with the last view of it.
        if kind is None and self._pin.state == _DRAFT:
            self.publish()

    def __repr__(self) -> str:
        label = repr(self.name) if self.name else ("a draft" if self._pin.state == _DRAFT else "unnamed")
        return f"Array({label}, shape={self.shape}, dtype={self.dtype}, address={self.address:#x})"


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def typed_part(pin: _core.Pin, address: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """The range at an address inside a pinned array, with a type of the caller's."""
    element = element_type(dtype)
    if any(length < 0 for length in shape):
        raise Mismatch(f"a shape has no negative sizes, got {shape}")
    offset, size = address - pin.address, _count(shape) * element.itemsize
    if offset + size > pin.nbytes:
        raise BadAddress(
            f"{size} bytes at {address:#x} reach beyond the array there, which ends at {pin.address + pin.nbytes:#x}"
        )
    return Array(pin)._part(offset, shape, element)
