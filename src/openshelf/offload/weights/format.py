"""The head and the table of a packed file; docs/formats/packed.md draws them. All that is read is checked first."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import struct
from typing import Any

from openshelf._core import SECTOR
from openshelf.errors import Corrupt, WrongVersion
from openshelf.offload.weights.files import sectors
from openshelf.offload.weights.strict_json import are_sizes, is_size, strict_json

MAGIC = b"OSFPACK\0"
VERSION = 2
# magic, version, sector, generation, table bytes, data begins, bytes of the file, key, SHA-256 of head and table
_HEAD = struct.Struct("<8sIIQQQQ32s32s")
_SUM = 32
_CHECK = re.compile("[0-9a-f]{16}")
_BITS = re.compile(r"^(?:u?int|float|bfloat|complex)(8|16|32|64|128)(?:_\w+)?$")


@dataclasses.dataclass(frozen=True)
class PackedStorage:
    """Bytes at a place of the file, up to the next sector; `check` is of these, padding included."""

    name: str
    at: int
    nbytes: int
    check: int


@dataclasses.dataclass(frozen=True)
class PackedTensor:
    """A tensor as a view of a storage; `offset` in bytes, strides in elements, as torch counts them."""

    storage: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0


@dataclasses.dataclass(frozen=True)
class Table:
    """What is in a packed file. Places are from the beginning of the data here, and of the file in a decoded one."""

    storages: tuple[PackedStorage, ...]
    tensors: dict[str, PackedTensor]


def _text(table: Table) -> bytes:
    # Checksums have a fixed width, so that the table's length is known before they are.
    rows = [[s.name, s.at, s.nbytes, f"{s.check:016x}"] for s in table.storages]
    views = {n: [t.storage, t.dtype, list(t.shape), list(t.stride), t.offset] for n, t in table.tensors.items()}
    return json.dumps({"storages": rows, "tensors": views}, separators=(",", ":")).encode()


def table_bytes(table: Table) -> int:
    """Where the data begins in a file with this table, whatever the checksums are."""
    return SECTOR + sectors(len(_text(table)))


def encode(table: Table, generation: int, key: bytes, data_bytes: int) -> bytes:
    """Head and table, padded to where the data begins."""
    text = _text(table)
    begins = SECTOR + sectors(len(text))
    fields = (MAGIC, VERSION, SECTOR, generation, len(text), begins, begins + data_bytes, key)
    total = hashlib.sha256(_HEAD.pack(*fields, bytes(_SUM)) + text).digest()
    head = _HEAD.pack(*fields, total)
    return head.ljust(SECTOR, b"\0") + text.ljust(begins - SECTOR, b"\0")


@dataclasses.dataclass(frozen=True)
class Head:
    generation: int
    table_bytes: int
    begins: int
    nbytes: int
    key: bytes
    total: bytes


def decode_head(raw: bytes, path: object) -> Head:
    if len(raw) < _HEAD.size or raw[:8] != MAGIC:
        raise Corrupt(f"{path} is not a packed file: it begins with {raw[:8]!r}, expected {MAGIC!r}")
    _, version, sector, generation, text_bytes, begins, nbytes, key, total = _HEAD.unpack_from(raw)
    if version != VERSION or sector != SECTOR:
        raise WrongVersion(
            f"{path} is a packed file of version {version} with sectors of {sector} bytes, this program reads version "
            f"{VERSION} with {SECTOR}; remove the file, so that it is made anew"
        )
    return Head(generation, text_bytes, begins, nbytes, key, total)


def decode_table(raw: bytes, head: Head, text: bytes, path: object) -> Table:
    """Of the head's sector and the table's text. Corrupt if a byte of them was altered."""
    found = hashlib.sha256(raw[: _HEAD.size - _SUM] + bytes(_SUM) + text).digest()
    if found != head.total or len(text) != head.table_bytes:
        raise Corrupt(
            f"the head of {path} failed its checksum: it was altered or cut; remove the file, so that it is made anew"
        )
    content = strict_json(text, str(path))
    rows, views = content.get("storages"), content.get("tensors")
    if not isinstance(rows, list) or not isinstance(views, dict):
        raise Corrupt(f"{path}: its table has no list of storages or no map of tensors; remove the file")
    storages = tuple(_storage(row, head, path) for row in rows)
    return Table(storages, {name: _tensor(name, view, storages, path) for name, view in views.items()})


def _storage(row: Any, head: Head, path: object) -> PackedStorage:
    """A checksum says that nobody altered a file by mistake; who writes one with intent can make that, too."""
    match row:
        case [str(name), at, nbytes, str(check)] if is_size(at) and is_size(nbytes) and _CHECK.fullmatch(check):
            if at % SECTOR == 0 and head.begins + at + sectors(nbytes) <= head.nbytes:
                return PackedStorage(name, head.begins + at, nbytes, int(check, 16))
    raise Corrupt(f"{path}: its table says {repr(row)[:200]} of a storage, which cannot be in this file; remove it")


def _tensor(name: str, view: Any, storages: tuple[PackedStorage, ...], path: object) -> PackedTensor:
    match view:
        case [number, str(dtype), shape, stride, offset] if all(map(is_size, (number, offset))):
            if are_sizes(shape) and are_sizes(stride) and len(shape) == len(stride) and number < len(storages):
                itemsize = _itemsize(dtype)
                last = sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
                nbytes = 0 if 0 in shape else (last + 1) * itemsize
                if itemsize and offset % itemsize == 0 and (not nbytes or offset + nbytes <= storages[number].nbytes):
                    return PackedTensor(number, dtype, tuple(shape), tuple(stride), offset)
    raise Corrupt(f"{path}: its table says {repr(view)[:200]} of {name!r}, which cannot be in this file; remove it")


def _itemsize(dtype: str) -> int:
    """Bytes of an element; 0 if there is no such type."""
    found = _BITS.search(dtype)
    return 1 if dtype == "bool" else int(found[1]) // 8 if found else 0
