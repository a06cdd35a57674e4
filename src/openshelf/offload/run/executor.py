"""The executor of a captured program: one call of a model, or one step of training, by a plan, at any length.

A program of one length is one that does not grow. Where numbers of a program are Curves of a length, `grow` says which
length it is from now on. Tensors that grow are views whose ends it sets anew, which takes microseconds; it makes only
those calls anew that have a number among their arguments which grows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from openshelf.errors import BadInput
from openshelf.offload.capture.affine import Curve, at, varies
from openshelf.offload.capture.captured import Captured
from openshelf.offload.program.call import Call, View, views_of
from openshelf.offload.program.out_forms import Instruction, instruction
from openshelf.offload.program.steps import Step
from openshelf.offload.program.torch import strided, torch
from openshelf.offload.run.instructions import Appends, Instructions, Moves

aten: Any = torch.ops.aten
Tensors = dict[tuple[int, View], Any]  # by the offset of a storage and the view of it
Place = Callable[[int], int]  # where a storage is


class Executor(Instructions):
    """Runs a captured program by a plan. `stays` are storages that are in the arena from call to call, and where.

    A program that `grows` has Curves among its numbers, and has to `grow` before it runs. `laid_out` says how a view
    lies in this arena, if not as it was captured. What operators add to the storages in `appended` is written through
    to their homes at once, by a mover that Appends.
    """

    def __init__(
        self,
        captured: Captured,
        steps: Iterable[Step],
        arena: Any,
        mover: Moves,
        stays: Mapping[int, int] = MappingProxyType({}),
        *,
        grows: bool = False,
        laid_out: Callable[[View], View] | None = None,
        appended: Collection[int] = (),
    ) -> None:
        super().__init__(captured.program, arena, mover)
        self._captured, self._stays = captured, stays
        self._grows, self._laid_out, self._appended = grows, laid_out, appended
        self._views: Tensors = {}
        self._rooms: dict[tuple[int, int], Any] = {}
        self._growing: list[tuple[Any, Any, View]] = []  # tensors, with the room that they are views of
        self._anew: list[tuple[int, int, Place, int]] = []  # instruction, operator, where storages are, workspace
        self._length: int | None = None
        self._outputs = captured.outputs
        self._inputs = {
            one.storage: one for inputs in captured.inputs for one in inputs.leaves if isinstance(one, View)
        }
        self._feeds: Mapping[int, Any] = {}
        self._handed: dict[int, Any] = {}
        self.begun = False  # a run, and it has not come to its end
        self._bind(steps)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result. For training: the loss, or a tuple of losses (and the gradients' norm, if clipped)."""
        return self.step([(args, kwargs)])

    def step(self, batches: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> Any:
        """As a call, with the arguments of each micro batch."""
        captured = self._captured
        if len(batches) != len(captured.inputs):
            raise BadInput(f"this was captured for {len(captured.inputs)} micro batches, got {len(batches)}")
        given, fed = [], {}
        for inputs, (args, kwargs) in zip(captured.inputs, batches, strict=True):
            flat, feeds = inputs.taken(args, kwargs)
            given.append(flat)
            fed.update(feeds)
        if captured.updates is not None:
            captured.updates.begin_step()
        leaves = self.run(fed)
        assert captured.outcome is not None
        return captured.outcome.put_together(leaves, given[0])

    def run(self, feeds: Mapping[int, Any]) -> list[Any]:
        """Runs the program on tensors for its input storages; returns the leaves of its outputs."""
        self._feeds = feeds
        self.begun = True
        self._run()
        self.begun = False
        leaves = [self._handed_out(leaf) if isinstance(leaf, View) else leaf for leaf in self._outputs]
        self._handed.clear()
        self._feeds = {}
        return leaves

    def grow(self, length: int) -> None:
        """The program is at this length from now on."""
        if length == self._length:
            return
        for tensor, room, view in self._growing:
            self._set(tensor, room, at(view, length))
        for number, op, place, workspace in self._anew:
            call = at(self._captured.calls[op], length)
            # Its tensors are of this length only, so they are not kept with the others.
            self._instructions[number] = self._made(call, op, place, workspace, {}) or _NOTHING
        self._outputs = at(self._captured.outputs, length)
        self._length = length

    @contextlib.contextmanager
    def watched(self, run: Callable[[Instruction], None]) -> Iterator[None]:
        """While in here `run` is given each instruction, to run it, but for copies of inputs and outputs."""
        plain = self._instructions
        ours = (self._feed, self._hand_out)
        self._instructions = [one if one[0] in ours else (run, (one,), {}) for one in plain]
        try:
            yield
        finally:
            self._instructions = plain

    def close(self) -> None:
        super().close()
        for held in (self._views, self._rooms, self._growing, self._anew, self._handed):
            held.clear()
        self._feeds = {}

    def _called(self, op: int, places: Mapping[int, int], workspace: int) -> list[Instruction]:
        call, stays = self._captured.calls[op], self._stays
        made: list[Instruction] = []

        def place(storage: int) -> int:
            return stays[storage] if storage in stays else places[storage]

        if self._grows and _takes_numbers(call):
            used = {view.storage: place(view.storage) for view in views_of((call.args, call.kwargs, call.makes))}
            self._anew.append((len(self._instructions), op, used.__getitem__, workspace))
            made.append(_NOTHING)
        elif (found := self._made(call, op, place, workspace, self._views)) is not None:
            made.append(found)
        for storage in call.changes if self._appended else ():
            if storage in self._appended:
                assert isinstance(self._mover, Appends)
                made.append((self._mover.append, (storage, place(storage)), {}))
        return made

    def _made(self, call: Call, op: int, place: Place, workspace: int, known: Tensors) -> Instruction | None:
        nbytes = self._program.ops[op].workspace
        return instruction(
            call,
            lambda view: self._tensor(view, place(view.storage), known),
            lambda dtype, count: self._scratch(dtype, count, workspace, nbytes),
        )

    def _input(self, storage: int, offset: int) -> Instruction:
        return self._feed, (storage, self._tensor(self._inputs[storage], offset, self._views)), {}

    def _output(self, storage: int, offset: int) -> Instruction:
        return self._hand_out, (storage, offset), {}

    def _output_again(self, storage: int, offset: int) -> Instruction:
        return self._take_back, (storage, self._bytes(storage, offset)), {}

    def _tensor(self, view: View, offset: int, known: Tensors) -> Any:
        """The tensor of a view of a storage at `offset` in the arena. Aligned: offsets are multiples of 64."""
        tensor = known.get((offset, view))
        if tensor is None:
            tensor = known[offset, view] = torch.empty(0, dtype=view.dtype)
            room = self._room(view.storage, offset)
            if self._grows and varies(view):
                self._growing.append((tensor, room, view))
            else:
                self._set(tensor, room, view)
        return tensor

    def _set(self, tensor: Any, room: Any, view: View) -> None:
        if self._laid_out is not None:
            view = self._laid_out(view)
        tensor.set_(room, view.offset, view.shape, view.strides)

    def _room(self, storage: int, offset: int) -> Any:
        """The bytes of a storage, to torch a storage of their own: some kernels (linalg_qr) ask whether two tensors
        share one, and would take all of an arena for aliases. It cannot be resized."""
        room = self._rooms.get((offset, storage))
        if room is None:
            end = offset + self._program.storages[storage].nbytes if storage >= 0 else self._arena.numel()
            bytes_there = torch.from_numpy(self._arena.numpy()[offset:end])
            room = self._rooms[offset, storage] = bytes_there.untyped_storage()
        return room

    def _scratch(self, dtype: Any, count: int, offset: int, nbytes: int) -> list[Any]:
        if not count:
            return []
        length, begin = nbytes // count // dtype.itemsize, max(offset, 0)
        views = [View(-1, dtype, (length,), (1,), one * length) for one in range(count)]
        return [self._tensor(view, begin, self._views) for view in views]

    def _feed(self, storage: int, into: Any) -> None:
        into.copy_(self._feeds[storage])

    def _hand_out(self, storage: int, offset: int) -> None:
        self._handed[storage] = self._copied(storage, offset)

    def _take_back(self, storage: int, into: Any) -> None:
        into.copy_(self._handed[storage])

    def _handed_out(self, view: View) -> Any:
        return strided(self._handed[view.storage], view.dtype, view.shape, view.strides, view.offset)


def _takes_numbers(call: Call) -> bool:
    """Whether an instruction is good for one length only: it takes a number that grows, or a view of a view."""

    def grows(value: Any) -> bool:
        if isinstance(value, View):
            return False
        if isinstance(value, (list, tuple)) and not isinstance(value, Curve):
            return any(grows(one) for one in value)
        if isinstance(value, dict):
            return any(grows(one) for one in value.values())
        return isinstance(value, Curve)

    taken_apart = call.kernel is aten.embedding.default and varies(call)  # rows and indices are flattened
    return taken_apart or grows((call.args, call.kwargs))


def _nothing() -> None:
    """Of a call that does nothing, or that has no length yet."""


_NOTHING: Instruction = (_nothing, (), {})
