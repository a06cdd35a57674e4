"""Tensors that are not there yet: what would be computed of a checkpoint's tensors, a piece at a time.

transformers turns what a checkpoint has (an expert in three tensors) into what its models have (all experts in one) by
functions of torch: stack, cat, transpose. Called with Lazy tensors, these compute nothing: what is to be done is noted.
A piece of the result is made of pieces of what it is made of (`pieces.py`), so that of a layer's experts, say, never
more than some megabytes are in memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from openshelf.errors import BadInput
from openshelf.offload.program.torch import torch
from openshelf.offload.weights.pieces import Box, Made, Part, cut

BLOCK = 8 << 20  # bytes of a result that are made at once

_tree: Any = torch.utils._pytree


class Lazy(torch.Tensor):  # type: ignore[misc]  # torch is not typed here
    """A tensor without memory that knows how it would be made."""

    part: Part
    form: Any  # the same on the meta device

    @staticmethod
    def __new__(cls, part: Part, form: Any) -> Lazy:
        made: Lazy = torch.Tensor._make_wrapper_subclass(
            cls, form.shape, strides=form.stride(), storage_offset=form.storage_offset(), dtype=form.dtype, device="cpu"
        )
        made.part, made.form = part, form
        return made

    def __repr__(self) -> str:
        return f"Lazy({self.dtype}, {tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable:
            raise BadInput(f"{func} changes a tensor in place: weights that are made so cannot be streamed")
        given = (args, {name: one for name, one in (kwargs or {}).items() if name != "device"})
        args, kwargs = _tree.tree_map(_on_meta, given)
        made = func(*args, **kwargs)
        args, kwargs = _tree.tree_map(lambda one: one.part if isinstance(one, Lazy) else one, given)
        if isinstance(made, (list, tuple)):
            return type(made)(cls(Made(func, args, kwargs, at, tuple(one.shape)), one) for at, one in enumerate(made))
        return cls(Made(func, args, kwargs, None, tuple(made.shape)), made)

    def filler(self) -> Callable[[memoryview, int], None]:
        """What writes the bytes from a place on into a buffer, one place after the other."""
        first, held = 0, memoryview(b"")

        def fill(room: memoryview, at: int) -> None:
            nonlocal first, held
            done = 0
            while done < len(room):
                if not first <= at + done < first + len(held):
                    held = memoryview(b"")  # one at a time
                    first, box = self._block(at + done)
                    held = memoryview(self.part.piece(box).contiguous().reshape(-1).view(torch.uint8).numpy())
                here = at + done - first
                count = min(len(room) - done, len(held) - here)
                room[done : done + count] = held[here : here + count]
                done += count

        return fill

    def _block(self, at: int) -> tuple[int, Box]:
        """Where the block begins that this byte is in, and which piece of the tensor it is."""
        box: list[tuple[int, int]] = []
        begin = 0
        for dim, length in enumerate(self.shape):
            row = math.prod(self.shape[dim + 1 :]) * self.dtype.itemsize
            count = max(1, BLOCK // row)
            index = (at - begin) // row // count * count
            box.append((index, min(count, length - index)))
            begin += index * row
            if row <= BLOCK:
                return begin, (*box, *((0, other) for other in self.shape[dim + 1 :]))
        return begin, tuple(box)


def _on_meta(value: Any) -> Any:
    if isinstance(value, Lazy):
        return value.form
    return value.to("meta") if isinstance(value, torch.Tensor) else value


@dataclasses.dataclass
class Last:
    """The part of a file that was read last, where only some of it was wanted: the rest is wanted next."""

    key: Any = None
    value: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class Stored:
    """A tensor of a file; `read(place, count)` gives bytes of it as a tensor of torch.uint8."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    read: Callable[[int, int], Any]
    last: Last

    def piece(self, box: Box) -> Any:
        # What is read begins and ends with whole rows; the rest of the box is cut out of it.
        first = next((dim for dim, (_, count) in enumerate(box) if count != 1), max(len(box) - 1, 0))
        begin = sum(at * math.prod(self.shape[dim + 1 :]) for dim, (at, _) in enumerate(box[: first + 1]))
        inner = tuple((0, one) for one in self.shape[first + 1 :])
        lengths = [count for _, count in (*box[: first + 1], *inner)]
        found = self._read(begin, math.prod(lengths), again=box[first + 1 :] != inner).reshape(lengths)
        return cut(found, (*((0, one) for one in lengths[: first + 1]), *box[first + 1 :]))

    def _read(self, begin: int, count: int, *, again: bool) -> Any:
        if self.last.key != (self.name, begin, count):
            self.last.key, self.last.value = None, None  # one at a time
            found = self.read(begin * self.dtype.itemsize, count * self.dtype.itemsize).view(self.dtype)
            if not again:
                return found
            self.last.key, self.last.value = (self.name, begin, count), found
        return self.last.value

    def said(self) -> Any:
        return self.name


def stored(name: str, dtype: str, shape: tuple[int, ...], read: Callable[[int, int], Any], last: Last) -> Lazy:
    """A tensor of a file as a Lazy one."""
    form = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
    return Lazy(Stored(name, form.dtype, shape, read, last), form)
