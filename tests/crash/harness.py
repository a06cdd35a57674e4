"""Kills workers at random moments and looks whether the space is as their journals say it must be."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from openshelf import Space, _core
from tests.crash.worker import PAUSE, STOP, words, work
from tests.processes import fork_server

WORKERS = 4
WATCHDOG = 60.0


class Problem(Exception):
    """What the harness is looking for."""


class Slot:
    """One worker after another, and what their common journal says."""

    def __init__(self, number: int, journal: Path) -> None:
        self.number, self.journal = number, journal
        self.process: Any = None
        self.read_to = 0
        self.names: dict[str, list[int]] = {}
        self.pending: list[Any] | None = None
        self.counted = self.maybe_counted = 0

    def replay(self) -> None:
        """Reads on in the journal; `pending` is what was begun and not reported as done."""
        if not self.journal.exists():
            return
        with self.journal.open("rb") as file:
            file.seek(self.read_to)
            for line in file:
                if not line.endswith(b"\n"):
                    os.truncate(
                        self.journal, self.read_to
                    )  # killed inside the write: what it was about to do was not begun
                    break
                self.read_to += len(line)
                self._take(json.loads(line))

    def _take(self, what: Any) -> None:
        if what == 0:
            assert self.pending is not None
            self.commit()
        elif what[0] == "fault":
            raise Problem(f"worker {self.number}: {what[1]}")
        else:
            self.pending = what
            self.maybe_counted += what[0] == "count"

    def commit(self) -> None:
        assert self.pending is not None
        kind, *arguments = self.pending
        if kind == "put":
            self.names[arguments[0]] = arguments[1]
        elif kind == "delete":
            del self.names[arguments[0]]
        elif kind == "rename":
            self.names[arguments[1]] = self.names.pop(arguments[0])
        elif kind == "count":
            self.counted += 1
        self.pending = None


class Harness:
    def __init__(self, home: Path, seed: int, recovery: bool = True) -> None:
        self.random, self.recovery = random.Random(seed), recovery
        self.path = str(home / "crash")
        self.context = fork_server()
        _core.set_recovery(recovery)
        self.space = Space.create("crash", "128MiB")
        self.space.zeros("control", 2 + WORKERS, "int32")
        self.space.zeros("guarded", 2, "int64")
        self.space.channel("channel", 8, 64)
        self.space.lock("lock")
        self.space.counter("counter")
        self.made = set(self.space)
        self.asked = 0
        self.slots = [Slot(number, home / f"journal-{number}") for number in range(WORKERS)]

    def start(self, slot: Slot) -> None:
        arguments = (
            self.path,
            slot.number,
            self.random.getrandbits(32),
            str(slot.journal),
            dict(slot.names),
            self.recovery,
        )
        slot.process = self.context.Process(target=work, args=arguments)
        slot.process.start()

    def run(self, kills: int, every: int = 5) -> None:
        """Starts everybody, kills `kills` times, verifies after every few, and at the end."""
        try:
            for slot in self.slots:
                self.start(slot)
            for number in range(kills):
                time.sleep(self.random.random() * 0.03)
                self.kill(self.random.choice(self.slots))
                if number % every == every - 1:
                    self.verify()
            self.finish()
        finally:
            self.abandon()

    def run_killing_all(self, rounds: int) -> None:
        """Kills everybody at once: the next to open the space finds only what is in its files."""
        try:
            for _ in range(rounds):
                for slot in self.slots:
                    self.start(slot)
                self.space.close()
                time.sleep(0.05 + self.random.random() * 0.1)
                for slot in self.random.sample(self.slots, WORKERS):
                    os.kill(slot.process.pid, signal.SIGKILL)
                for slot in self.slots:
                    slot.process.join(WATCHDOG)
                    slot.replay()
                assert _core.live_members(self.path) == 0
                self.space = Space.open("crash")
                for slot in self.slots:
                    self.resolve(slot)
                self.compare(exact=True)
        finally:
            self.abandon()

    def kill(self, slot: Slot) -> None:
        os.kill(slot.process.pid, signal.SIGKILL)
        slot.process.join(WATCHDOG)
        slot.replay()
        if slot.process.exitcode != -signal.SIGKILL:
            raise Problem(f"worker {slot.number} ended by itself with {slot.process.exitcode}")
        self.resolve(slot)
        self.start(slot)

    def resolve(self, slot: Slot) -> None:
        """What was under way when it was killed happened wholly or not at all."""
        if slot.pending is None:
            return
        kind, *arguments = slot.pending
        if kind == "put":
            name, fact = arguments
            old = self.shows(name, slot.names[name]) if name in slot.names else name not in self.space
            if old:
                slot.pending = None
            elif self.shows(name, fact):
                slot.commit()
            else:
                raise Problem(f"{name} is neither old nor new after a kill in put")
        elif kind == "delete":
            if arguments[0] in self.space:
                slot.pending = None
            else:
                slot.commit()
        elif kind == "rename":
            old, new = (name in self.space for name in arguments)
            if old == new:
                raise Problem(f"after a kill in rename {'both' if old else 'none'} of {arguments} are there")
            if new:
                slot.commit()
            slot.pending = None
        elif kind == "count":
            slot.pending = None

    def shows(self, name: str, fact: list[int]) -> bool:
        array = self.space.get(name)
        if array is None:
            return False
        version, count = fact
        view = array.numpy()
        if view.size != abs(count):
            return False
        return bool((view == version).all() if count < 0 else (view == words("", version, count)).all())

    def pause(self) -> None:
        self.asked += 1
        control = self.space["control"]
        control.atomic(PAUSE).store(self.asked)
        deadline = time.monotonic() + WATCHDOG
        for slot in self.slots:
            answer = control.atomic(2 + slot.number)
            while answer.load() != self.asked:
                if slot.process.exitcode is not None:
                    slot.replay()
                    raise Problem(f"worker {slot.number} ended by itself with {slot.process.exitcode}")
                if time.monotonic() > deadline:
                    os.kill(slot.process.pid, signal.SIGUSR1)
                    time.sleep(1)
                    raise Problem(f"worker {slot.number} hangs: no answer in {WATCHDOG} s")
                time.sleep(0.001)

    def verify(self) -> None:
        self.pause()
        for slot in self.slots:
            slot.replay()
            if slot.pending is not None:
                raise Problem(f"worker {slot.number} paused in the middle of {slot.pending}")
        self.compare(exact=self.asked % 2 == 0)
        self.space["control"].atomic(PAUSE).store(0)
        self.space["control"].atomic(PAUSE).wake()

    def compare(self, exact: bool) -> None:
        wanted = {name: fact for slot in self.slots for name, fact in slot.names.items()}
        found = set(self.space) - self.made
        if found != set(wanted):
            lost, extra = sorted(set(wanted) - found), sorted(found - set(wanted))
            raise Problem(f"names lost: {lost}, names that should not be there: {extra}")
        for name, fact in wanted.items():
            if not self.shows(name, fact):
                raise Problem(f"{name} does not hold what was published")
        checked = self.space.check()
        faults = {kind: count for kind, count in checked.items() if kind not in ("arrays", "bytes") and count}
        if faults:
            raise Problem(f"the check found {faults}")
        entries = self.space._native.list("")
        if exact and checked["bytes"] != sum(entry[1] for entry in entries):
            raise Problem(f"{checked['bytes'] - sum(e[1] for e in entries)} bytes are kept, but nobody holds them")
        counted, maybe = sum(s.counted for s in self.slots), sum(s.maybe_counted for s in self.slots)
        value = self.space.counter("counter").value
        if not counted <= value <= maybe:
            raise Problem(f"the counter is {value}, not in {counted} to {maybe}")

    def finish(self) -> None:
        """Ends the workers in order; then all that is left is what they published."""
        self.verify()
        self.space["control"].atomic(PAUSE).store(STOP)
        for slot in self.slots:
            slot.process.join(WATCHDOG)
            slot.replay()
            if slot.process.exitcode != 0:
                raise Problem(f"worker {slot.number} did not end: {slot.process.exitcode}")
        self.compare(exact=True)
        for slot in self.slots:
            for name in slot.names:
                self.space.delete(name)
            slot.names.clear()
        self.space.delete("channel")
        self.made.remove("channel")
        self.compare(exact=True)
        if len(self.space._native.list("")) != len(self.made):
            raise Problem("arrays that were under way in the channel are left")

    def abandon(self) -> None:
        for slot in self.slots:
            if slot.process is not None and slot.process.exitcode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(slot.process.pid, signal.SIGKILL)
                slot.process.join(WATCHDOG)
        _core.set_recovery(True)
