"""Element types: numpy's, and those that only torch has. A record stores a number, or a description in full."""

from __future__ import annotations

import ast
import importlib
from typing import Any

import numpy as np

from openshelf import _core
from openshelf.errors import Mismatch, MissingExtra

# Numbers are part of the format in shared memory: append only.
_NUMPY = {
    1: "bool", 2: "int8", 3: "uint8", 4: "int16", 5: "uint16", 6: "int32", 7: "uint32", 8: "int64", 9: "uint64",
    10: "float16", 11: "float32", 12: "float64", 13: "complex64", 14: "complex128",
}  # fmt: skip
_TORCH_ONLY = {
    32: ("bfloat16", 2), 33: ("float8_e4m3fn", 1), 34: ("float8_e5m2", 1), 35: ("float8_e4m3fnuz", 1),
    36: ("float8_e5m2fnuz", 1), 37: ("float8_e8m0fnu", 1),
}  # fmt: skip

NUMPY_BY_CODE: dict[int, np.dtype[Any]] = {code: np.dtype(name) for code, name in _NUMPY.items()}
_CODE_BY_NAME = {name: code for code, (name, _) in _TORCH_ONLY.items()}


def torch_module() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise MissingExtra("this needs torch, which is not installed: pip install torch (openshelf[torch])") from error


class ElementType:
    """A number and a description as stored, and what they mean."""

    __slots__ = ("code", "descr", "itemsize", "name")

    def __init__(self, code: int, descr: str, itemsize: int, name: str) -> None:
        self.code, self.descr, self.itemsize, self.name = code, descr, itemsize, name

    @property
    def torch_only(self) -> bool:
        """Whether numpy has no such type."""
        return self.code in _TORCH_ONLY


_BY_CODE = {code: ElementType(code, "", dtype.itemsize, dtype.name) for code, dtype in NUMPY_BY_CODE.items()}
_BY_CODE |= {code: ElementType(code, "", itemsize, name) for code, (name, itemsize) in _TORCH_ONLY.items()}
_BY_NUMPY = {dtype: _BY_CODE[code] for code, dtype in NUMPY_BY_CODE.items()}
_core.set_numpy(np.ndarray, [NUMPY_BY_CODE.get(code) for code in range(max(NUMPY_BY_CODE) + 1)])


def element_type(dtype: Any) -> ElementType:
    """From anything numpy takes for a dtype, a torch.dtype, or a name such as 'bfloat16'."""
    if dtype is None:
        raise Mismatch("a dtype is needed, got None")
    name = str(dtype).removeprefix("torch.")
    if name in _CODE_BY_NAME:
        return _BY_CODE[_CODE_BY_NAME[name]]
    try:
        parsed = np.dtype(name if str(dtype).startswith("torch.") else dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        known = ", ".join([*_NUMPY.values(), *_CODE_BY_NAME])
        raise Mismatch(f"{dtype!r} is not a dtype; expected one of numpy's or: {known}") from error
    return of_numpy(parsed)


def of_numpy(dtype: np.dtype[Any]) -> ElementType:
    known = _BY_NUMPY.get(dtype)
    if known is not None:
        return known
    if dtype.hasobject:
        raise Mismatch(
            f"dtype {dtype} holds Python objects, which mean nothing in another process; use numbers or bytes"
        )
    if dtype.subdtype is not None:
        raise Mismatch(f"dtype {dtype} has a shape of its own; put that into the array's shape")
    if dtype.itemsize == 0:
        raise Mismatch(f"dtype {dtype} has no size; give one, as in 'S16' or 'U8'")
    return ElementType(0, repr(np.lib.format.dtype_to_descr(dtype)), dtype.itemsize, str(dtype))


def stored(code: int, descr: str) -> ElementType:
    """The element type of a record."""
    known = _BY_CODE.get(code)
    return known if known is not None else of_numpy(np.lib.format.descr_to_dtype(ast.literal_eval(descr)))


def to_numpy(code: int, descr: str) -> np.dtype[Any]:
    known = NUMPY_BY_CODE.get(code)
    if known is not None:
        return known
    if code in _TORCH_ONLY:
        name = _TORCH_ONLY[code][0]
        raise Mismatch(f"numpy has no {name}; use .torch(), or .numpy(dtype='uint8') for the bytes")
    return np.dtype(np.lib.format.descr_to_dtype(ast.literal_eval(descr)))


def to_torch(code: int, name: str) -> Any:
    torch = torch_module()
    dtype = getattr(torch, name, None)
    if code == 0 or dtype is None:
        raise Mismatch(f"torch has no {name}; use .numpy()")
    return dtype
