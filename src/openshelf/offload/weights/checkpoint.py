"""Checkpoints that a run saves and a plan goes on from: packed files whose tensors have names of their own.

A weight is `weight:` and its name in the model. A state of the optimizer is `state:`, the parameter's name, a colon and
its own. `step` is the count of steps: a packed file that has it is a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openshelf.offload.program.call import View
from openshelf.offload.weights.format import PackedTensor
from openshelf.offload.weights.writer import Source

WEIGHT, STATE, STEP = "weight:", "state:", "step"  # how a checkpoint names its tensors


class Saved:
    """What a checkpoint has: storages once, however many tensors are in them, read when their turn comes."""

    def __init__(self, value: Callable[[int], Any]) -> None:
        self.sources: list[Source] = []
        self.tensors: dict[str, PackedTensor] = {}
        self._value, self._numbers = value, dict[int, int]()
        self._bytes: Any = None

    def add(self, name: str, storage: int, nbytes: int, view: View | None = None) -> None:
        number = self._numbers.setdefault(storage, len(self.sources))
        if number == len(self.sources):
            self.sources.append(Source(name, nbytes, lambda room, at: self._fill(storage, room, at)))
        if view is None:
            self.tensors[name] = PackedTensor(number, "uint8", (nbytes,), (1,))
        else:
            kind, offset = str(view.dtype).removeprefix("torch."), view.offset * view.dtype.itemsize
            self.tensors[name] = PackedTensor(number, kind, view.shape, view.strides, offset)

    def _fill(self, storage: int, room: memoryview, at: int) -> None:
        if at == 0:
            self._bytes = None  # one at a time
            self._bytes = self._value(storage).numpy()
        room[:] = self._bytes[at : at + len(room)]
