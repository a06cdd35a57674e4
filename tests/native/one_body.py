"""Two bodies for one name: what the linker would choose between in silence. `make native-odr` runs it.

    one_body.py FOLDER

Of our functions that several object files may have (inline ones, templates), every copy must have the same bytes. The
files are compiled without optimisation and each function into a section of its own (-O0 -fno-inline
-ffunction-sections), so that a function is the same wherever it is compiled. What the linker fills in later is not
compared, but the names that it is filled with are. Templates of the standard library are left out: the compiler lays
out their exception tables in more ways than one.
"""

from __future__ import annotations

import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SHT_PROGBITS, SHT_SYMTAB, SHT_RELA = 1, 2, 4
STT_FUNC, STT_SECTION, STB_WEAK = 2, 3, 2
LIBRARY = ("_ZNSt", "_ZNKSt", "_ZSt", "_ZN9__gnu_cxx", "_ZNK9__gnu_cxx")
Body = tuple[bytes, tuple[tuple[int, int, str, int], ...]]


class Object:
    """An object file: sections and symbols of a little-endian ELF of 64 bits."""

    def __init__(self, path: Path) -> None:
        self.bytes = path.read_bytes()
        if self.bytes[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is no little-endian ELF file of 64 bits")
        (at,) = struct.unpack_from("<Q", self.bytes, 40)
        size, count, names = struct.unpack_from("<HHH", self.bytes, 58)
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", self.bytes, at + number * size) for number in range(count)]
        self.names = [self.text(self.sections[names][4] + section[0]) for section in self.sections]
        self.symbols = list(self._symbols())

    def text(self, at: int) -> str:
        return self.bytes[at : self.bytes.index(b"\0", at)].decode()

    def _symbols(self) -> Iterator[tuple[str, int, int, int, int, int]]:
        """Name, kind, binding, section, value and size of each."""
        for section in self.sections:
            if section[1] != SHT_SYMTAB:
                continue
            strings = self.sections[section[6]][4]
            for name, info, _, where, value, size in struct.iter_unpack(
                "<IBBHQQ", self.bytes[section[4] : section[4] + section[5]]
            ):
                named = self.text(strings + name)
                if info & 15 == STT_SECTION and where < len(self.names):
                    named = self.names[where]
                yield named, info & 15, info >> 4, where, value, size

    def relocations(self, of: int) -> dict[int, tuple[int, str, int]]:
        """By offset: how, the symbol's name, what is added."""
        found = {}
        for section in self.sections:
            if section[1] == SHT_RELA and section[7] == of:
                for offset, info, added in struct.iter_unpack("<QQq", self.bytes[section[4] : section[4] + section[5]]):
                    name = self.symbols[info >> 32][0]
                    if name.startswith((".rodata", ".LC", ".data")):  # constants lie elsewhere in every file
                        name, added = ".rodata", 0
                    found[offset] = (info & 0xFFFFFFFF, name, added)
        return found

    def bodies(self) -> Iterator[tuple[str, Body]]:
        for name, kind, binding, where, value, size in self.symbols:
            ours = kind == STT_FUNC and binding == STB_WEAK and not name.startswith(LIBRARY)
            if not ours or not 0 < where < len(self.sections):
                continue
            start = self.sections[where][4] + value
            filled = self.relocations(where)
            inside = tuple((at - value, *what) for at, what in sorted(filled.items()) if value <= at < value + size)
            yield name, (self.bytes[start : start + size], inside)


def several_bodies(paths: list[Path]) -> dict[str, list[Path]]:
    """Names with more than one body, and the files that have them."""
    bodies: defaultdict[str, dict[Body, Path]] = defaultdict(dict)
    for path in paths:
        for name, body in Object(path).bodies():
            bodies[name].setdefault(body, path)
    return {name: list(of.values()) for name, of in bodies.items() if len(of) > 1}


def main() -> int:
    paths = sorted(Path(sys.argv[1]).rglob("*.o"))
    found = several_bodies(paths)
    for name, files in sorted(found.items()):
        print(f"{name}: other bytes in {', '.join(str(path) for path in files)}")
    print(f"{len(paths)} files, {len(found)} names with more than one body")
    return 1 if found or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
