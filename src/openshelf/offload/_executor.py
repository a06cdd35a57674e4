"""The executor: a plan's steps as a flat list of functions with their arguments, made once and run many times.

All that can be known before is done before: where a storage is, the tensors that are views of it, which form of an
operator to call. At run time nothing is looked up or decided. `follow` has refused plans that would run an operator on
what is not there.

Inputs are copied from the caller's tensors, outputs to new ones: for these two kinds Prefetch and Store are the
executor's own, all others are the Mover's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from openshelf.errors import BadInput
from openshelf.offload._call import View
from openshelf.offload._captured import Captured
from openshelf.offload._follow import follow
from openshelf.offload._kernels import Instruction, instruction
from openshelf.offload._stay_between import without
from openshelf.offload._steps import Detach, Prefetch, Run, Step, Store, Wait
from openshelf.offload._torch import torch


class Moves(Protocol):
    """Brings storages from their homes into the arena, and back: a Mover, or a Copier. The executor says when.

    At most one transfer of a storage is under way at a time. `reads` and `writes` count transfers that were begun: the
    executor compares them with its plan.
    """

    @property
    def reads(self) -> int: ...
    @property
    def writes(self) -> int: ...
    def begin_read(self, storage: int, offset: int) -> None: ...
    def wait(self, storage: int) -> None: ...
    def begin_write(self, storage: int, offset: int) -> None: ...
    def wait_written(self, storage: int) -> None: ...


class Executor:
    """Runs a captured program by a plan in an arena, a tensor of bytes that begins at a multiple of 64.

    `stays` are storages that are in the arena from call to call, and where they are.

    Not thread-safe: there is one arena. `step` is what one call of the model, or one step of training, is.
    """

    def __init__(
        self,
        captured: Captured,
        steps: Iterable[Step],
        arena: Any,
        mover: Moves,
        stays: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        if arena.dtype != torch.uint8 or arena.dim() != 1 or arena.data_ptr() % 64:
            raise BadInput("an arena is a tensor of bytes, of one dimension, that begins at a multiple of 64")
        self._captured, self._arena, self._mover, self._stays = captured, arena, mover, stays
        self._views: dict[tuple[int, View], Any] = {}
        self._inputs = {
            one.storage: one for inputs in captured.inputs for one in inputs.leaves if isinstance(one, View)
        }
        self._feeds: dict[int, Any] = {}
        self._handed: dict[int, Any] = {}
        self._reads = self._writes = 0
        self.begun = False  # a run, and it has not come to its end
        program = without(captured.program, stays) if stays else captured.program
        self._instructions = [made for one in follow(program, steps, arena.numel()) for made in self._made(*one)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result. For training: the loss, or a tuple of losses (and the gradients' norm, if clipped)."""
        return self.step([(args, kwargs)])

    def step(self, batches: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> Any:
        """As a call, with the arguments of each micro batch."""
        captured = self._captured
        if len(batches) != len(captured.inputs):
            raise BadInput(f"this was captured for {len(captured.inputs)} micro batches, got {len(batches)}")
        self._feeds.clear()
        for inputs, (args, kwargs) in zip(captured.inputs, batches, strict=True):
            self._feeds.update(inputs.tensors(args, kwargs))
        if captured.updates is not None:
            captured.updates.begin_step()
        self.begun = True
        self._run()
        self.begun = False
        leaves = [self._handed_out(leaf) if isinstance(leaf, View) else leaf for leaf in captured.outputs]
        self._handed.clear()
        return torch.utils._pytree.tree_unflatten(leaves, captured.tree)

    def _run(self) -> None:
        mover, done = self._mover, 0
        reads, writes = mover.reads, mover.writes
        with torch.no_grad():
            for function, args, kwargs in self._instructions:
                function(*args, **kwargs)
                done += 1
        ran = (done, mover.reads - reads, mover.writes - writes)
        planned = (len(self._instructions), self._reads, self._writes)
        assert ran == planned, f"(instructions, reads, writes): planned {planned}, ran {ran}"

    def _made(self, step: Step, at: dict[int, int], storing: bool) -> list[Instruction]:
        """The instructions of a step: usually one, none for what only matters to the plan."""
        storages, mover = self._captured.program.storages, self._mover
        if isinstance(step, Run):
            call = self._captured.calls[step.op]
            room = step.offsets[-1] if self._captured.program.ops[step.op].workspace else 0
            made = instruction(
                call,
                lambda view: self._tensor(view, self._stays[s] if (s := view.storage) in self._stays else at[s]),
                lambda dtype, count: self._scratch(dtype, count, room, self._captured.program.ops[step.op].workspace),
            )
            return [made] if made else []
        kind = storages[step.storage].kind
        if isinstance(step, Prefetch):
            if kind == "input":
                return [(self._feed, (step.storage, self._tensor(self._inputs[step.storage], step.offset)), {})]
            self._reads += 1
            return [(mover.begin_read, (step.storage, step.offset), {})]
        if isinstance(step, Wait):
            return [] if kind == "input" else [(mover.wait, (step.storage,), {})]
        if isinstance(step, Store):
            offset = at[step.storage]
            if kind == "output":
                return [(self._hand_out, (step.storage, offset), {})]
            self._writes += 1
            return [(mover.begin_write, (step.storage, offset), {})]
        assert isinstance(step, Detach)
        return [(mover.wait_written, (step.storage,), {})] if storing and kind != "output" else []

    def _tensor(self, view: View, offset: int) -> Any:
        """The tensor of a view of a storage at `offset` in the arena. Aligned: offsets are multiples of 64."""
        tensor = self._views.get((offset, view))
        if tensor is None:
            first = (self._arena.storage_offset() + offset) // view.dtype.itemsize + view.offset
            tensor = self._views[offset, view] = torch.empty(0, dtype=view.dtype)
            tensor.set_(self._arena.untyped_storage(), first, view.shape, view.strides)
        return tensor

    def _scratch(self, dtype: Any, count: int, offset: int, nbytes: int) -> list[Any]:
        if not count:
            return []
        length = nbytes // count // dtype.itemsize
        return [self._tensor(View(-1, dtype, (length,), (1,), one * length), offset) for one in range(count)]

    def _feed(self, storage: int, into: Any) -> None:
        into.copy_(self._feeds[storage])

    def _hand_out(self, storage: int, offset: int) -> None:
        nbytes = self._captured.program.storages[storage].nbytes
        self._handed[storage] = self._arena[offset : offset + nbytes].clone()

    def _handed_out(self, view: View) -> Any:
        return torch.as_strided(self._handed[view.storage].view(view.dtype), view.shape, view.strides, view.offset)
