"""Checks of what is loaded, before anything changes: state dicts, and checkpoints of torch.distributed.

TorchRec and torch look at sizes while they load, so a mistake at the end leaves a model that is half new. They convert
dtypes, and read files one after the other.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from openshelf.adapters.torchrec.extra import torch
from openshelf.errors import BadInput, Mismatch, OpenshelfError, UnknownName


def check_state(state: dict[str, Any], key: str, config: Any, shards: list[Any], *, strict: bool) -> None:
    """Whether a state dict's rows of a table fit: a whole tensor, or shards as they are here."""
    if key not in state:
        if strict:
            raise UnknownName(f"the state dict has no {key!r}: nothing was changed; pass strict=False to keep its rows")
        return
    given = state[key]
    expected = (config.num_embeddings, config.embedding_dim)
    kind = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}[config.data_type.name]
    if tuple(given.size()) != expected or given.dtype != kind:
        raise Mismatch(
            f"{key!r} is {given.dtype} of the shape {tuple(given.size())}, the model's table {kind} of {expected}: "
            "nothing was changed"
        )
    if not hasattr(given, "local_shards"):
        return
    found = [(one.metadata.shard_offsets, one.metadata.shard_sizes) for one in given.local_shards()]
    mine = [(one.metadata.shard_offsets, one.metadata.shard_sizes) for one in shards]
    if found != mine:
        raise Mismatch(
            f"{key!r} has the shards {found} (offsets and sizes) in this process, the model has {mine}: nothing was "
            "changed; load it from a checkpoint of torch.distributed, which shards anew"
        )


def load_checkpoint(state_dict: dict[str, Any], path: str | os.PathLike[str], *, process_group: Any = None) -> None:
    """As torch.distributed.checkpoint.load from a directory into the tensors of `state_dict`, after a look at it all.

    Called by all processes of the group. UnknownName, Mismatch or BadInput in all of them, and nothing is changed, if a
    tensor, a shard or a file is missing, or if a shape or a dtype differs.
    """
    checkpoint: Any = torch.distributed.checkpoint
    reader = checkpoint.FileSystemReader(path)
    error: OpenshelfError | None = None
    try:
        _check(state_dict, reader, Path(path))
    except OpenshelfError as found:
        error = found
    if torch.distributed.is_initialized():
        errors: list[OpenshelfError | None] = [None] * torch.distributed.get_world_size(process_group)
        torch.distributed.all_gather_object(errors, error, group=process_group)
        error = error or next((one for one in errors if one is not None), None)
    if error is not None:
        raise error
    checkpoint.load(state_dict, storage_reader=reader, process_group=process_group)


def _check(state_dict: dict[str, Any], reader: Any, path: Path) -> None:
    if not os.path.isfile(path / ".metadata"):
        raise UnknownName(f"there is no checkpoint in {path}: it has no file .metadata")
    metadata = reader.read_metadata()
    known, places = metadata.state_dict_metadata, metadata.storage_data
    sizes = {one.relative_path: 0 for one in places.values()}
    for index, place in places.items():
        file = path / place.relative_path
        if not os.path.isfile(file):
            raise BadInput(f"the checkpoint {path} has no file {place.relative_path}, which holds {index.fqn!r}")
        sizes[place.relative_path] = sizes[place.relative_path] or file.stat().st_size
        if place.offset + place.length > sizes[place.relative_path]:
            raise BadInput(f"{file} ends before {index.fqn!r} does: {place.offset + place.length} bytes are needed")
    flat, _ = torch.distributed.checkpoint._nested_dict.flatten_state_dict(state_dict)
    for key, value in flat.items():
        if key not in known:
            raise UnknownName(f"the checkpoint {path} has no {key!r}")
        if isinstance(value, torch.Tensor):
            _check_tensor(key, value, known[key], {index.offset for index in places if index.fqn == key}, path)


def _check_tensor(key: str, value: Any, facts: Any, stored: set[Any], path: Path) -> None:
    size, dtype = tuple(getattr(facts, "size", ())), getattr(getattr(facts, "properties", None), "dtype", None)
    if size != tuple(value.size()) or dtype != value.dtype:
        raise Mismatch(
            f"{key!r} of the checkpoint {path} is {dtype} of the shape {size}, the model's {value.dtype} of the shape "
            f"{tuple(value.size())}"
        )
    missing = [tuple(one.offsets) for one in facts.chunks if one.offsets not in stored and None not in stored]
    there = sum(math.prod(one.sizes) for one in facts.chunks)
    if missing or there != math.prod(size):
        raise BadInput(
            f"{key!r} of the checkpoint {path} lacks shards: {there} of {math.prod(size)} numbers, {missing}"
        )
