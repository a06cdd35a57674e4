"""What the headers of a shared object say: its segments, its dynamic section, and the names that it takes from others.

Little-endian ELF of 64 bits, as everything that Openshelf runs on. A reader of our own, as readelf may be missing.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openshelf import _core

PT_LOAD, PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO = 1, 2, 0x6474E551, 0x6474E552
EXECUTE, WRITE = 1, 2
DT_TEXTREL, DT_BIND_NOW, DT_FLAGS, DT_FLAGS_1 = 22, 24, 30, 0x6FFFFFFB
DF_TEXTREL, DF_BIND_NOW, DF_1_NOW = 4, 8, 1
SHT_DYNSYM = 11


@dataclass(frozen=True)
class Segment:
    kind: int
    flags: int
    offset: int
    nbytes: int  # in the file


class Elf:
    def __init__(self, path: str | Path) -> None:
        self._bytes = Path(path).read_bytes()
        if self._bytes[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is no little-endian ELF file of 64 bits")
        segments_at, self._sections_at = struct.unpack_from("<QQ", self._bytes, 32)
        segment_size, segment_count, self._section_size, self._section_count = struct.unpack_from(
            "<HHHH", self._bytes, 54
        )
        self.segments = tuple(self._segment(segments_at + i * segment_size) for i in range(segment_count))
        self.dynamic = dict(self._dynamic())  # of a tag that is there several times (NEEDED) the last
        self.imports = frozenset(self._imports())

    def _segment(self, at: int) -> Segment:
        kind, flags, offset, _address, _physical, nbytes = struct.unpack_from("<IIQQQQ", self._bytes, at)
        return Segment(kind, flags, offset, nbytes)

    def _dynamic(self) -> Iterator[tuple[int, int]]:
        for segment in self.segments:
            if segment.kind == PT_DYNAMIC:
                yield from struct.iter_unpack("<QQ", self._bytes[segment.offset : segment.offset + segment.nbytes])

    def _section(self, number: int) -> tuple[int, int, int, int]:
        at = self._sections_at + number * self._section_size
        kind, _flags, _address, offset, nbytes, link = struct.unpack_from("<IQQQQI", self._bytes, at + 4)
        return kind, offset, nbytes, link

    def _imports(self) -> Iterator[str]:
        for number in range(self._section_count):
            kind, offset, nbytes, link = self._section(number)
            if kind != SHT_DYNSYM:
                continue
            _, names, _, _ = self._section(link)
            for name, _info, _other, section, _value, _size in struct.iter_unpack(
                "<IBBHQQ", self._bytes[offset : offset + nbytes]
            ):
                if name and not section:
                    end = self._bytes.index(b"\0", names + name)
                    yield self._bytes[names + name : end].decode()


@functools.cache
def extension() -> Elf:
    """The extension that this process runs."""
    assert _core.__file__
    return Elf(_core.__file__)


def sanitizer() -> str | None:
    """The sanitizer that an extension was built with: address, thread, undefined or none."""
    names = {"__asan_": "address", "__tsan_": "thread", "__ubsan_": "undefined"}
    return next((what for start, what in names.items() if any(i.startswith(start) for i in extension().imports)), None)


def sanitizer_environment() -> dict[str, str]:
    """What a process with an environment of its own needs, so that a sanitized extension can be loaded and is heard."""
    names = ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS", "OSF_UBSAN_REPORTS")
    return {name: os.environ[name] for name in names if sanitizer() and name in os.environ}
