"""Homes in memory: the bytes of a model's own tensors, so that what a program changes is changed in the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openshelf.errors import BadInput
from openshelf.offload.capture.captured import Captured
from openshelf.offload.program.torch import bytes_of, torch


def homes_in(captured: Captured, model: Any) -> dict[int, Any]:
    """Storage -> tensor of bytes, for all that a program is given or keeps, but inputs and outputs.

    Weights and buffers are those of `model`, not copies; states of the optimizer and gradients are new.
    """
    tensors = dict(model.named_parameters(remove_duplicate=False))
    tensors.update(model.named_buffers(remove_duplicate=False))
    homes = {}
    for storage in captured.program.storages:
        if not (storage.given or storage.kept) or storage.kind in ("input", "output"):
            continue
        value, names = captured.values.get(storage.index), captured.names.get(storage.index, ())
        if names and (value is None or not tensors[names[0]].is_meta):
            home = bytes_of(tensors[names[0]])
        elif value is not None:
            home = bytes_of(value).clone()
        else:
            home = torch.zeros(storage.nbytes, dtype=torch.uint8)
        if home.numel() != storage.nbytes or home.is_meta:
            raise BadInput(
                f"{storage.name} has {home.numel()} bytes on {home.device}, captured were {storage.nbytes} bytes: give "
                "the model that was captured, with its weights in memory"
            )
        homes[storage.index] = home
    return homes


class Copier:
    """A mover whose homes are tensors of bytes in memory: it copies at once."""

    def __init__(self, arena: Any, homes: Mapping[int, Any]) -> None:
        self.arena, self.homes = arena, homes
        self.reads = self.writes = 0

    def begin_read(self, storage: int, offset: int) -> None:
        home = self.homes[storage]
        self.arena[offset : offset + home.numel()].copy_(home)
        self.reads += 1

    def wait(self, storage: int) -> None:
        pass

    def begin_write(self, storage: int, offset: int) -> None:
        home = self.homes[storage]
        home.copy_(self.arena[offset : offset + home.numel()])
        self.writes += 1

    def wait_written(self, storage: int) -> None:
        pass
