"""Checkpoints of tables: a directory of parts, which any number of hosts may read back.

A part has some thousands of rows as they are stored, with their states. The list of parts (`table.json`) is written
last, so a checkpoint that was cut has none. Nothing is made from a checkpoint in which a part is missing or damaged.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from openshelf._files import given_path
from openshelf._sizes import whole
from openshelf.errors import BadInput, Mismatch, NoRoom, NotPermitted, OpenshelfError, UnknownName
from openshelf.space import Space
from openshelf.tables.files import table_and_path
from openshelf.tables.hosts_table import HostsTable
from openshelf.tables.initial import Normal, Uniform
from openshelf.tables.keyed_table import DynamicIds, KeyedTable
from openshelf.tables.optimizers import KINDS, NAMES, Optimizer, from_settings
from openshelf.tables.table import DTYPES, Table

_LIST = "table.json"
_FILE = re.compile(r"[a-z]+-[0-9]+\.npy")
_PART = 65_536
_FORMAT = "openshelf table 1"


def save_table(table: Table, directory: str | os.PathLike[str], *, part_rows: int = _PART) -> None:
    """Writes all rows and states into a new directory. Rows that others change meanwhile are whole, old or new.

    If something cannot be written, nothing is left there.
    """
    path = table_and_path(table, directory)
    if whole(part_rows, "part_rows") < 1:
        raise BadInput(f"part_rows is how many rows a file has, at least 1, got {part_rows}")
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise BadInput(f"{path} exists already: a checkpoint needs a directory of its own") from None
    except OSError as error:
        raise NotPermitted(f"{path} cannot be made: {error.strerror}") from None
    try:
        _write(table, path, part_rows)
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, OpenshelfError):
            raise BadInput(
                f"the checkpoint {path} cannot be written: {error.strerror}; nothing is left of it"
            ) from None
        raise


def _write(table: Table, path: Path, part_rows: int) -> None:
    facts = table.stat()
    ids, places = table.keys() if isinstance(table, KeyedTable) else 2 * (np.arange(table.rows),)
    parts: list[dict[str, Any]] = []
    for first in range(0, len(ids), part_rows):
        some = ids[first : first + part_rows]
        part = {"rows": table.lookup(some, raw=True, consistent=True)}
        if table.optimizer_state_width:
            part["states"] = table.states(some)
        if isinstance(table, KeyedTable):
            part["keys"], part["places"] = some, places[first : first + part_rows]
        parts.append({"count": len(some), **{name: _save(path, name, len(parts), one) for name, one in part.items()}})
    found = table.optimizer
    said = {
        "format": _FORMAT, "rows": table.rows, "dim": table.dim, "dtype": table.dtype,
        "keys": isinstance(table, KeyedTable),
        "optimizer": None if found is None else [KINDS.index(type(found)), *found.settings],
        "steps": facts["steps"], "parts": parts,
    }  # fmt: skip
    said["crc32"] = _sum_of_list(said)
    draft = path / f".{_LIST}"
    draft.write_text(json.dumps(said))
    os.replace(draft, path / _LIST)


def _save(path: Path, name: str, number: int, array: Any) -> dict[str, Any]:
    file = f"{name}-{number:05}.npy"
    np.save(path / file, np.ascontiguousarray(array), allow_pickle=False)
    return {"file": file, "crc32": _sum(array)}


def _sum(array: Any) -> int:
    return zlib.crc32(memoryview(np.ascontiguousarray(array)).cast("B"))  # type: ignore[arg-type]


def restore_table(
    space: Space,
    name: str,
    directory: str | os.PathLike[str],
    *,
    optimizer: Optimizer | None = None,
    hosts: Any = None,
    keys: DynamicIds | None = None,
    init: Uniform | Normal | None = None,
) -> Table:
    """A new table with the rows of a checkpoint, on other hosts or on as many more as `hosts` says.

    `optimizer`: of the kind that the checkpoint has, unless left out. `init`: of rows that come later. BadInput, with
    nothing made, if parts of the checkpoint are missing or damaged.
    """
    path = given_path(directory, "the directory of a checkpoint")
    said = _list_of(path)
    missing = [one["file"] for one in _files(said) if not (path / one["file"]).is_file()]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise BadInput(
            f"the checkpoint {path} has {len(_files(said))} files of rows, and {len(missing)} are missing: {shown}"
        )
    held = None if said["optimizer"] is None else from_settings(said["optimizer"][0], tuple(said["optimizer"][1:]))
    if optimizer is not None and held is not None and type(optimizer) is not type(held):
        kind = NAMES[said["optimizer"][0]]
        raise Mismatch(f"the checkpoint {path} has states of {kind}, not of {type(optimizer).__name__}")
    for part in said["parts"]:
        for what in part.keys() - {"count"}:
            _load(path, part, what)  # damaged ones are found before anything is made
    dynamic = (keys or DynamicIds()) if said["keys"] else None
    if keys is not None and not said["keys"]:
        raise BadInput(f"the checkpoint {path} is of a table whose ids are rows: leave keys= out")
    table = Table.create(
        space, name, rows=said["rows"], dim=said["dim"], dtype=said["dtype"], optimizer=optimizer or held, hosts=hosts,
        keys=dynamic, init=init,
    )  # fmt: skip
    try:
        if held is not None and any(("states" in part) != bool(table.optimizer_state_width) for part in said["parts"]):
            raise BadInput(f"{path / _LIST} is damaged: not all parts have the states that {type(held).__name__} needs")
        first = written = 0
        for part in said["parts"]:
            ids = _load(path, part, "keys") if dynamic else np.arange(first, first + part["count"])
            states = _load(path, part, "states") if "states" in part else None
            if isinstance(table, KeyedTable) and "places" in part:
                table.settle(ids, _load(path, part, "places"))
            written += table.write(ids, _load(path, part, "rows"), states=states, raw=True)
            first += part["count"]
        if written < first:
            raise NoRoom(
                f"{first - written} of the {first} keys of the checkpoint {path} find no row in a table of "
                f"{table.rows} rows: it does not say which rows they had; save it again"
            )
        steps = int(said["steps"])
        if isinstance(table, HostsTable):
            table.set_steps(steps)
        else:
            table._core.set_steps(steps)
    except BaseException:
        table.close()
        space.delete(name)
        raise
    return table


def _files(said: dict[str, Any]) -> list[dict[str, Any]]:
    return [part[name] for part in said["parts"] for name in ("rows", "states", "keys", "places") if name in part]


def _list_of(path: Path) -> dict[str, Any]:
    try:
        if (path / _LIST).exists() and not (path / _LIST).is_file():
            raise OSError("it is no file")  # a pipe would never end
        said = json.loads((path / _LIST).read_text())
    except FileNotFoundError:
        raise UnknownName(
            f"there is no checkpoint in {path}: it has no {_LIST}, or was cut before it was whole"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path / _LIST} cannot be read: {error}") from None
    if not isinstance(said, dict) or said.get("format") != _FORMAT:
        raise BadInput(f"{path / _LIST} is no list of a table's parts, or of another version of Openshelf")
    if not _is_whole(said):
        raise BadInput(f"{path / _LIST} is damaged: it does not say what it was written to say")
    return said


def _sum_of_list(said: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps({name: value for name, value in said.items() if name != "crc32"}).encode())


def _is_whole(said: dict[str, Any]) -> bool:
    """By its checksum, which lists of older versions lack, and by its form: somebody else may have written both."""
    if "crc32" in said and said["crc32"] != _sum_of_list(said):
        return False
    rows, dim, steps, keyed, parts = (said.get(name) for name in ("rows", "dim", "steps", "keys", "parts"))
    optimizer = said.get("optimizer", ())
    numbers = _is_number(rows, 1) and _is_number(dim, 1) and _is_number(steps, 0) and isinstance(keyed, bool)
    if not numbers or said.get("dtype") not in DTYPES or not isinstance(parts, list):
        return False
    if optimizer is not None and not _is_optimizer(optimizer):
        return False
    names = {"count", "rows"} | ({"keys"} if keyed else set())
    if not all(isinstance(part, dict) and names <= set(part) <= names | {"states", "places"} for part in parts):
        return False
    whole = all(
        _is_number(part["count"], 1) and all(map(_is_file, (one for name, one in part.items() if name != "count")))
        for part in parts
    )
    return whole and (keyed or sum(part["count"] for part in parts) == rows)


def _is_number(value: object, least: int) -> bool:
    return type(value) is int and least <= value < 1 << 63


def _is_optimizer(value: object) -> bool:
    """Which kind, and its settings."""
    if not isinstance(value, list) or not value or not _is_number(value[0], 0) or value[0] >= len(KINDS):
        return False
    if not all(isinstance(one, int | float) and math.isfinite(one) for one in value):
        return False
    try:
        from_settings(value[0], tuple(value[1:]))
    except (OpenshelfError, ValueError, TypeError, OverflowError):
        return False
    return True


def _is_file(value: object) -> bool:
    if not isinstance(value, dict) or set(value) != {"file", "crc32"} or not isinstance(value["file"], str):
        return False
    return bool(_FILE.fullmatch(value["file"])) and _is_number(value["crc32"], 0)


def _load(path: Path, part: dict[str, Any], name: str) -> Any:
    one = part[name]
    try:
        array = np.load(path / one["file"], allow_pickle=False)
    except Exception as error:  # of numpy, whose reader of headers raises what Python's own parsers raise
        raise BadInput(f"{path / one['file']} cannot be read: {error}") from None
    if array.size == 0 or array.ndim < 1 or len(array) != part["count"] or array.dtype.kind not in "iuf":
        raise BadInput(
            f"{path / one['file']} holds {array.dtype} of shape {array.shape}, expected {name} of {part['count']} rows"
        )
    if _sum(array) != one["crc32"]:
        raise BadInput(f"{path / one['file']} is damaged: its bytes are not those that were written")
    return array
