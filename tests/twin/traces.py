"""Chakra traces for tests: a writer of the protobuf wire format, as little of it as the reader reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    made = bytearray()
    while True:
        made.append((value & 0x7F) | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(made)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def node(
    id: int,
    type: int,
    name: str = "",
    deps: Sequence[int] = (),
    micros: int = 0,
    attr: Mapping[str, int | Sequence[bool]] | None = None,
) -> bytes:
    made = number(1, id) + block(2, name.encode()) + number(3, type)
    made += block(5, b"".join(varint(each) for each in deps)) if deps else b""
    made += number(7, micros) if micros else b""
    for key, value in (attr or {}).items():
        if isinstance(value, int):
            made += block(10, block(1, key.encode()) + number(9, value))
        else:
            flags = block(1, b"".join(varint(int(each)) for each in value))
            made += block(10, block(1, key.encode()) + block(28, flags))
    return made


def trace(*nodes: bytes) -> bytes:
    metadata = block(1, b"0.0.4")
    return b"".join(varint(len(each)) + each for each in (metadata, *nodes))
