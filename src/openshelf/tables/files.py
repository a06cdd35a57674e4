"""Tables from files and to files: .npy, .safetensors, and state dicts of torch (.pt, .pth).

Rows go by parts, so that neither file nor table is in memory twice. A table of floats is written in its own dtype. In
files of safetensors and torch the optimizer's states go along, under the key of the rows with `.state` behind it, and
the number of its steps with `.steps`.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from openshelf._dtypes import torch_module
from openshelf.errors import BadInput, Mismatch, NotPermitted, OpenshelfError, UnknownName
from openshelf.space import Space
from openshelf.tables.initial import init_of
from openshelf.tables.keyed_table import KeyedTable
from openshelf.tables.optimizers import Optimizer
from openshelf.tables.table import Table

_PART = 65_536  # rows at a time
_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "U8": "uint8", "F64": "float64", "I64": "int64"}
_FLOATS = ("float32", "float16", "bfloat16", "float64")
_CODES = {name: code for code, name in _NAMES.items()}
Array = np.ndarray[Any, np.dtype[Any]]


class _Rows(NamedTuple):
    """Rows in a file. `load` gives numbers, or bfloat16 as uint16: only what is wanted needs to be readable."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], Array]


def export_table(table: Table, path: str | os.PathLike[str], *, key: str = "weight", states: bool = True) -> None:
    """Writes all rows to a file; it appears when it is whole. The ending says the format. Not of dynamic ids."""
    path = Path(path)
    write = _WRITERS.get(path.suffix)
    if isinstance(table, KeyedTable):
        raise BadInput(
            f"the table {table.name!r} has dynamic ids, and a file of rows does not say whose they are: "
            f"save_table(table, directory) writes keys and rows"
        )
    if write is None:
        raise BadInput(f"{path}: expected a name that ends with {', '.join(_WRITERS)}")
    if not os.path.isdir(path.parent):
        raise BadInput(f"{path} cannot be written: there is no directory {path.parent}")
    if os.path.isdir(path):
        raise BadInput(f"{path} cannot be written: it is a directory; give the name of a file in it")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(table, table.rows, draft, key, states and table.optimizer_state_width > 0)
        os.replace(draft, path)
    except OpenshelfError:
        raise
    except PermissionError as error:
        raise NotPermitted(f"{path} cannot be written: {_reason(error)}") from None
    except (OSError, RuntimeError) as error:  # torch says by the latter that a file was not written
        raise BadInput(f"{path} cannot be written: {_reason(error)}") from None
    finally:
        if os.path.exists(draft):
            draft.unlink()


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
    if not os.path.isfile(path):
        raise UnknownName(f"there is no file {path}")
    try:
        found = read(path)
    except OpenshelfError:
        raise
    except PermissionError as error:
        raise NotPermitted(f"{path} cannot be read: {_reason(error)}") from None
    except Exception as error:  # of numpy, json and torch, each of its own kind
        raise BadInput(f"{path} is no {path.suffix} file that can be read: {_reason(error)}") from None
    chosen = _choose(found, key, path)
    rows = found[chosen]
    if len(rows.shape) != 2 or rows.dtype not in _FLOATS:
        raise Mismatch(
            f"{chosen!r} of {path} is {rows.dtype} of the shape {rows.shape}: rows are floats of two dimensions"
        )
    kind = dtype or ("float32" if rows.dtype == "float64" else rows.dtype)
    count, dim = rows.shape
    values = _loaded(rows, chosen, path)

    def fill(table: Table) -> None:
        states = found.get(chosen + ".state") if table.optimizer_state_width else None
        width = table.optimizer_state_width
        if states is not None and (states.shape != (count, width) or states.dtype not in _FLOATS):
            raise Mismatch(
                f"the states of {chosen!r} in {path} are {states.dtype} of the shape {states.shape}: those of "
                f"{optimizer} are floats of the shape {(count, width)}"
            )
        held_values = None if states is None else _loaded(states, chosen + ".state", path)
        for first in range(0, count, _PART):
            ids = np.arange(first, min(count, first + _PART))
            part = np.ascontiguousarray(values[first : first + _PART])
            held = None
            if states is not None and held_values is not None:
                held = _numbers(held_values[first : first + _PART], states.dtype)
            if rows.dtype == kind:
                table.write(ids, part, states=held, raw=True)
            else:
                table.write(ids, _numbers(part, rows.dtype), states=held)
        if states is not None:
            table._core.set_steps(_steps(found.get(chosen + ".steps"), chosen, path))

    return Table._filled(space, name, count, dim, kind, init_of(None)[0], optimizer, fill)


def _loaded(rows: _Rows, key: str, path: Path) -> Array:
    try:
        return rows.load()
    except Exception as error:  # of numpy and torch, each of its own kind
        raise BadInput(f"{key!r} of {path} cannot be read: {_reason(error)}") from None


def _steps(found: _Rows | None, key: str, path: Path) -> int:
    """How many updates the states in a file are of; files without it are of other programs."""
    if found is None:
        return 0
    if found.dtype != "int64" or found.shape != (1,):
        raise Mismatch(
            f"the steps of {key!r} in {path} are {found.dtype} of the shape {found.shape}: expected one int64"
        )
    steps = int(_loaded(found, key + ".steps", path)[0])
    if steps < 0:
        raise BadInput(f"the steps of {key!r} in {path} are {steps}: expected a number that is not negative")
    return steps


def _reason(error: Exception) -> str:
    """One line of what others say in many or none."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return next(iter(said.strip().splitlines()), "") or type(error).__name__


def _numbers(part: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return (part.astype(np.uint32) << 16).view(np.float32)
    return part.astype(np.float32)


def _choose(found: dict[str, _Rows], key: str | None, path: Path) -> str:
    candidates = [one for one, rows in found.items() if len(rows.shape) == 2 and not one.endswith(".state")]
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
    facts = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (rows, dim)}
    with path.open("wb") as file:  # a full disk is an error of a write; of a mapped file it would be a signal
        np.lib.format.write_array_header_1_0(file, facts)
        for ids in _parts(rows):
            _put(file, read(ids))


def _read_npy(path: Path) -> dict[str, _Rows]:
    array = np.lib.format.open_memmap(path, mode="r")
    return {"weight": _Rows(array.shape, array.dtype.name, lambda: array)}


# .safetensors: the length of a header, the header as JSON, then the bytes


def _write_safetensors(table: Table, rows: int, path: Path, key: str, states: bool) -> None:
    dtype, dim, read = _stored(table)
    size = rows * dim * (4 if dtype == "float32" else 2)
    header = {key: {"dtype": _CODES[dtype], "shape": [rows, dim], "data_offsets": [0, size]}}
    if states:
        width = table.optimizer_state_width
        end = size + rows * width * 4
        header[key + ".state"] = {"dtype": "F32", "shape": [rows, width], "data_offsets": [size, end]}
        header[key + ".steps"] = {"dtype": "I64", "shape": [1], "data_offsets": [end, end + 8]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for ids in _parts(rows):
            _put(file, read(ids))
        for ids in _parts(rows) if states else []:
            _put(file, table.states(ids))
        if states:
            _put(file, np.array([table.stat()["steps"]]))


def _put(file: IO[bytes], part: Array) -> None:
    file.write(np.ascontiguousarray(part).data)


def _read_safetensors(path: Path) -> dict[str, _Rows]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise ValueError(f"its header has {length} bytes, the file {size}")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"its header is a {type(header).__name__}, not an object with tensors")
    found = {}
    for key, facts in header.items():
        if key == "__metadata__" or facts["dtype"] not in _NAMES:
            continue
        if facts["dtype"] == "I64" and not key.endswith(".steps"):
            continue
        dtype, shape = _NAMES[facts["dtype"]], tuple(map(int, facts["shape"]))
        first, last = map(int, facts["data_offsets"])
        kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        fits = min(shape, default=0) >= 0 and last - first == math.prod(shape) * kind.itemsize
        if not fits or not 0 <= first <= last <= size - 8 - length:
            raise ValueError(f"{key!r} does not fit: part of the file is missing, or it is no such file")
        found[key] = _Rows(shape, dtype, partial(_mapped, path, kind, 8 + length + first, shape))
    return found


def _mapped(path: Path, kind: np.dtype[Any], offset: int, shape: tuple[int, ...]) -> Array:
    return np.memmap(path, kind, "r", offset, shape) if math.prod(shape) else np.empty(shape, kind)


# state dicts of torch


def _write_torch(table: Table, rows: int, path: Path, key: str, states: bool) -> None:
    torch = torch_module()
    dtype, _, _ = _stored(table)
    ids = torch.arange(rows)
    values = table.lookup(ids, raw=not table.dtype.startswith("int"), consistent=True)
    found = {key: values.to(getattr(torch, dtype))}
    if states:
        found[key + ".state"] = table.states(ids)
        found[key + ".steps"] = torch.tensor([table.stat()["steps"]])
    with path.open("wb") as file:
        torch.save(found, file)


def _read_torch(path: Path) -> dict[str, _Rows]:
    torch = torch_module()
    mapped = zipfile.is_zipfile(path)  # files of old versions of torch are none
    state = torch.load(path, map_location="cpu", mmap=mapped, weights_only=True)
    if not isinstance(state, dict):
        raise BadInput(f"{path} holds a {type(state).__name__}, not a state dict")
    found = {}
    for key, value in state.items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            continue
        name = str(value.dtype).removeprefix("torch.")
        found[str(key)] = _Rows(tuple(value.shape), name, partial(_of_torch, value))
    return found


def _of_torch(value: Any) -> Array:
    torch = torch_module()
    if value.is_meta:
        raise ValueError("it has a shape, but no numbers: it was saved from the device 'meta'")
    flat = value.detach().resolve_neg().contiguous()
    array: Array = (flat.view(torch.uint16) if value.dtype == torch.bfloat16 else flat).numpy()
    return array


_WRITERS = {".npy": _write_npy, ".safetensors": _write_safetensors, ".pt": _write_torch, ".pth": _write_torch}
_READERS = {".npy": _read_npy, ".safetensors": _read_safetensors, ".pt": _read_torch, ".pth": _read_torch}
