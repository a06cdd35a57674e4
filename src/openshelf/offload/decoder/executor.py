"""A plan for a context that grows, bound to an arena: run at any length of its bucket.

Tensors that grow are views whose ends are set anew for each length, which takes microseconds; only calls with a number
among their arguments that grows are made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from openshelf.offload.capture.affine import Line, at, varies
from openshelf.offload.decoder.plan import GrownPlan
from openshelf.offload.program.call import Call, View, views_of
from openshelf.offload.program.out_forms import Instruction, instruction
from openshelf.offload.program.steps import Run
from openshelf.offload.program.torch import torch
from openshelf.offload.run.instructions import Bound, Moves

aten: Any = torch.ops.aten


class GrownMoves(Moves, Protocol):
    """`append` writes keys or values that are new through to their home."""

    @property
    def appends(self) -> int: ...
    def append(self, storage: int, offset: int) -> None: ...


class GrownRun(Bound):
    """Runs a GrownPlan. `longest`: the tokens for which buffers were captured."""

    counted = Bound.counted | {"appends": "append"}

    def __init__(self, grown: GrownPlan, longest: int, arena: Any, mover: GrownMoves) -> None:
        super().__init__(grown.plan.program, arena, mover)
        self._append = mover.append
        self._growth, self._room, self._longest, self._stays = grown.growth, grown.room, longest, grown.stays
        (self._logits,) = (leaf for leaf in grown.growth.lengths.outputs if isinstance(leaf, View))
        self._views: dict[tuple[int, View], Any] = {}
        self._growing: list[tuple[Any, int, View]] = []  # tensors, with the offset of their storage
        self._anew: list[tuple[int, Call, Mapping[int, int]]] = []  # the instruction's number
        self._length = -1
        self._ids: Any = None
        self._handed: Any = None
        self._bind(grown.plan.steps)

    def run(self, length: int, ids: Any) -> Any:
        """Appends ids at a length; returns the logits of the last token."""
        if length != self._length:
            self._grow(length)
        self._ids = ids
        self._run()
        view, handed = at(self._logits, length), self._handed
        self._ids = self._handed = None
        return torch.as_strided(handed.view(view.dtype), view.shape, view.strides, view.offset)

    def close(self) -> None:
        super().close()
        del self._append
        for held in (self._views, self._growing, self._anew):
            held.clear()

    def _grow(self, length: int) -> None:
        for tensor, offset, view in self._growing:
            self._set(tensor, offset, at(view, length))
        for number, call, offsets in self._anew:
            self._instructions[number] = self._made(at(call, length), offsets)
        self._length = length

    def _called(self, step: Run, places: Mapping[int, int]) -> list[Instruction]:
        call, offsets = self._growth.lengths.calls[step.op], {**places, **self._stays}
        used = {view.storage: offsets[view.storage] for view in views_of((call.args, call.kwargs, call.makes))}
        if _numbers_grow(call) or (call.kernel is aten.embedding.default and varies(call)):  # that takes it apart
            self._anew.append((len(self._instructions), call, used))
            made = [_NOTHING]
        else:
            made = [self._made(call, used)]
        for number in call.changes:
            if number in self._growth.kv and (self._growth.writes_through or number in self._stays):
                made.append((self._append, (number, offsets[number]), {}))
        return made

    def _input(self, storage: int, offset: int) -> Instruction:
        return self._feed, (self._tensor(self._growth.lengths.inputs[0], offset),), {}

    def _output(self, storage: int, offset: int) -> Instruction:
        return self._hand_out, (storage, offset), {}

    def _output_again(self, storage: int, offset: int) -> Instruction:
        return self._take_back, (self._bytes(storage, offset),), {}

    def _made(self, call: Call, offsets: Mapping[int, int]) -> Instruction:
        return instruction(call, lambda view: self._tensor(view, offsets[view.storage]), _no_scratch) or _NOTHING

    def _tensor(self, view: View, offset: int) -> Any:
        tensor = self._views.get((offset, view))
        if tensor is None:
            tensor = torch.empty(0, dtype=view.dtype)
            if varies(view):
                self._growing.append((tensor, offset, view))
                self._views[offset, view] = tensor
            else:
                self._set(tensor, offset, view)
        return tensor

    def _set(self, tensor: Any, offset: int, view: View) -> None:
        if view.storage in self._growth.kv:
            view = self._in_this_room(view)
        first = (self._arena.storage_offset() + offset) // view.dtype.itemsize + view.offset
        tensor.set_(self._arena.untyped_storage(), first, view.shape, view.strides)

    def _in_this_room(self, view: View) -> View:
        """A view of keys or values whose rows are as long as they are in this arena, not as they were captured."""
        width = self._growth.shapes[self._growth.kv[view.storage]].width

        def moved(distance: int) -> int:
            rows, rest = divmod(distance, self._longest * width)
            return rows * self._room * width + rest

        return View(view.storage, view.dtype, view.shape, tuple(map(moved, view.strides)), moved(view.offset))

    def _feed(self, into: Any) -> None:
        into.copy_(self._ids)

    def _hand_out(self, storage: int, offset: int) -> None:
        self._handed = self._copied(storage, offset)

    def _take_back(self, into: Any) -> None:
        into.copy_(self._handed)


def _nothing() -> None:
    """Of a call that does nothing."""


def _no_scratch(dtype: Any, count: int) -> list[Any]:
    raise AssertionError("only updates have a workspace")


def _numbers_grow(call: Call) -> bool:
    """Whether a number that is no tensor's grows."""

    def grows(value: Any) -> bool:
        if isinstance(value, View):
            return False
        if isinstance(value, (list, tuple)) and not isinstance(value, Line):
            return any(grows(one) for one in value)
        if isinstance(value, dict):
            return any(grows(one) for one in value.values())
        return isinstance(value, Line)

    return grows((call.args, call.kwargs))


_NOTHING: Instruction = (_nothing, (), {})
