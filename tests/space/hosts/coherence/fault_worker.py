"""A process that reads and writes self-checking units of all hosts, until it is told to stop, killed, or lost."""

from __future__ import annotations

import contextlib
import faulthandler
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from openshelf import Space
from openshelf.errors import Closed, HostLost, UnknownName
from tests.processes import State
from tests.space.hosts.harness import worker
from tests.space.hosts.ledger import (
    DOING,
    HOLDER,
    HOSTS,
    SINCE_NS,
    STEPS,
    UNIT_WORDS,
    UNITS,
    Ledger,
    Problem,
    content,
    versions,
)

NOTICED_SECONDS = 3.5  # 3 are promised; the rest is for a machine with two processors and a dozen processes
LOCK_SECONDS = 2.0
OPENING, LOOKING, LOCKING, TOUCHING, GETTING, PUTTING, RELEASING, RESTING = range(1, 9)
STEP_NAMES = ("nothing", "open", "look-up", "lock", "touch", "get", "put", "release", "rest")


def publish(state: State, where: str, home: int, ledger: str) -> None:
    """Makes the units of a host that begins anew, and then says so."""
    worker.enter(state, where)
    book = Ledger(Path(ledger))
    epoch = book.begin(home)
    space: Space = state["space"]
    for unit in range(UNITS):
        space.lock(f"lock {home} {unit} {epoch}")
    with space.new(f"units {home} {epoch}", (UNITS + 1) * UNIT_WORDS, "uint64") as draft:
        view = _aligned(draft)
        for unit in range(UNITS):
            view[unit] = content(home, unit, epoch, 1)
    book.epochs[home] = epoch


def _aligned(array: Any) -> Any:
    """The whole units in it, a row each: what falls back to an old version does so unit by unit."""
    skip = -array.address % worker.UNIT // 8
    return array.numpy()[skip : skip + UNITS * UNIT_WORDS].reshape(UNITS, UNIT_WORDS)


class Units:
    """The units of one host in one epoch."""

    def __init__(self, worker: Worker, home: int, epoch: int) -> None:
        self.home, self.epoch = home, epoch
        with worker.doing(LOOKING):
            self.array = worker.space[f"units {home} {epoch}"]
        self.view = _aligned(self.array)
        self.locks = []
        for unit in range(UNITS):
            with worker.doing(LOOKING):
                self.locks.append(worker.space.lock(f"lock {home} {unit} {epoch}", home=home))


class Worker:
    def __init__(self, where: str, host: int, slot: int, seed: int, ledger: str, contribute: str) -> None:
        self.where, self.host, self.number, self.contribute = where, host, slot, contribute
        self.book = Ledger(Path(ledger))
        self.slot = self.book.slots[slot]
        self.random = random.Random(seed)
        self.token = seed % (1 << 40) << 8 | slot
        self.units: dict[int, Units] = {}
        self.buffer = np.zeros(UNIT_WORDS, np.uint64)
        self.counts = {"read": 0, "written": 0, "lost": 0, "fenced": 0, "busy": 0}

    @contextlib.contextmanager
    def doing(self, what: int, limit: float = NOTICED_SECONDS) -> Iterator[None]:
        """One step: seen from outside while it lasts; if it ends in HostLost, then soon enough and saying which."""
        start = time.monotonic_ns()
        self.slot[SINCE_NS] = start  # before it is said that anything is being done since then
        self.slot[DOING] = what
        try:
            yield
        except HostLost as error:
            took = (time.monotonic_ns() - start) / 1e9
            if took > limit:
                raise Problem(f"{STEP_NAMES[what]} raised HostLost only after {took:.1f} s: {error}") from None
            if not error.host or error.host not in str(error):
                raise Problem(f"{STEP_NAMES[what]} raised HostLost that does not name the host: {error}") from None
            raise
        finally:
            self.slot[DOING] = 0

    def run(self) -> dict[str, int]:
        with self.doing(OPENING):
            self.space = Space.open(self.where, contribute=self.contribute)
        while not self.book.stop:
            home = self.random.choice([home for home in range(HOSTS) if self.book.epochs[home] > 0])
            try:
                self.step(home)
                self.slot[STEPS] += 1
            except (HostLost, UnknownName, Closed):
                self.counts["lost"] += 1
                self.units.pop(home, None)
                with self.doing(RESTING):
                    time.sleep(0.02)
        return self.counts

    def step(self, home: int) -> None:
        epoch = int(self.book.epochs[home])
        if home not in self.units or self.units[home].epoch != epoch:
            self.units[home] = Units(self, home, epoch)
        units, unit = self.units[home], self.random.randrange(UNITS)
        lock = units.locks[unit]
        with self.doing(LOCKING, NOTICED_SECONDS + LOCK_SECONDS):
            if not lock.acquire(LOCK_SECONDS):
                self.counts["busy"] += 1
                return
        try:
            self.inside(units, unit)
        finally:
            with self.doing(RELEASING):
                lock.release()

    def inside(self, units: Units, unit: int) -> None:
        home, row = units.home, self.book.rows[units.home, unit]
        if int(self.book.epochs[home]) != units.epoch:
            return  # the row is no longer about this unit
        row[HOLDER] = self.token
        way = self.random.random()
        losses = [int(loss) for loss in self.book.losses[home]]
        words, reader = self.read(units, unit, way)
        if self.fenced(units, row):
            return
        self.book.check(home, unit, versions(words, home, unit, units.epoch), reader)
        self.counts["read"] += 1
        if self.random.random() < 0.5:
            self.write(units, unit, way, losses)

    def fenced(self, units: Units, row: Any) -> bool:
        """Whether another has been given the lock meanwhile: this host was cut off, or its home died."""
        gone = int(row[HOLDER]) != self.token or int(self.book.epochs[units.home]) != units.epoch
        self.counts["fenced"] += gone
        return gone

    def address(self, units: Units, unit: int) -> int:
        return int(units.view[unit].ctypes.data)

    def read(self, units: Units, unit: int, way: float) -> tuple[Any, int]:
        """A copy of a unit, and the host that got to see it."""
        if way < 0.15:
            with self.doing(GETTING):
                self.space.get(self.address(units, unit), self.buffer).wait()
            return self.buffer, units.home
        with self.doing(TOUCHING):
            return units.view[unit].copy(), self.host

    def write(self, units: Units, unit: int, way: float, losses: list[int]) -> None:
        home, row = units.home, self.book.rows[units.home, unit]
        version = self.book.begin_write(home, unit)
        words = content(home, unit, units.epoch, version)
        if 0.15 <= way < 0.25:
            with self.doing(PUTTING):
                self.space.put(self.address(units, unit), words).wait()
            writer = home
        else:
            with self.doing(TOUCHING):
                units.view[unit][:] = words
            writer = self.host
        if not self.fenced(units, row):
            self.book.end_write(home, unit, writer, losses[writer])
            self.counts["written"] += 1


def work(
    state: State, where: str, host: int, slot: int, seed: int, ledger: str, contribute: str = worker.CONTRIBUTE
) -> dict[str, int]:
    """Until the ledger says stop. A signal shows where it hangs."""
    faulthandler.register(signal.SIGUSR1, file=sys.stderr)
    return Worker(where, host, slot, seed, ledger, contribute).run()
