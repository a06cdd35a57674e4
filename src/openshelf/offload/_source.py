"""Where weights come from: a model in memory, a checkpoint, or what a run has saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openshelf.errors import BadInput, UnknownName
from openshelf.offload._captured import Captured
from openshelf.offload._pack import pack_shards
from openshelf.offload._packed import Packed
from openshelf.offload._packed_format import MAGIC
from openshelf.offload._runner import packed_state, state_of
from openshelf.offload._torch import torch


def packed_from(captured: Captured, source: Any, folder: Path | str | None) -> Packed:
    """The weights of a program: `source` is the model, or the path of a checkpoint or of a packed file."""
    if isinstance(source, torch.nn.Module):
        return packed_state(captured, state_of(source), folder)
    if not isinstance(source, str | Path):
        raise BadInput(f"weights come from the model or the path of a checkpoint, got {type(source).__name__}")
    path = Path(source)
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                return Packed.open(path)
    order: list[str] = []
    tied: dict[str, str] = {}
    for storage in captured.program.storages:
        names = captured.names.get(storage.index, ())
        if names and storage.index not in captured.values:
            order.append(names[0])
            tied |= dict.fromkeys(names[1:], names[0])
    try:
        return pack_shards(path, order, tied=tied, folder=folder)
    except UnknownName as error:
        raise UnknownName(f"{path} is not of the model that was planned: {error}") from error
