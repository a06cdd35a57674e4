"""The executor of a captured program: one call of a model, or one step of training, by a plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from openshelf.errors import BadInput
from openshelf.offload.capture.captured import Captured
from openshelf.offload.program.call import View
from openshelf.offload.program.out_forms import Instruction, instruction
from openshelf.offload.program.steps import Run, Step
from openshelf.offload.program.torch import torch
from openshelf.offload.run.instructions import Bound, Moves


class Executor(Bound):
    """Runs a captured program by a plan. `stays` are storages that are in the arena from call to call, and where."""

    def __init__(
        self,
        captured: Captured,
        steps: Iterable[Step],
        arena: Any,
        mover: Moves,
        stays: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        super().__init__(captured.program, arena, mover)
        self._captured, self._stays = captured, stays
        self._views: dict[tuple[int, View], Any] = {}
        self._rooms: dict[tuple[int, int], Any] = {}
        self._inputs = {
            one.storage: one for inputs in captured.inputs for one in inputs.leaves if isinstance(one, View)
        }
        self._feeds: dict[int, Any] = {}
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
        self._feeds.clear()
        given = []
        for inputs, (args, kwargs) in zip(captured.inputs, batches, strict=True):
            flat, feeds = inputs.taken(args, kwargs)
            given.append(flat)
            self._feeds.update(feeds)
        if captured.updates is not None:
            captured.updates.begin_step()
        self.begun = True
        self._run()
        self.begun = False
        leaves = [self._handed_out(leaf) if isinstance(leaf, View) else leaf for leaf in captured.outputs]
        self._handed.clear()
        self._feeds.clear()
        assert captured.outcome is not None
        return captured.outcome.put_together(leaves, given[0])

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
        for held in (self._views, self._rooms, self._feeds, self._handed):
            held.clear()

    def _called(self, step: Run, places: Mapping[int, int]) -> list[Instruction]:
        room, stays = self._program.ops[step.op].workspace, self._stays
        made = instruction(
            self._captured.calls[step.op],
            lambda view: self._tensor(view, stays[s] if (s := view.storage) in stays else places[s]),
            lambda dtype, count: self._scratch(dtype, count, step.offsets[-1] if room else 0, room),
        )
        return [made] if made else []

    def _input(self, storage: int, offset: int) -> Instruction:
        return self._feed, (storage, self._tensor(self._inputs[storage], offset)), {}

    def _output(self, storage: int, offset: int) -> Instruction:
        return self._hand_out, (storage, offset), {}

    def _output_again(self, storage: int, offset: int) -> Instruction:
        return self._take_back, (storage, self._bytes(storage, offset)), {}

    def _tensor(self, view: View, offset: int) -> Any:
        """The tensor of a view of a storage at `offset` in the arena. Aligned: offsets are multiples of 64."""
        tensor = self._views.get((offset, view))
        if tensor is None:
            tensor = self._views[offset, view] = torch.empty(0, dtype=view.dtype)
            tensor.set_(self._room(view, offset).untyped_storage(), view.offset, view.shape, view.strides)
        return tensor

    def _room(self, view: View, offset: int) -> Any:
        """The bytes of a view's storage, to torch a storage of their own: some kernels (linalg_qr) ask whether two
        tensors share one, and would take all of an arena for aliases. It cannot be resized."""
        room = self._rooms.get((offset, view.storage))
        if room is None:
            known = self._captured.program.storages
            end = offset + known[view.storage].nbytes if view.storage >= 0 else self._arena.numel()
            room = self._rooms[offset, view.storage] = torch.from_numpy(self._arena.numpy()[offset:end])
        return room

    def _scratch(self, dtype: Any, count: int, offset: int, nbytes: int) -> list[Any]:
        if not count:
            return []
        length = nbytes // count // dtype.itemsize
        return [self._tensor(View(-1, dtype, (length,), (1,), one * length), offset) for one in range(count)]

    def _feed(self, storage: int, into: Any) -> None:
        into.copy_(self._feeds[storage])

    def _hand_out(self, storage: int, offset: int) -> None:
        self._handed[storage] = self._copied(storage, offset)

    def _take_back(self, storage: int, into: Any) -> None:
        into.copy_(self._handed[storage])

    def _handed_out(self, view: View) -> Any:
        return torch.as_strided(self._handed[view.storage].view(view.dtype), view.shape, view.strides, view.offset)
