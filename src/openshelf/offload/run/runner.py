"""A Runner: a planned model with its weights at home and its arena taken, ready to be called.

Weights are in a packed file in the order of their use; what a program changes has room of its own, in a scratch file
that no name points to, so that a killed run leaves nothing behind. In host memory is what the plan put there.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from openshelf._core import DeviceArena
from openshelf._files import given_path
from openshelf.errors import BadInput, Closed, Mismatch
from openshelf.offload.capture.captured import Captured
from openshelf.offload.measure.operators import taken_outside
from openshelf.offload.move.homes import Homes
from openshelf.offload.move.mover import Mover, Traffic
from openshelf.offload.move.shared import Shared, shared_of
from openshelf.offload.planner.plan import Plan
from openshelf.offload.program.call import View
from openshelf.offload.program.out_forms import Instruction
from openshelf.offload.program.program import Storage
from openshelf.offload.program.steps import Store
from openshelf.offload.program.torch import arena_bytes, bytes_of, strided, torch
from openshelf.offload.run.arena import arena_of
from openshelf.offload.run.executor import Executor
from openshelf.offload.weights.checkpoint import STATE, STEP, WEIGHT, Saved
from openshelf.offload.weights.files import sectors
from openshelf.offload.weights.pack import pack_sources
from openshelf.offload.weights.packed import Packed

_STEPS = -1  # the number of steps that were done, as if it were a storage


def _is_batch(one: Any) -> bool:
    """(args, kwargs)"""
    pair = isinstance(one, list | tuple) and len(one) == 2
    return pair and isinstance(one[0], list | tuple) and isinstance(one[1], dict)


class Runner:
    """Calls a model by its plan: `run(*args, **kwargs)` is what the model would return.

    A call that fails leaves the run as it was, unless it changes weights, buffers or states: then these are lost, and
    the run is over. Calls of several threads come one after the other: there is one arena. For training a call is one
    step and returns the loss; `step` takes one batch for each micro batch. close() gives the memory and the files back;
    so does the end of the process.
    """

    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        packed: Packed,
        *,
        share: bool = False,
        folder: Path | str | None = None,
        arena: DeviceArena | None = None,
    ) -> None:
        self._alone = threading.RLock()
        captured = dataclasses.replace(captured, updates=copy.copy(captured.updates))  # each run counts its own steps
        self._captured, self._plan, self._packed = captured, plan, packed
        self._resumed, self._closed = STEP in packed.tensors, False
        if captured.updates is not None and self._resumed:
            captured.updates.step = int(self._homes_value(packed, STEP).view(torch.int64)[0])
        changed = {one for op in plan.moving.ops for one in op.changes}
        stored = {step.storage for step in plan.steps if isinstance(step, Store)}
        self._homes = Homes(folder, _dram(plan, stored))
        shared = shared_of(packed) if share else None
        for storage in plan.program.storages:
            if _has_home(storage, stored):
                self._find_home(storage, storage.index in changed, shared)
        self._homes.load()
        self._arena = arena or arena_of(plan.peak)
        self._mover = Mover(self._homes, self._arena)
        self._executor: Executor | None = None
        with torch.inference_mode(False):  # tensors made in that mode could not be used outside of it
            self._bytes = arena_bytes(self._arena)
            self.rebind(captured)
        for index, offset in plan.stays.items():
            self._mover.begin_read(index, offset)
        for index in plan.stays:
            self._mover.wait(index)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.step([(args, kwargs)])

    def step(self, batches: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> Any:
        """One step, with (args, kwargs) of every micro batch."""
        if not isinstance(batches, list | tuple) or not all(map(_is_batch, batches)):
            raise BadInput("step() takes a list with (args, kwargs) of each micro batch, such as [((), {'x': x})]")
        with self._open() as executor:
            self._executor = None
            try:
                return executor.step(batches)
            finally:
                if executor.begun and not self.changes_state:
                    self._mover.abandon()
                    executor.begun = False
                if executor.begun:
                    executor.close()  # its state is lost
                else:
                    self._executor = executor

    def outside(self, batches: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> int:
        """One step, slowly: the most bytes that torch took beside the arena while one operator ran."""
        most = 0

        def run(one: Instruction) -> None:
            nonlocal most
            most = max(most, taken_outside(one))

        with self._open() as executor, executor.watched(run):
            self.step(batches)
        return most

    def rebind(self, captured: Captured) -> None:
        """Calls are these from now on: the same program, which the plan has room for, at another length."""
        self._executor = Executor(captured, self._plan.steps, self._bytes, self._mover, self._plan.stays)

    def state_dict(self) -> dict[str, Any]:
        """Copies of the parameters and buffers that a checkpoint has, as they are now."""
        with self._open():
            there = set(self._homes) - self._captured.values.keys()
            return {name: self._tensor(view) for name, view in self._captured.views.items() if view.storage in there}

    def gradients(self) -> dict[str, Any]:
        """Copies of the gradients of the last step, of a plan for training without an optimizer."""
        with self._open():
            return {name: self._tensor(view) for name, view in self._captured.gradients.items()}

    def save(self, path: Path | str) -> None:
        """A checkpoint that `plan.load(path)` goes on from: weights, states of the optimizer, count of steps."""
        path = given_path(path, "a checkpoint")
        with self._open():
            changed = {one for op in self._plan.program.ops for one in op.changes}
            wanted = set(self._homes) - (self._captured.values.keys() - changed)  # others are not in checkpoints
            saved = Saved(self._value)
            for name, view in self._captured.views.items():
                if view.storage in wanted:
                    saved.add(WEIGHT + name, view.storage, self._plan.program.storages[view.storage].nbytes, view)
            for storage, (name, state) in self._captured.states.items():
                saved.add(f"{STATE}{name}:{state}", storage, self._plan.program.storages[storage].nbytes)
            saved.add(STEP, _STEPS, 8)
            pack_sources(saved.sources, saved.tensors, folder=path.parent, name=path.name)

    @property
    def changes_state(self) -> bool:
        """Whether calls change weights, buffers or states: what this run has of them is not what it was given."""
        return bool(self._changed())

    def changed_state(self) -> dict[str, Any]:
        """Copies of the parameters and buffers that calls change; those that share a storage still do."""
        with self._open():
            values = {one: self._value(one).clone() for one in self._changed() if one in self._captured.names}
            views = {name: view for name, view in self._captured.views.items() if view.storage in values}
            return {name: self._tensor(view, values[view.storage]) for name, view in views.items()}

    def _changed(self) -> set[int]:
        changed = {one for op in self._plan.program.ops for one in op.changes}
        return {one.index for one in self._plan.program.storages if one.given and one.kept and one.index in changed}

    def lanes(self) -> dict[str, Traffic]:
        """What each lane has moved, and how long it was busy."""
        with self._open():
            return self._mover.lanes()

    def close(self) -> None:
        """Ends transfers and gives back memory and files; a second call does nothing."""
        with self._alone:
            if self._closed:
                return
            self._closed, executor, self._executor = True, self._executor, None
            try:
                self._mover.close()
            finally:
                if executor is not None:
                    executor.close()
                del self._bytes, self._arena, self._mover, self._homes, self._packed

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _open(self) -> Iterator[Executor]:
        """No call, and no close(), is under way in here, and no step was left half done."""
        with self._alone:
            if self._executor is None:
                raise Closed("this run was closed, or failed half-way so that its state is lost: load the plan again")
            yield self._executor

    def _find_home(self, storage: Storage, changed: bool, shared: Shared | None) -> None:
        captured, homes, tier = self._captured, self._homes, self._plan.homes[storage.index]
        index, name = storage.index, self._name_of(storage)
        if index in captured.values and name not in self._packed.tensors:
            homes.room(index, storage.name, storage.nbytes, tier)
            homes.put(index, memoryview(bytes_of(captured.values[index]).numpy()))
        elif storage.kind == "input":
            homes.room(index, storage.name, storage.nbytes, tier)
        elif not storage.given or (index in captured.states and name not in self._packed.tensors):
            steps = captured.updates.step if captured.updates is not None and self._resumed else 0
            if storage.given and steps:
                raise Mismatch(
                    f"{self._packed.path} was saved after {steps} steps without {name.removeprefix(STATE)!r}: it is of "
                    "another optimizer than the plan's"
                )
            homes.room(index, storage.name, storage.nbytes, tier)
            if storage.given:
                homes.put(index, None)
        else:
            there = self._packed.storage_of(name)
            if there.nbytes != storage.nbytes:
                raise Mismatch(
                    f"{storage.name} has {there.nbytes} bytes in {self._packed.path}, the plan was made for "
                    f"{storage.nbytes}: the model has changed since, make a new plan"
                )
            if changed and tier == "dram":
                homes.room(index, storage.name, storage.nbytes, tier)
                homes.put(index, memoryview(self._homes_value(self._packed, name).numpy()))
            elif shared is not None and not changed:
                homes.shared(index, shared, name)
            else:
                homes.packed(index, self._packed, name, tier)
                if changed:
                    homes.room(index, storage.name, storage.nbytes, tier)

    def _name_of(self, storage: Storage) -> str:
        """Its name in the packed file."""
        if storage.index in self._captured.states:
            return STATE + ":".join(self._captured.states[storage.index])
        name = next(iter(self._captured.names.get(storage.index, ())), storage.name)
        return WEIGHT + name if self._resumed else name

    @staticmethod
    def _homes_value(packed: Packed, name: str) -> Any:
        homes = Homes()
        homes.packed(0, packed, name)
        return torch.from_numpy(homes.value(0))

    def _tensor(self, view: View, value: Any = None) -> Any:
        found = self._value(view.storage) if value is None else value
        return strided(found, view.dtype, view.shape, view.strides, view.offset)

    def _value(self, storage: int) -> Any:
        """A copy of its bytes as they are now: in the arena if it stays there, else at home."""
        if storage == _STEPS:
            updates = self._captured.updates
            return torch.tensor([0 if updates is None else updates.step]).view(torch.uint8)
        offset = self._plan.stays.get(storage)
        if offset is None:
            return torch.from_numpy(self._homes.value(storage))
        return self._bytes[offset : offset + self._plan.program.storages[storage].nbytes].clone()


def _dram(plan: Plan, stored: set[int]) -> int:
    """Bytes of host memory for the homes that the plan puts there."""
    return sum(
        sectors(storage.nbytes)
        for storage, home in zip(plan.program.storages, plan.homes, strict=True)
        if home == "dram" and _has_home(storage, stored)
    )


def _has_home(storage: Storage, stored: set[int]) -> bool:
    """Inputs have one if they are changed, and leave the arena: they come from the caller, outputs go there."""
    return storage.kind != "output" and (storage.index in stored or (storage.given and storage.kind != "input"))
