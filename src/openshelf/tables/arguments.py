"""What callers give to tables: ids, offsets, weights, and memory to write into, as native code takes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from openshelf import _core
from openshelf._dtypes import torch_module
from openshelf.errors import BadInput, Mismatch, NotPermitted

GivenIds = tuple[int, int, int]
NO_IDS: GivenIds = (0, 8, 0)
MODES = {"sum": 0, "mean": 1, "max": 2}


def mode_of(mode: Any) -> str:
    if not isinstance(mode, str) or mode not in MODES:
        raise BadInput(f"mode is 'sum', 'mean' or 'max', got {mode!r}")
    return mode


class Numbers(NamedTuple):
    """Ids or offsets: where they are, their shape, and what keeps them there."""

    given: GivenIds
    shape: tuple[int, ...]
    kept: Any


def is_tensor(value: Any) -> bool:
    return hasattr(value, "data_ptr")


def numbers_of(value: Any, what: str) -> Numbers:
    """Contiguous int32 or int64; other integers are converted."""
    if is_tensor(value):
        torch = torch_module()
        if value.device.type != "cpu":
            raise Mismatch(f"{what} are on {value.device}, out of the CPU's reach: copy them with .cpu() first")
        if value.dtype not in (torch.int64, torch.int32):
            if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
                raise Mismatch(f"{what} are integers, got a tensor of {value.dtype}")
            value = value.long()
        value = value.contiguous()
        return Numbers((value.data_ptr(), value.element_size(), value.numel()), tuple(value.shape), value)
    array = value if type(value) is np.ndarray else np.asarray(value)
    if array.dtype not in (np.int64, np.int32):
        array = _as_int64(array, what)
    array = np.ascontiguousarray(array).reshape(array.shape)
    return Numbers((_core.address_of(array), array.itemsize, array.size), array.shape, array)


def _as_int64(array: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise Mismatch(f"{what} are integers, got {array.dtype}")
    if array.dtype == np.uint64 and int(array.max()) >= 1 << 63:
        raise BadInput(f"{what} are below 2^63, got {int(array.max())}")
    return array.astype(np.int64)


def floats_of(value: Any, what: str, shape: tuple[int, ...]) -> tuple[int, Any]:
    """The address of contiguous float32 numbers of this shape, and what keeps them; others are converted."""
    if is_tensor(value):
        value = value.detach().cpu().float().contiguous()
        address = value.data_ptr()
    else:
        array = np.asarray(value)
        if array.dtype.kind not in "fiu":
            raise Mismatch(f"{what} are numbers, got {array.dtype}")
        value = np.ascontiguousarray(array, np.float32)
        address = _core.address_of(value)
    if tuple(value.shape) != shape:
        raise Mismatch(f"{what} have the shape {tuple(value.shape)}, expected {shape}")
    return address, value


class Room(NamedTuple):
    """Memory for results: its address, the bytes from one row to the next, and the caller's object."""

    address: int
    stride: int
    out: Any


def room_for(out: Any, shape: tuple[int, ...], dtype: str, like: Any) -> Room:
    """`out`, checked, or new memory of the kind that the ids are: numpy's or torch's."""
    if out is None:
        out = _new(shape, dtype, is_tensor(like))
    if is_tensor(out):
        if out.device.type != "cpu":
            raise Mismatch(f"out= is on {out.device}, out of the CPU's reach; give CPU memory")
        name, size = str(out.dtype).removeprefix("torch."), out.element_size()
        strides, address = tuple(step * size for step in out.stride()), out.data_ptr()
    elif isinstance(out, np.ndarray):
        if not out.flags.writeable:
            raise NotPermitted("out= cannot be written; give a fresh array, np.empty()")
        if not out.dtype.isnative:
            raise Mismatch(f"out= has bytes in another order than this machine's, {out.dtype.str}; give np.empty()")
        name, size, strides = out.dtype.name, out.itemsize, out.strides
        address = _core.address_of(out)
    else:
        raise Mismatch(f"out= is an array or a tensor, got {type(out).__name__}")
    if name == "uint16" and dtype == "bfloat16":  # numpy has no bfloat16
        name = dtype
    if tuple(out.shape) != shape or name != dtype:
        raise Mismatch(f"out= has the shape {tuple(out.shape)} of {name}, expected {shape} of {dtype}")
    row = shape[-1] * size
    if len(shape) == 2 and (strides[1] == size or shape[1] == 1) and (strides[0] >= row or shape[0] <= 1):
        return Room(address, strides[0], out)  # perhaps some columns of a wider array
    if not (out.is_contiguous() if is_tensor(out) else out.flags.c_contiguous):
        raise Mismatch(f"out= must be contiguous, or columns of an array of rows; its strides are {strides}")
    return Room(address, row, out)


def _new(shape: tuple[int, ...], dtype: str, tensor: bool) -> Any:
    if tensor:
        torch = torch_module()
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return np.empty(shape, np.uint16 if dtype == "bfloat16" else dtype)


class Bags(NamedTuple):
    """Which ids are in which bag: by offsets, or so many each."""

    ids: Numbers
    offsets: Numbers | None
    bags: int
    length: int


def bags_of(ids: Any, offsets: Any, include_last_offset: bool) -> Bags:
    """As nn.EmbeddingBag takes them: ids of one dimension with offsets, or of two without, a bag a row."""
    found = numbers_of(ids, "ids")
    if len(found.shape) == 2:
        if offsets is not None:
            raise BadInput("ids of two dimensions are bags already, one a row: leave offsets out")
        return Bags(found, None, *found.shape)
    if len(found.shape) != 1:
        raise Mismatch(f"ids of bags have one dimension (with offsets) or two, got the shape {found.shape}")
    if offsets is None:
        raise BadInput("ids of one dimension need offsets: where each bag begins")
    starts = numbers_of(offsets, "offsets")
    if len(starts.shape) != 1:
        raise Mismatch(f"offsets have one dimension, got the shape {starts.shape}")
    bags = starts.shape[0]
    if include_last_offset:
        if bags < 1 or int(starts.kept[-1]) != found.shape[0]:
            raise BadInput(
                f"with include_last_offset the last offset is the number of ids, {found.shape[0]}, "
                f"got {int(starts.kept[-1]) if bags else 'no offsets'}"
            )
        bags -= 1
    return Bags(found, starts, bags, 0)
