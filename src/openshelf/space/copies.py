"""Arguments of get and put: addresses, and buffers of the caller's, checked before a byte moves."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from openshelf._sizes import whole
from openshelf.errors import BadAddress, BadInput, Mismatch, NotPermitted
from openshelf.space.array import Array
from openshelf.space.numbers import an_address

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Numbers = np.ndarray[Any, np.dtype[np.uint64]]  # addresses and sizes


class Copies(NamedTuple):
    """Rows of equal length, each with its address in the space; together they are the caller's buffer."""

    addresses: list[int]
    row: int
    buffer: Bytes
    kept: list[Array]  # keeps what is addressed while it is copied

    @property
    def nbytes(self) -> int:
        return self.row * len(self.addresses)


def copies(where: Any, buffer: Any, nbytes: int | None, write: bool) -> Copies:
    """What `get(where, buffer)` (write) or `put(where, buffer)` means."""
    one = isinstance(where, int | np.integer | Array)
    several = isinstance(where, Sequence | np.ndarray) and not isinstance(where, str | bytes | bytearray | memoryview)
    kinds = {type(where)} if one else set(map(type, where)) if several else {object}
    if not all(issubclass(kind, int | np.integer | Array) for kind in kinds):
        raise Mismatch(f"expected a name, an address, an Array, or a list of addresses and Arrays, got {where!r}")
    flat, rows = flat_bytes(buffer, write)
    kept: list[Array] = []
    if one:
        size = len(flat) if nbytes is None else whole(nbytes, "nbytes")
        if not 0 <= size <= len(flat):
            raise Mismatch(f"nbytes={size} is more than the {len(flat)} bytes of the buffer")
        if isinstance(where, Array) and nbytes is None and size != where.nbytes:
            raise Mismatch(f"the array has {where.nbytes} bytes, the buffer {size}; give nbytes= to copy a part")
        return Copies([_address(where, size, kept)], size, flat[:size], kept)
    if nbytes is not None:
        raise BadInput("nbytes= goes with one address; with several, the buffer's rows say how much each is")
    count = len(where)
    if rows != count:
        raise Mismatch(f"{count} addresses need a buffer of {count} rows, this one has {rows}")
    row = len(flat) // count if count else 0
    if kinds == {int}:  # the case that must be fast
        for extreme in (min(where), max(where)):
            an_address(extreme)
        return Copies(list(where), row, flat, kept)
    return Copies([_address(each, row, kept) for each in where], row, flat, kept)


class Ranges(NamedTuple):
    """Ranges of a space, of any lengths."""

    addresses: Numbers
    sizes: Numbers
    kept: list[Array]  # keeps what is addressed

    @property
    def nbytes(self) -> int:
        return int(self.sizes.sum())


def ranges_of(where: Any, nbytes: int | None) -> Ranges:
    """What `prefetch(where, nbytes)` means."""
    if not isinstance(where, Sequence | np.ndarray) or isinstance(where, str | bytes | bytearray | memoryview):
        raise Mismatch(f"expected a list of arrays or of addresses, got {where!r}")
    if nbytes is None:
        if not all(isinstance(each, Array) for each in where):
            raise Mismatch("nbytes= says how much there is at each address; it may be left out for arrays only")
        kept = list(where)
        return Ranges(_numbers([each.address for each in kept]), _numbers([each.nbytes for each in kept]), kept)
    size = whole(nbytes, "nbytes")
    if size < 0:
        raise BadInput(f"nbytes is 0 or more, got {size}")
    if isinstance(where, np.ndarray):
        if where.ndim != 1 or where.dtype.kind not in "iu":
            raise Mismatch(f"addresses are integers in one dimension, got {where.dtype} of shape {where.shape}")
        where = where.tolist() if where.dtype.kind == "i" and (where < 0).any() else where
    if not isinstance(where, np.ndarray):
        where = [an_address(each) for each in where]
    return Ranges(_numbers(where), np.full(len(where), size, np.uint64), [])


def _numbers(values: Any) -> Numbers:
    return np.ascontiguousarray(values, np.uint64)


def _address(where: Any, size: int, kept: list[Array]) -> int:
    if isinstance(where, Array):
        if size > where.nbytes:
            raise BadAddress(f"{size} bytes reach beyond the array of {where.nbytes} bytes at {where.address:#x}")
        kept.append(where)
        return where.address
    return an_address(where)


def flat_bytes(buffer: Any, write: bool) -> tuple[Bytes, int]:
    """A buffer as bytes, without a copy, and its length along the first axis."""
    verb = "written into" if write else "read from"
    if "torch" in sys.modules and isinstance(buffer, sys.modules["torch"].Tensor):
        tensor, torch = buffer.detach(), sys.modules["torch"]
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.is_contiguous():
            raise Mismatch(f"a tensor must be contiguous and on the CPU to be {verb}; .contiguous().cpu() makes one")
        return tensor.reshape(-1).view(torch.uint8).numpy(), tensor.shape[0] if tensor.dim() else 1
    if isinstance(buffer, Array):
        buffer = buffer.numpy("uint8") if buffer.element.torch_only else buffer.numpy()
    if not isinstance(buffer, np.ndarray):
        try:
            buffer = np.asarray(memoryview(buffer))
        except (TypeError, ValueError, BufferError):
            raise Mismatch(
                f"bytes can be {verb} an ndarray, a tensor or a buffer, not {type(buffer).__name__}"
            ) from None
    if buffer.dtype.hasobject:
        raise Mismatch("an ndarray of objects has no plain bytes")
    if not buffer.flags.c_contiguous:
        raise Mismatch(f"the buffer must be contiguous to be {verb}; numpy.ascontiguousarray() makes one")
    if write and not buffer.flags.writeable:
        raise NotPermitted("the buffer is read-only and cannot be written into")
    rows = buffer.shape[0] if buffer.ndim else 1
    return buffer.reshape(-1).view(np.uint8), rows
