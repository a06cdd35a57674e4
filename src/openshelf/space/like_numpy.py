"""What makes an Array usable where numpy's arrays are: operators, functions, indexing, and exchange without a copy.

Everything works on the view that `numpy()` gives, and what comes out is numpy's own: an ndarray or a number. A view
among the results holds the array's pin, as every view does. What numpy computes raises what numpy raises; indexing and
exchange raise errors of this package. `==` compares elements, and so an Array is hashed by identity, as torch's
tensors are.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from openshelf.errors import BadInput, Mismatch, NotPermitted, OutOfRange

_CPU = (1, 0)  # DLPack's kDLCPU
View = np.ndarray[Any, np.dtype[Any]]


class LikeNumpy(np.lib.mixins.NDArrayOperatorsMixin):
    """The habits of an ndarray for a class that has `numpy()`, `torch()` and `shape`."""

    __slots__ = ()
    __hash__ = object.__hash__

    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    def numpy(self, dtype: Any = None) -> View:
        raise NotImplementedError

    def torch(self) -> Any:
        raise NotImplementedError

    def _is_read_only(self) -> bool:
        raise NotImplementedError

    def _torch_only(self) -> bool:
        """Whether numpy has no such type."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    # Indexing by what numpy takes

    def _numpy_item(self, index: Any) -> Any:
        view = self.numpy()
        try:
            return view[_plain(index)]
        except (IndexError, ValueError) as error:
            raise OutOfRange(f"an array of shape {self.shape} has no [{_shown(index)}]: {error}") from None

    def __setitem__(self, index: Any, value: Any) -> None:
        """Writes in place, as numpy does: other processes may see it half written. put() replaces at once."""
        view = self.numpy()
        if not view.flags.writeable:
            raise NotPermitted("the array is read-only here: open its space with mode='rw', and not by read_only()")
        try:
            view[_plain(index)] = storable(value)
        except IndexError as error:
            raise OutOfRange(f"an array of shape {self.shape} has no [{_shown(index)}]: {error}") from None
        except Exception as error:  # numpy's, torch's, or of any object's own __array__
            raise Mismatch(f"{_shown(value)} cannot be written into [{_shown(index)}]: {error}") from None

    def __getitems__(self, rows: list[int]) -> list[Any]:
        """Of torch's DataLoader, when an Array is its dataset: a batch is made of tensors, not of Arrays."""
        tensor = self.torch()
        return [tensor[row] for row in rows]

    def __len__(self) -> int:
        if not self.shape:
            raise Mismatch("an array without dimensions has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if self.ndim == 1:
            return iter(self.numpy())
        return (self[row] for row in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        view = self.numpy()
        try:
            return bool(np.any(view == _plain(value)))
        except Exception as error:  # numpy's or torch's, of what has no equal shape
            raise Mismatch(f"{_shown(value)} cannot be compared with the elements: {error}") from None

    # One number

    def _only(self, what: str = "number", instead: str = "[...] of it gives elements") -> Any:
        if self.size != 1:
            raise BadInput(f"an array of shape {self.shape} is no {what}; {instead}")
        return self.numpy().reshape(())[()]

    def __bool__(self) -> bool:
        instead = ".any() and .all() of a comparison are, and `is None` asks whether there is one"
        return bool(self._only("truth value", instead))

    def __int__(self) -> int:
        return int(self._only())

    def __float__(self) -> float:
        return float(self._only())

    def __complex__(self) -> complex:
        return complex(self._only())

    def __index__(self) -> int:
        """Of an integer without dimensions, as of numpy's. What else is asked so is refused, not counted or listed:
        bytearray() would take the elements for the bytes."""
        number = self.numpy()
        if self.shape or number.dtype.kind not in "iu":
            raise BadInput(f"an array of {number.dtype} {self.shape} is no index; bytes(array) gives its bytes")
        return int(number)

    def __format__(self, form: str) -> str:
        return format(self._only(), form) if form else str(self)

    def __bytes__(self) -> bytes:
        """All of its bytes, copied: of a row of small integers bytes() would take the elements for them."""
        return self.numpy(np.uint8).tobytes()

    # Computing

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> View:
        view = self.numpy()
        if dtype is not None and np.dtype(dtype) != view.dtype:
            if copy is False:
                raise BadInput(f"an array of {view.dtype} cannot be seen as {np.dtype(dtype)} without a copy")
            return view.astype(dtype)
        return view.copy() if copy else view

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if any(_is_tensor(value) for value in inputs):
            raise Mismatch("an Array computes by numpy, and this is a tensor: array.torch() computes with it")
        given = options.get("out", ())
        for out in given:
            if isinstance(out, LikeNumpy) and not out.numpy().flags.writeable:
                raise NotPermitted("the array is read-only here, and cannot be computed into")
        plain = {name: _plain(value) for name, value in options.items()}
        result = getattr(ufunc, method)(*(_plain(value) for value in inputs), **plain)
        if not given or result is NotImplemented:
            return result
        if len(given) == 1:
            return result if given[0] is None else given[0]
        return tuple(mine if out is None else out for mine, out in zip(result, given, strict=True))

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        result = function(*_plain(args), **{name: _plain(value) for name, value in options.items()})
        out = options.get("out")
        return out if isinstance(out, LikeNumpy) else result

    # Exchange without a copy

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """For torch.as_tensor(array), from_dlpack and the like. NotPermitted for a read-only array, unless copied:
        torch takes no notice of that, and would write."""
        if dl_device is not None and tuple(dl_device) != _CPU:
            raise BadInput(f"the array is in the memory of the CPU, {_CPU}, not of the device {dl_device}")
        if self._is_read_only() and not copy:
            raise NotPermitted(
                "the array is read-only, and who takes it this way may write it; copy it, np.array(array), or take "
                ".numpy(), which stays read-only, or .torch(), which you must not write"
            )
        if self._torch_only():
            tensor = self.torch()
            return (tensor.clone() if copy else tensor).__dlpack__()
        view = self.numpy().copy() if copy else self.numpy()
        try:
            try:
                return view.__dlpack__(max_version=max_version) if max_version else view.__dlpack__()
            except TypeError:  # numpy before 2.1 knows no versions
                return view.__dlpack__()
        except BufferError as error:
            raise Mismatch(f"an array of {view.dtype} cannot be handed over by DLPack: {error}; use .numpy()") from None

    def __getattr__(self, name: str) -> Any:
        kind = type(self).__name__.lstrip("_")
        if not name.startswith("_") and hasattr(np.ndarray, name):
            function = f", or np.{name}(array)" if hasattr(np, name) and name != "astype" else ""
            view = ".torch()" if self._torch_only() else f".numpy().{name}{function}"
            raise AttributeError(f"an {kind} has no {name!r}; its view has: {view}")
        raise AttributeError(f"{kind!r} has no attribute {name!r}")


def _is_tensor(value: Any) -> bool:
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def storable(value: Any) -> Any:
    """What numpy can write in place of an Array, or of a tensor that has a gradient."""
    return value.detach().numpy() if _is_tensor(value) else _plain(value)


def _plain(value: Any) -> Any:
    """With views in place of Arrays, in tuples and lists too."""
    if isinstance(value, LikeNumpy):
        return value.numpy()
    return type(value)(map(_plain, value)) if type(value) in (tuple, list) else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
