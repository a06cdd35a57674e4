"""Tables from files and to files: .npy, .safetensors, and state dicts of torch (.pt, .pth).

Rows go by parts, so that neither file nor table is in memory twice. A table of floats is written in its own dtype. In
files of safetensors and torch the optimizer's states go along, under the key of the rows with `.state` behind it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from openshelf._dtypes import torch_module
from openshelf.errors import BadInput, Mismatch, UnknownName
from openshelf.space import Space
from openshelf.tables.initial import init_of
from openshelf.tables.optimizers import Optimizer
from openshelf.tables.table import Table

_PART = 65_536  # rows at a time
_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "U8": "uint8", "F64": "float64"}
_FLOATS = ("float32", "float16", "bfloat16", "float64")
_CODES = {name: code for code, name in _NAMES.items()}
Array = np.ndarray[Any, np.dtype[Any]]


class _Rows(NamedTuple):
    """Rows in a file: numbers, or bfloat16 as uint16."""

    array: Array
    dtype: str


def export_table(table: Table, path: str | os.PathLike[str], *, key: str = "weight", states: bool = True) -> None:
    """Writes all rows to a file; it appears when it is whole. The ending says the format."""
    path = Path(path)
    write = _WRITERS.get(path.suffix)
    if write is None:
        raise BadInput(f"{path}: expected a name that ends with {', '.join(_WRITERS)}")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(table, table.rows, draft, key, states and table.optimizer_state_width > 0)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def import_table(
    space: Space,
    name: str,
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    dtype: str | None = None,
    optimizer: Optimizer | None = None,
) -> Table:
    """A new table with the rows of a file; others find it when it is whole.

    `key`: which tensor, if there are several of two dimensions. `dtype`: that of the file, unless another is given.
    States in the file are taken if `optimizer` has such.
    """
    path = Path(path)
    read = _READERS.get(path.suffix)
    if read is None:
        raise BadInput(f"{path}: expected a name that ends with {', '.join(_READERS)}")
    if not path.is_file():
        raise UnknownName(f"there is no file {path}")
    found = read(path)
    chosen = _choose(found, key, path)
    rows = found[chosen]
    if rows.array.ndim != 2 or rows.dtype not in _FLOATS:
        raise Mismatch(
            f"{chosen!r} of {path} is {rows.dtype} of the shape {rows.array.shape}: rows are floats of two dimensions"
        )
    kind = dtype or ("float32" if rows.dtype == "float64" else rows.dtype)
    count, dim = rows.array.shape

    def fill(table: Table) -> None:
        states = found.get(chosen + ".state") if table.optimizer_state_width else None
        width = table.optimizer_state_width
        if states is not None and (states.array.shape != (count, width) or states.dtype not in _FLOATS):
            raise Mismatch(
                f"the states of {chosen!r} in {path} are {states.dtype} of the shape {states.array.shape}: those of "
                f"{optimizer} are floats of the shape {(count, width)}"
            )
        for first in range(0, count, _PART):
            ids = np.arange(first, min(count, first + _PART))
            part = np.ascontiguousarray(rows.array[first : first + _PART])
            held = None if states is None else _numbers(states.array[first : first + _PART], states.dtype)
            if rows.dtype == kind:
                table.write(ids, part, states=held, raw=True)
            else:
                table.write(ids, _numbers(part, rows.dtype), states=held)

    return Table._filled(space, name, count, dim, kind, init_of(None)[0], optimizer, fill)


def _numbers(part: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return (part.astype(np.uint32) << 16).view(np.float32)
    return part.astype(np.float32)


def _choose(found: dict[str, _Rows], key: str | None, path: Path) -> str:
    candidates = [one for one, rows in found.items() if rows.array.ndim == 2 and not one.endswith(".state")]
    if key is None and len(candidates) == 1:
        return candidates[0]
    if key in found:
        return key
    raise UnknownName(f"{path} has the tensors {sorted(candidates)}: give one of them as key=, got {key!r}")


def _parts(rows: int) -> list[Array]:
    return [np.arange(first, min(rows, first + _PART)) for first in range(0, rows, _PART)]


def _stored(table: Table) -> tuple[str, int, Callable[[Array], Array]]:
    """The dtype of rows in a file, their length, and how they are read: rows of integers become float32."""
    if table.dtype.startswith("int"):
        return "float32", table.dim, table.lookup
    return table.dtype, table.dim, lambda ids: table.lookup(ids, raw=True, consistent=True)


# .npy


def _write_npy(table: Table, rows: int, path: Path, key: str, states: bool) -> None:
    dtype, dim, read = _stored(table)
    if dtype == "bfloat16":
        dtype, read = "float32", table.lookup  # numpy has no bfloat16
    out = np.lib.format.open_memmap(path, "w+", np.dtype(dtype), (rows, dim))
    for ids in _parts(rows):
        out[ids[0] : ids[-1] + 1] = read(ids)
    out.flush()


def _read_npy(path: Path) -> dict[str, _Rows]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError) as error:
        raise BadInput(f"{path} is no .npy file: {error}") from None
    return {"weight": _Rows(array, array.dtype.name)}


# .safetensors: the length of a header, the header as JSON, then the bytes


def _write_safetensors(table: Table, rows: int, path: Path, key: str, states: bool) -> None:
    dtype, dim, read = _stored(table)
    size = rows * dim * (4 if dtype == "float32" else 2)
    header = {key: {"dtype": _CODES[dtype], "shape": [rows, dim], "data_offsets": [0, size]}}
    if states:
        width = table.optimizer_state_width
        end = size + rows * width * 4
        header[key + ".state"] = {"dtype": "F32", "shape": [rows, width], "data_offsets": [size, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for ids in _parts(rows):
            _put(file, read(ids))
        for ids in _parts(rows) if states else []:
            _put(file, table.states(ids))


def _put(file: IO[bytes], part: Array) -> None:
    file.write(np.ascontiguousarray(part).data)


def _read_safetensors(path: Path) -> dict[str, _Rows]:
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size - 8:
                raise ValueError(f"its header has {length} bytes, the file {size}")
            header = json.loads(file.read(length))
        found = {}
        for key, facts in header.items():
            if key == "__metadata__" or facts["dtype"] not in _NAMES:
                continue
            dtype, shape = _NAMES[facts["dtype"]], tuple(map(int, facts["shape"]))
            first, last = facts["data_offsets"]
            kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)
            if last - first != math.prod(shape) * kind.itemsize or not 0 <= first <= last <= size - 8 - length:
                raise ValueError(f"{key!r} does not fit: part of the file is missing, or it is no such file")
            array: Array = (
                np.memmap(path, kind, "r", 8 + length + first, shape) if last > first else np.empty(shape, kind)
            )
            found[key] = _Rows(array, dtype)
        return found
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise BadInput(f"{path} is no .safetensors file: {error}") from None


# state dicts of torch


def _write_torch(table: Table, rows: int, path: Path, key: str, states: bool) -> None:
    torch = torch_module()
    dtype, _, _ = _stored(table)
    ids = torch.arange(rows)
    values = table.lookup(ids, raw=not table.dtype.startswith("int"), consistent=True)
    found = {key: values.to(getattr(torch, dtype))}
    if states:
        found[key + ".state"] = table.states(ids)
    torch.save(found, path)


def _read_torch(path: Path) -> dict[str, _Rows]:
    torch = torch_module()
    try:
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # of pickle, zip and torch, each of its own kind
        raise BadInput(f"{path} is no state dict that torch can read: {error}") from None
    if not isinstance(state, dict):
        raise BadInput(f"{path} holds a {type(state).__name__}, not a state dict")
    found = {}
    for key, value in state.items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            continue
        name = str(value.dtype).removeprefix("torch.")
        flat = value.detach().contiguous()
        found[str(key)] = _Rows((flat.view(torch.uint16) if name == "bfloat16" else flat).numpy(), name)
    return found


_WRITERS = {".npy": _write_npy, ".safetensors": _write_safetensors, ".pt": _write_torch, ".pth": _write_torch}
_READERS = {".npy": _read_npy, ".safetensors": _read_safetensors, ".pt": _read_torch, ".pth": _read_torch}
