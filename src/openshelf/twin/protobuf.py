"""The protobuf wire format, as little of it as traces need: fields of a message, by number, in order.

A field is a varint `number << 3 | type`, then its value. Types: 0 a varint, 1 eight bytes, 2 a varint length and so
many bytes, 5 four bytes. Files of Chakra are messages one after the other, each behind its length as a varint.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from openshelf.errors import BadInput

Value = int | bytes


def messages(data: bytes, file: str) -> Iterator[bytes]:
    """The messages of a length-delimited file."""
    at = 0
    while at < len(data):
        begun = at
        size, at = varint(data, at, file)
        if at + size > len(data):
            raise BadInput(f"{file}, byte {begun}: a message of {size} bytes, and the file has {len(data) - at} more")
        yield data[at : at + size]
        at += size


def fields(data: bytes, file: str) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field; values of 4 and 8 bytes come as bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at, file)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at, file)
            yield number, value
            continue
        if kind == 2:
            size, at = varint(data, at, file)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise BadInput(f"{file}: a field of wire type {kind}; expected 0, 1, 2 or 5. Is it a protobuf file?")
        if at + size > len(data):
            raise BadInput(f"{file}: a field of {size} bytes is cut off")
        yield number, data[at : at + size]
        at += size


def varint(data: bytes, at: int, file: str) -> tuple[int, int]:
    """A varint, and where it ends."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
    raise BadInput(f"{file}: a number is cut off at byte {at}. Is it a protobuf file?")


def varints(data: Value, file: str) -> list[int]:
    """A repeated integer field: packed, or one of several."""
    if isinstance(data, int):
        return [data]
    found, at = [], 0
    while at < len(data):
        value, at = varint(data, at, file)
        found.append(value)
    return found


def signed(value: int) -> int:
    """An int64 that came as a varint of 64 bits."""
    return value - (1 << 64) if value >= 1 << 63 else value


def zigzag(value: int) -> int:
    """A sint that came as a varint."""
    return (value >> 1) ^ -(value & 1)


def fixed(data: bytes, is_signed: bool) -> int:
    """A fixed32, fixed64 or their signed forms."""
    return int.from_bytes(data, "little", signed=is_signed)


def double(data: bytes) -> float:
    return float(struct.unpack("<d" if len(data) == 8 else "<f", data)[0])
