"""Safetensors shards: which tensor is at which place of which file. The format is read directly: 8 bytes, JSON, data.

Nothing is loaded: a checkpoint may be larger than memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from openshelf.errors import BadInput, Corrupt, FlashFailed
from openshelf.offload.weights.strict_json import are_sizes, strict_json

_ITEMS = {
    "BOOL": ("bool", 1), "U8": ("uint8", 1), "I8": ("int8", 1), "I16": ("int16", 2), "U16": ("uint16", 2),
    "F16": ("float16", 2), "BF16": ("bfloat16", 2), "I32": ("int32", 4), "U32": ("uint32", 4), "F32": ("float32", 4),
    "I64": ("int64", 8), "U64": ("uint64", 8), "F64": ("float64", 8), "C64": ("complex64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1), "F8_E8M0": ("float8_e8m0fnu", 1),
}  # fmt: skip
_LONGEST_HEADER = 100_000_000  # as the safetensors library
_POINTER = b"version "  # of git-lfs, in the place of a file that was not fetched


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
        there = sorted(one.name for one in source.iterdir() if one.suffix in (".safetensors", ".bin", ".pt", ".pth"))
        raise BadInput(
            f"{source} has neither model.safetensors nor model.safetensors.index.json; it has "
            f"{', '.join(there[:5]) or 'no weights'}{', ...' if there[5:] else ''}. Give the path of a .safetensors "
            "file; weights in other formats are loaded with what made them, and saved anew (save_pretrained)"
        )
    if not source.is_file():
        raise BadInput(
            f"there is no checkpoint at {str(source)!r}: give a .safetensors file, a .safetensors.index.json, or the "
            "folder of either"
        )
    if not source.name.endswith(".index.json"):
        return [source]
    files = [source.parent / name for name in _named_in(source)]
    if missing := [file.name for file in files if not file.is_file()]:
        raise BadInput(
            f"the index {source} names {len(files)} files, and {len(missing)} of them are not beside it: "
            f"{', '.join(missing[:5])}{', ...' if missing[5:] else ''}; get them, too"
        )
    return files


def checkpoint_tensors(files: list[Path]) -> dict[str, ShardTensor]:
    """Those of all shards, by name."""
    found: dict[str, ShardTensor] = {}
    for file in files:
        for name, tensor in shard_tensors(file).items():
            if name in found:
                raise Corrupt(f"{name!r} is in two shards: {found[name].file} and {file}")
            found[name] = tensor
    return found


def from_shard(name: str, tensor: ShardTensor) -> Callable[[memoryview, int], None]:
    """What reads the tensor's bytes from a place on into a buffer."""

    def fill(view: memoryview, at: int) -> None:
        done = 0
        try:
            with open(tensor.file, "rb", buffering=0) as file:
                while done < len(view):
                    got = os.preadv(file.fileno(), [view[done:]], tensor.at + at + done)
                    if not got:
                        raise Corrupt(f"{tensor.file} ended in the middle of {name!r}: it was cut while it was read")
                    done += got
                # It is read once: memory is for others.
                os.posix_fadvise(file.fileno(), tensor.at + at, len(view), os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise FlashFailed(f"reading {name!r} of {tensor.file} failed: {error}") from error

    return fill


def _named_in(index: Path) -> list[str]:
    """The files that an index names, all of them beside it."""
    with _opened(index) as opened:
        text = opened.read(_LONGEST_HEADER + 1)
    if len(text) > _LONGEST_HEADER:
        raise Corrupt(f"{index} has more than {_LONGEST_HEADER} bytes: it is no index of a checkpoint")
    weights = strict_json(text, str(index)).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
        raise Corrupt(f"{index} has no weight_map from the names of weights to those of files")
    for name in weights.values():
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise Corrupt(
                f"{index} names the file {name!r}: shards have plain names, and are in the folder of their index"
            )
    return sorted(set(weights.values()))


def shard_tensors(file: Path) -> dict[str, ShardTensor]:
    """By name, in the order of their places."""
    with _opened(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        first = opened.read(8)
        length = int.from_bytes(first, "little")
        if first == _POINTER:
            raise Corrupt(f"{file} is a pointer of git-lfs, of {size} bytes, not the weights: `git lfs pull` gets them")
        if size < 8 or length > min(_LONGEST_HEADER, size - 8):
            raise Corrupt(f"{file} is no safetensors file: {size} bytes, with a header said to have {length}")
        header = strict_json(opened.read(length), str(file))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(one, str) for one in metadata.values()):
        raise Corrupt(f"{file}: its __metadata__ is not a map from names to strings")
    found = {name: _tensor(file, name, entry, 8 + length, size) for name, entry in header.items()}
    found = dict(sorted(found.items(), key=lambda item: (item[1].at, item[1].nbytes)))
    _need_all_bytes_once(file, found, 8 + length, size)
    return found


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    try:
        with file.open("rb") as opened:
            yield opened
    except OSError as error:
        raise FlashFailed(f"reading {file} failed: {error}") from error


def _tensor(file: Path, name: str, entry: Any, data: int, size: int) -> ShardTensor:
    said: dict[str, Any] = entry if isinstance(entry, dict) else {}
    kind, lengths, places = said.get("dtype"), said.get("shape", 0), said.get("data_offsets", 0)
    known = _ITEMS.get(kind) if isinstance(kind, str) else None
    if known is None or not are_sizes(lengths) or not are_sizes(places) or len(places) != 2:
        raise Corrupt(
            f"{file}: the header says {repr(entry)[:200]} of {name!r}, which is not understood: expected a known "
            "dtype, and integers that are not negative as shape and as two data_offsets"
        )
    (dtype, itemsize), shape, (first, last) = known, tuple(lengths), places
    if not first <= last <= size - data or last - first != math.prod(shape) * itemsize:
        raise Corrupt(
            f"{file}: {name!r} of {dtype} {shape} is said to be at {first} to {last} of {size - data} bytes; "
            "the file was cut or altered"
        )
    return ShardTensor(file, data + first, last - first, dtype, shape)


def _need_all_bytes_once(file: Path, tensors: dict[str, ShardTensor], data: int, size: int) -> None:
    """Corrupt unless every byte of the data is one tensor's, as the safetensors library demands."""
    end, before = data, "the header"
    for name, tensor in tensors.items():
        if tensor.at != end:
            how = "overlap" if tensor.at < end else "leave a hole"
            raise Corrupt(f"{file}: {before} and {name!r} {how} at byte {min(tensor.at, end) - data} of the data")
        end, before = end + tensor.nbytes, repr(name)
    if end != size:
        raise Corrupt(f"{file}: {size - end} bytes after {before} are no tensor's; the file was altered")


def identity(files: list[Path]) -> list[list[Any]]:
    """What changes when a shard does: path, size, time of the last change."""
    stats = [(file.resolve(), os.stat(file)) for file in files]
    return [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in stats]
