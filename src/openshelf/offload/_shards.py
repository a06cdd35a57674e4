"""Safetensors shards: which tensor is at which place of which file. The format is read directly: 8 bytes, JSON, data.

Nothing is loaded: a checkpoint may be larger than memory.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

from openshelf.errors import BadInput, Corrupt

_ITEMS = {
    "BOOL": ("bool", 1), "U8": ("uint8", 1), "I8": ("int8", 1), "I16": ("int16", 2), "U16": ("uint16", 2),
    "F16": ("float16", 2), "BF16": ("bfloat16", 2), "I32": ("int32", 4), "U32": ("uint32", 4), "F32": ("float32", 4),
    "I64": ("int64", 8), "U64": ("uint64", 8), "F64": ("float64", 8), "C64": ("complex64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1), "F8_E8M0": ("float8_e8m0fnu", 1),
}  # fmt: skip
_LONGEST_HEADER = 100_000_000  # as the safetensors library


@dataclasses.dataclass(frozen=True)
class ShardTensor:
    file: Path
    at: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


def shard_files(source: Path) -> list[Path]:
    """The shards of a checkpoint: a .safetensors file, an index of several, or a folder with either."""
    if source.is_dir():
        for name in ("model.safetensors.index.json", "model.safetensors"):
            if (source / name).exists():
                return shard_files(source / name)
        raise BadInput(f"{source} has neither model.safetensors nor model.safetensors.index.json")
    if source.name.endswith(".index.json"):
        weights = _json(source.read_bytes(), source).get("weight_map")
        if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
            raise Corrupt(f"{source} has no weight_map from the names of weights to those of files")
        names = set(weights.values())
        files = [source.parent / name for name in sorted(names)]
    else:
        files = [source]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise BadInput(f"the checkpoint {source} lacks {', '.join(missing)}")
    return files


def shard_tensors(file: Path) -> dict[str, ShardTensor]:
    """By name, in the order of their places."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > min(_LONGEST_HEADER, size - 8):
            raise Corrupt(f"{file} is no safetensors file: {size} bytes, with a header said to have {length}")
        header = _json(opened.read(length), file)
    header.pop("__metadata__", None)
    found = {name: _tensor(file, name, entry, 8 + length, size) for name, entry in header.items()}
    return dict(sorted(found.items(), key=lambda item: item[1].at))


def _tensor(file: Path, name: str, entry: Any, data: int, size: int) -> ShardTensor:
    try:
        dtype, itemsize = _ITEMS[entry["dtype"]]
        shape = tuple(int(length) for length in entry["shape"])
        first, last = entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{file}: the header says {entry!r} of {name!r}, which is not understood: {error!r}") from error
    if not 0 <= first <= last <= size - data or last - first != math.prod(shape) * itemsize:
        raise Corrupt(
            f"{file}: {name!r} of {dtype} {shape} is said to be at {first} to {last} of {size - data} bytes; "
            "the file was cut or altered"
        )
    return ShardTensor(file, data + first, last - first, dtype, shape)


def _json(text: bytes, file: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise Corrupt(f"{file}: its JSON cannot be read: {error}") from error
    if not isinstance(parsed, dict):
        raise Corrupt(f"{file}: expected a JSON object, got {type(parsed).__name__}")
    return parsed


def identity(files: list[Path]) -> list[list[Any]]:
    """What changes when a shard does: path, size, time of the last change."""
    stats = [(file.resolve(), os.stat(file)) for file in files]
    return [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in stats]
