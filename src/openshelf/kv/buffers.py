"""Where a caller's tensors have their bytes: addresses of the pieces that native code copies.

A piece is contiguous over the tokens. One layer in the order k, t, h, d has two (all keys, all values); in the order
k, h, t, d two for every head. Tensors may be strided before the token axis, not from there on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from openshelf import _core
from openshelf._dtypes import torch_module
from openshelf._sizes import whole
from openshelf.errors import BadInput, Mismatch
from openshelf.kv.layout import Layout

Addresses = np.ndarray[Any, np.dtype[np.uint64]]


def is_tensor(array: Any) -> bool:
    return hasattr(array, "data_ptr")


def _is_array(given: Any) -> bool:
    return isinstance(getattr(given, "shape", None), tuple)  # as torch's sizes are; a class has no shape


def _place(array: Any) -> tuple[int, tuple[int, ...], int]:
    """Address, strides in bytes and size of an element."""
    if is_tensor(array):
        if array.device.type != "cpu":
            raise Mismatch(f"a tensor on {array.device} is out of the CPU's reach; copy it to pinned CPU memory first")
        size = array.element_size()
        return array.data_ptr(), tuple(stride * size for stride in array.stride()), size
    return _core.address_of(array), array.strides, array.itemsize


def _contiguous_from(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, axis: int) -> bool:
    if 0 in shape:
        return True
    expected = itemsize
    for size, stride in zip(reversed(shape[axis:]), reversed(strides[axis:]), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def pieces_of(array: Any, axis: int, write: bool) -> tuple[Addresses, Any]:
    """Addresses of the parts of an array that are contiguous from an axis on, shaped like the axes before it; and the
    array itself, or the copy that had to be made of it. What is to be written cannot be a copy."""
    address, strides, itemsize = _place(array)
    shape = tuple(array.shape)
    if write and not is_tensor(array) and not array.flags.writeable:
        raise Mismatch("the array to read into cannot be written; give a fresh one, np.empty()")
    if not _contiguous_from(shape, strides, itemsize, axis):
        if write:
            raise Mismatch(f"the array to read into must be contiguous from axis {axis} on, its strides are {strides}")
        array = array.contiguous() if is_tensor(array) else np.ascontiguousarray(array)
        address, strides, _ = _place(array)
    found = [address]  # a list: a layer has few pieces, and numpy would take longer
    for size, stride in zip(shape[:axis], strides[:axis], strict=True):
        found = [at + step for at in found for step in range(0, size * stride, stride)] if stride else found * size
    return np.array(found, np.uint64).reshape(shape[:axis]), array


def layer_pieces(layout: Layout, given: Any, tokens: int, write: bool, what: str) -> tuple[Addresses, list[Any]]:
    """Addresses of one layer of at least so many tokens, and what must be kept alive.

    `given`: an array, or a pair of keys and values."""
    axis = layout.token_axis
    if isinstance(given, tuple | list):
        if layout.latent or len(given) != 2:
            raise Mismatch(
                f"{what} is one array{'' if layout.latent else ', or a pair of keys and values'}; got {len(given)}"
            )
        at = layout.order.index("k")
        if at > axis:
            stack = torch_module().stack if is_tensor(given[0]) else np.stack
            if write:
                raise Mismatch(
                    f"in the order {layout.order!r} keys and values lie together: give one array, not a pair"
                )
            return layer_pieces(layout, stack(list(given), at), tokens, write, what)
        halves, kept = [], []
        for half in given:
            check(layout, half, tokens, what, at)
            found, alive = pieces_of(half, axis - 1, write)
            halves.append(found)
            kept.append(alive)
        return np.stack(halves, at).reshape(-1), kept
    check(layout, given, tokens, what, None)
    found, alive = pieces_of(given, axis, write)
    return found.reshape(-1), [alive]


def all_pieces(layout: Layout, given: Any, tokens: int, write: bool) -> tuple[Addresses, list[Any]]:
    """The same of all layers: one array, or one for every layer."""
    if isinstance(given, Sequence):
        if len(given) != layout.layers:
            raise Mismatch(f"the pool's layout has {layout.layers} layers, got {len(given)}")
        parts = [layer_pieces(layout, part, tokens, write, f"layer {at}") for at, part in enumerate(given)]
        return np.concatenate([found for found, _ in parts]), [alive for _, kept in parts for alive in kept]
    if not _is_array(given):
        raise Mismatch(f"KV cache is an array, a tensor or a list of them, one a layer; got {type(given).__name__}")
    if len(given.shape) and given.shape[0] != layout.layers:
        raise Mismatch(f"the pool's layout has {layout.layers} layers, got an array of {given.shape[0]}")
    check(layout, given[0] if len(given.shape) else given, tokens, "a layer", None)
    found, alive = pieces_of(given, layout.token_axis + 1, write)
    return found.reshape(-1), [alive]


class Pages(NamedTuple):
    """An engine's paged memory as native code takes it."""

    addresses: Addresses
    step: int
    table: np.ndarray[Any, np.dtype[np.uint32]]


def pages_of(layout: Layout, pages: Any, table: Any, axis: int, block_tokens: int, write: bool, what: str) -> Pages:
    """Where the pages of one layer are, one block each: `pages` is of Layout.layer_shape with an axis more that numbers
    them; `table` the numbers of those that are meant."""
    shape, axis = list(layout.layer_shape(block_tokens)), whole(axis, "axis")
    if not _is_array(pages) or len(pages.shape) != len(shape) + 1 or not 0 <= axis <= len(shape):
        came = tuple(pages.shape) if _is_array(pages) else type(pages).__name__
        raise Mismatch(f"{what}: pages are an array of {tuple(shape)} with an axis more, number {axis}; got {came}")
    page = pages[(slice(None),) * axis + (0,)]
    layout.check_array(page, tuple(shape), what)
    _, strides, itemsize = _place(pages)
    inner = [stride for at, stride in enumerate(strides) if at != axis]
    if not _contiguous_from(tuple(shape), tuple(inner), itemsize, layout.token_axis):
        raise Mismatch(f"{what}: a page must be contiguous over its tokens, its strides are {tuple(inner)}")
    try:
        numbers = np.asarray(table)
    except Exception as error:  # of any object's own __array__, too
        raise Mismatch(f"{what}: a table is a row of numbers of pages ({error})") from None
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise Mismatch(f"{what}: a table is a row of numbers of pages, got {numbers.dtype} of shape {numbers.shape}")
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < pages.shape[axis]:
        raise BadInput(
            f"{what}: the table names pages from {numbers.min()} to {numbers.max()}, there are {pages.shape[axis]}"
        )
    addresses, _ = pieces_of(page, layout.token_axis, write)
    return Pages(addresses.reshape(-1), strides[axis], np.ascontiguousarray(numbers, np.uint32))


def check(layout: Layout, array: Any, tokens: int, what: str, without: int | None) -> None:
    """Raises Mismatch unless it is one layer (without an axis: its keys, or its values) of at least so many tokens."""
    if not _is_array(array):
        raise Mismatch(f"{what} is an array or a tensor, got {type(array).__name__}")
    axis = layout.token_axis
    shape = list(layout.layer_shape(tokens))
    if without is not None:
        del shape[without]
        axis -= without < axis
    if len(array.shape) == len(shape) and array.shape[axis] > tokens:
        shape[axis] = array.shape[axis]
    layout.check_array(array, tuple(shape), what)


def _is_plain(tokens: np.ndarray[Any, np.dtype[Any]]) -> bool:
    dtype = tokens.dtype
    return tokens.ndim == 1 and dtype.char in "ilqILQ" and dtype.isnative and tokens.flags.c_contiguous


def token_array(tokens: Any) -> Any:
    """Tokens as native code takes them: a list of integers, or a contiguous array of them."""
    if type(tokens) is list or (type(tokens) is np.ndarray and _is_plain(tokens)):
        return tokens
    if is_tensor(tokens):
        tokens = tokens.numpy()
    try:
        array = np.asarray(tokens)
    except (TypeError, ValueError) as error:
        raise Mismatch(f"tokens are a row of integers, got {type(tokens).__name__} ({error})") from None
    if array.ndim == 0:
        raise Mismatch(f"tokens are a row of integers, got {tokens!r:.60}; a key of plain values is text or bytes")
    if array.ndim != 1:
        raise Mismatch(f"tokens are a row of integers, got an array of shape {array.shape}; one prompt at a time")
    if array.size == 0:
        return array.astype(np.uint32)
    if array.dtype.kind not in "iu":
        raise Mismatch(f"tokens are integers, got an array of {array.dtype}")
    if array.itemsize < 4:
        array = array.astype(np.uint32)
    return (
        array
        if array.dtype.isnative and array.flags.c_contiguous
        else np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    )


def blocks_in(tokens: int, block_tokens: int, what: str) -> int:
    tokens = whole(tokens, what)
    if tokens < 0 or tokens % block_tokens:
        raise BadInput(f"{what}={tokens} is not at the start of a block of {block_tokens} tokens")
    return tokens // block_tokens
