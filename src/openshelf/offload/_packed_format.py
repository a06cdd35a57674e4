"""The head and the table of a packed file; docs/formats.md draws them. What is read is checked before it is used."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from typing import Any

from openshelf._core import SECTOR
from openshelf.errors import Corrupt, WrongVersion
from openshelf.offload._files import sectors

MAGIC = b"OSFPACK\0"
VERSION = 2
# magic, version, sector, generation, table bytes, data begins, bytes of the file, key, SHA-256 of head and table
_HEAD = struct.Struct("<8sIIQQQQ32s32s")
_SUM = 32


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
    content: dict[str, Any] = json.loads(text)
    storages = tuple(
        PackedStorage(name, head.begins + at, nbytes, int(check, 16)) for name, at, nbytes, check in content["storages"]
    )
    views = {
        name: PackedTensor(storage, dtype, tuple(shape), tuple(stride), offset)
        for name, (storage, dtype, shape, stride, offset) in content["tensors"].items()
    }
    return Table(storages, views)
