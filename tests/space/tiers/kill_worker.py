"""A process that writes, reads and moves self-describing words in a space larger than memory, until it is killed.

What it is about to write and what it has written it says in small arrays, which never leave memory: `begun` and `acked`
hold versions of the arrays that it publishes, and the round in which it is with its words of the array `counters`. A
round sets some words of one unit to its number; so what any word must be follows from the last round.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from openshelf import Array, Space
from openshelf.errors import NoRoom, NotPermitted
from tests.space.tiers.shelves import MIB, UNIT, Words, words

WORKERS, ARRAYS, UNITS, STRIDE = 4, 4, 64, 64
ROUND = ARRAYS  # the column of the round
FAULT = 3  # exit code of a worker that found something wrong

Row = np.ndarray[Any, np.dtype[np.int64]]


class Wrong(Exception):
    """Something that must never be seen."""


def label(slot: int, number: int) -> int:
    return 16 * slot + number


def check_array(view: Words, slot: int, number: int, least: int, most: int) -> None:
    """All words are of one version, not older than what was acknowledged before it was looked up."""
    version = int(view[0]) >> 32 & 0xFFFF
    if not np.array_equal(view, words(label(slot, number), version, view.nbytes)):
        bad = int(np.flatnonzero(view != words(label(slot, number), version, view.nbytes))[0])
        raise Wrong(f"array {number} of {slot}: {int(view[bad]):#x} at word {bad}, version {version}")
    if not least <= version <= most:
        raise Wrong(f"array {number} of {slot}: version {version}, not in {least} to {most}")


def last_round(unit: int, until: int) -> int:
    """The last round up to this one that set words of the unit; 0 if none did."""
    return max(0, until - (until - unit) % UNITS)


def check_counters(part: Words, slot: int, unit: int, least: int, most: int) -> None:
    mine = part[slot::STRIDE]
    low, high = last_round(unit, least), last_round(unit, most)
    if not ((mine >= low) & (mine <= high)).all():
        raise Wrong(f"unit {unit}, words of {slot}: {sorted(set(mine.tolist()))}, not in {low} to {high}")


class Worker:
    def __init__(self, slot: int, seed: int) -> None:
        self.space, self.slot, self.random = Space.open("kill"), slot, random.Random(seed)
        self.begun, self.acked = self.space["begun"].numpy(), self.space["acked"].numpy()
        self.counters, self.stop = self.space["counters"], self.space["stop"].numpy()
        self.kept: list[tuple[Words, int, int, int]] = []
        self.pins: list[Any] = []
        self.wheel = [
            self.put, self.put, self.bump, self.bump, self.bump, self.look, self.look, self.look_at_counters,
            self.demote, self.demote, self.prefetch, self.pin, self.press, self.keep, self.look_again, self.by_address,
        ]  # fmt: skip

    def part(self, unit: int) -> Array:
        part: Array = self.counters[unit * UNIT // 8 : (unit + 1) * UNIT // 8]
        return part

    def put(self) -> None:
        number = self.random.randrange(ARRAYS)
        version = int(self.begun[self.slot, number]) + 1
        self.begun[self.slot, number] = version
        nbytes = self.random.choice([300 << 10, MIB, 2 * MIB])
        self.space.put(f"{self.slot}/{number}", words(label(self.slot, number), version, nbytes))
        self.acked[self.slot, number] = version

    def bump(self) -> None:
        for _ in range(self.random.randrange(1, 20)):
            number = int(self.acked[self.slot, ROUND]) + 1
            self.begun[self.slot, ROUND] = number
            self.part(number % UNITS).numpy()[self.slot :: STRIDE] = number
            self.acked[self.slot, ROUND] = number

    def by_address(self) -> None:
        number = int(self.acked[self.slot, ROUND]) + 1
        self.begun[self.slot, ROUND] = number
        part = self.part(number % UNITS)
        places = [part.address + 8 * place for place in range(self.slot, UNIT // 8, STRIDE)]
        self.space.put(places, np.full((len(places), 1), number, np.uint64)).wait()
        self.acked[self.slot, ROUND] = number

    def find(self) -> tuple[Array, int, int, int] | None:
        slot, number = self.random.randrange(WORKERS), self.random.randrange(ARRAYS)
        least = int(self.acked[slot, number])
        array = self.space.get(f"{slot}/{number}")
        if array is None and least:
            raise Wrong(f"array {number} of {slot} is gone")
        return None if array is None else (array, slot, number, least)

    def look(self) -> None:
        if found := self.find():
            array, slot, number, least = found
            check_array(array.numpy(), slot, number, least, int(self.begun[slot, number]))

    def look_at_counters(self) -> None:
        for _ in range(8):
            slot, unit = self.random.randrange(WORKERS), self.random.randrange(UNITS)
            least = int(self.acked[slot, ROUND])
            part = self.part(unit).numpy().copy()
            check_counters(part, slot, unit, least, int(self.begun[slot, ROUND]))

    def keep(self) -> None:
        """A view that outlives the name: what it shows never changes."""
        if found := self.find():
            array, slot, number, _ = found
            view = array.numpy()
            version = int(view[0]) >> 32 & 0xFFFF
            self.kept = [*self.kept[-2:], (view, slot, number, version)]

    def look_again(self) -> None:
        for view, slot, number, version in self.kept:
            check_array(view, slot, number, version, version)

    def some(self) -> Array | None:
        if self.random.random() < 0.5:
            first = self.random.randrange(UNITS)
            units: Array = self.counters[first * UNIT // 8 : (first + self.random.randrange(1, 20)) * UNIT // 8]
            return units
        found = self.find()
        return found[0] if found else None

    def demote(self) -> None:
        if (array := self.some()) is not None:
            handle = array.demote()
            if self.random.random() < 0.7:
                handle.wait()

    def prefetch(self) -> None:
        if (array := self.some()) is not None:
            handle = array.prefetch(priority=self.random.randrange(-3, 4))
            if self.random.random() < 0.2:
                handle.cancel()
            elif self.random.random() < 0.7:
                handle.wait()

    def pin(self) -> None:
        if (array := self.some()) is not None:
            pin = array.pin()
            pin.wait()
            if array.tier != "dram":
                raise Wrong(f"pinned bytes are in {array.tier}")
            self.pins = [*self.pins[-1:], pin]

    def press(self) -> None:
        self.space.put(None, words(200, 1, 4 * MIB))

    def run(self) -> None:
        while not self.stop[0]:
            try:
                self.random.choice(self.wheel)()
            except (NoRoom, NotPermitted):  # pins of others
                self.pins.clear()
                self.kept.clear()
            self.stop[1 + self.slot] += 1


def work(home: str, slot: int, seed: int, faults: str, told: str) -> None:
    os.environ.update(OPENSHELF_DIR=home, OPENSHELF_FAULTS=faults, OPENSHELF_LINGER="5")
    with Path(told).open("a") as file:
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
        try:
            Worker(slot, seed).run()
        except BaseException:
            file.write(traceback.format_exc())
            file.flush()
            os._exit(FAULT)
