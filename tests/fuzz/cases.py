"""Damage to the files of a closed space: where, what, and what opening it afterwards may say.

A case is a number: it seeds where and how the files are changed. Only what was changed is put back: files
are sparse and large. A worker process runs many cases; one that crashes or hangs it is found by its number.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from openshelf import Space
from openshelf.errors import OpenshelfError

NAMES = 50
CONTROL, MEMBERS, DATA = "control", "members", "data"


@functools.cache
def content(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    sizes = (1, 60, 700, 5000, 20_000, 300_000)
    return np.random.default_rng(number).integers(0, 256, sizes[number % len(sizes)], dtype=np.uint8)


def name_of(number: int) -> str:
    return f"renamed/{number}" if number % 5 == 0 else f"array/{number}" + "x" * (number * 7 % 200)


def fill(path: str) -> Space:
    """Arrays of all sizes, with renamed and deleted ones between them."""
    space = Space.open(path)
    for number in range(NAMES):
        space.put(f"gap/{number}", np.zeros(number * 100 + 1))
        if number % 5 == 0:
            space.put(f"old/{number}", content(number))
            space.rename(f"old/{number}", f"older/{number}")
            space.rename(f"older/{number}", name_of(number))
        else:
            space.put(name_of(number), content(number))
        if number % 3:
            space.delete(f"gap/{number}")
    return space


def fill_and_die(path: str) -> None:
    """As a kill of the last process leaves it: a view held, no seal."""
    space = fill(path)
    view = space[name_of(1)].numpy()
    space.delete("gap/0")
    space.put("gap/0", np.zeros(1))
    os._exit(int(view.size == 0))


def gaps() -> set[str]:
    return {f"gap/{number}" for number in range(NAMES) if number % 3 == 0}


def extents(path: Path) -> list[tuple[int, int]]:
    """The parts of a sparse file that have memory."""
    found, handle = [], os.open(path, os.O_RDONLY)
    try:
        end, at = os.fstat(handle).st_size, 0
        while at < end:
            try:
                start = os.lseek(handle, at, os.SEEK_DATA)
            except OSError:
                break
            at = os.lseek(handle, start, os.SEEK_HOLE)
            found.append((start, at))
    finally:
        os.close(handle)
    return found


class Pristine:
    """The bytes of a closed space, to be put back after each case."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sizes = {name: (directory / name).stat().st_size for name in (CONTROL, MEMBERS, DATA)}
        self.parts = {name: self._read(name) for name in self.sizes}
        self.used = {name: _not_zero(self.parts[name]) for name in (CONTROL, MEMBERS)}

    def _read(self, name: str) -> list[tuple[int, bytes]]:
        with (self.directory / name).open("rb") as file:
            parts = []
            for start, end in extents(self.directory / name):
                file.seek(start)
                parts.append((start, file.read(end - start)))
            return parts

    def restore(self, data: bool) -> None:
        """Writes back what differs, and takes away what was added."""
        for name, parts in self.parts.items():
            if name == DATA and not data:
                continue
            path = self.directory / name
            if path.stat().st_size != self.sizes[name]:
                os.truncate(path, self.sizes[name])
            handle = os.open(path, os.O_RDWR)
            try:
                whole = [(start, start + len(data)) for start, data in parts]  # a cut file lost some of these
                for start, end in sorted({*extents(path), *whole}):
                    _clean(handle, start, end, parts)
            finally:
                os.close(handle)


def _clean(handle: int, start: int, end: int, parts: list[tuple[int, bytes]]) -> None:
    before = next((data for at, data in parts if at == start and len(data) == end - start), None)
    current = os.pread(handle, end - start, start)
    if current == before:
        return
    now, was = np.frombuffer(current, np.uint8), np.zeros(end - start, np.uint8)
    for at, data in parts:
        low, high = max(at, start), min(at + len(data), end)
        if low < high:
            was[low - start : high - start] = np.frombuffer(data, np.uint8)[low - at : high - at]
    pages = np.flatnonzero((now.reshape(-1, 4096) != was.reshape(-1, 4096)).any(axis=1))
    for page in pages:
        os.pwrite(handle, was[page * 4096 : (page + 1) * 4096].tobytes(), start + int(page) * 4096)


def _not_zero(parts: list[tuple[int, bytes]]) -> list[int]:
    """Offsets of the 64-byte lines that say something."""
    found: list[int] = []
    for start, data in parts:
        lines = np.frombuffer(data, np.uint8).reshape(-1, 64).any(axis=1)
        found.extend((np.flatnonzero(lines) * 64 + start).tolist())
    return found


def damage(pristine: Pristine, seed: int) -> str:
    """Changes the files as the seed says; returns what was done, for people."""
    chance = random.Random(seed)
    name = CONTROL if chance.random() < 0.85 else MEMBERS
    path, size = pristine.directory / name, pristine.sizes[name]
    if chance.random() < 0.02:
        wanted = chance.choice(
            [0, 1, 100, 4096, 8192, size - 1, size - 4096, size + 1, size + 4096, chance.randrange(size)]
        )
        os.truncate(path, wanted)
        return f"{name} cut or stretched to {wanted}"
    done = []
    handle = os.open(path, os.O_RDWR)
    try:
        for _ in range(chance.choice([1, 1, 1, 2, 5])):
            at = _place(pristine, name, chance)
            change, what = _change(chance, os.pread(handle, 4096, at))
            os.pwrite(handle, change[: size - at], at)
            done.append(f"{what} at {at:#x} of {name}")
    finally:
        os.close(handle)
    return "; ".join(done)


def _place(pristine: Pristine, name: str, chance: random.Random) -> int:
    kind = chance.random()
    if kind < 0.8:
        return chance.choice(pristine.used[name]) + chance.randrange(64)
    if kind < 0.98:
        start, data = chance.choice(pristine.parts[name])
        return start + chance.randrange(len(data))
    return chance.randrange(pristine.sizes[name] // 8) * 8


def _change(chance: random.Random, old: bytes) -> tuple[bytes, str]:
    kind = chance.random()
    if kind < 0.4:
        bit = chance.randrange(8)
        return bytes([old[0] ^ 1 << bit]), f"bit {bit} flipped"
    if kind < 0.6:
        count = chance.choice([1, 8, 8, 64])
        return chance.randbytes(count), f"{count} random bytes"
    if kind < 0.75:
        count = chance.choice([8, 64, 256, 4096])
        return bytes(count), f"{count} zero bytes"
    if kind < 0.85:
        value = chance.choice([1, 2**63, 2**64 - 1, 4096, 0x2000_0000_0000, 2**48 - 64])
        return value.to_bytes(8, "little"), f"the word {value:#x}"
    count = chance.choice([8, 64])
    return old[count : 2 * count], f"{count} bytes of the next"


def judge(path: str, use: bool) -> str:
    """Opens the space and compares: 'right', 'refused', or what is wrong. With `use`, changes it too."""
    try:
        with Space.open(path) as space:
            wrong = _compare(space)
            if not wrong and (faults := {k: v for k, v in space.check().items() if k not in ("arrays", "bytes") and v}):
                wrong = f"the check found {faults}"
            return wrong or (use and _use(space)) or "right"
    except OpenshelfError as error:
        return "refused" if str(error) else "an error without a message"


def _compare(space: Space) -> str:
    wanted = {name_of(number) for number in range(NAMES)} | gaps()
    found = {entry.name for entry in space.list()}
    if found != wanted:
        return f"missing: {sorted(wanted - found)}, not known: {sorted(found - wanted)}"
    for number in range(NAMES):
        array = space.get(name_of(number))
        if array is None:
            return f"{name_of(number)} is listed and not found"
        if not np.array_equal(array.numpy(), content(number)):
            return f"{name_of(number)} has other bytes"
        if space.at(array.address, array.nbytes, "uint8").address != array.address:
            return f"{name_of(number)} is not found by its address"
    return ""


def _use(space: Space) -> str:
    """What opened must also work: every kind of change, then the check again."""
    for number in range(0, NAMES, 7):
        space.rename(name_of(number), f"moved/{number}")
        space.put(f"fresh/{number}", content(number))
        space.delete(f"moved/{number}")
    faults = {kind: count for kind, count in space.check().items() if kind not in ("arrays", "bytes") and count}
    return f"after use the check found {faults}" if faults else ""


def run(directory: str, seeds: range, report: Callable[[str], None]) -> dict[str, int]:
    """Runs cases one after another. `report` gets each case before it is tried, and what is wrong."""
    pristine = Pristine(Path(directory))
    counts: dict[str, int] = {}
    for seed in seeds:
        done = damage(pristine, seed)
        report(f"{seed}: {done}")
        use = seed % 8 == 0
        verdict = judge(directory, use)
        if verdict not in ("right", "refused"):
            report(f"WRONG {seed}: {done}: {verdict}")
            verdict = "wrong"
        counts[verdict] = counts.get(verdict, 0) + 1
        pristine.restore(data=use)
    return counts
