"""A process that changes a space at random and says in a journal what it is about to do, until it is killed.

The journal is a file: what was written to it survives the writer. One line before each change, one after it.
Names begin with the worker's slot, and nobody else changes them: its reader knows what must be there.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import time
import zlib
from typing import Any

import numpy as np

from openshelf import Array, Channel, Space, _core
from openshelf.errors import UnknownName

PAUSE, DROPPED = (
    0,
    1,
)  # words of the control array: what the parent asks for, how many answered; then one per slot
STOP = -1
GROW_LIMIT = 512 << 20
VIEWS, NAMES, ANONYMOUS = 8, 12, 4
FAULT = 3  # exit code of a worker that found something wrong
_RAMP = np.arange(1 << 18, dtype=np.uint32) * np.uint32(2654435761)

Words = np.ndarray[Any, np.dtype[np.uint32]]


def words(text: str, version: int, count: int) -> Words:
    """The content of an array: its version, then words that follow from it, a text and their place."""
    made = _RAMP[:count] + np.uint32((zlib.crc32(text.encode()) + version) & 0xFFFFFFFF)
    made[0] = version
    return made


def wrong(text: str, version: int, view: Words) -> bool:
    return not np.array_equal(view, words(text, version, view.size))


class Fault(Exception):
    """Something that must never be seen."""


class Worker:
    def __init__(self, path: str, slot: int, seed: int, journal: str, names: dict[str, list[int]]) -> None:
        self.space = Space.open(path)
        self.slot, self.random, self.names = slot, random.Random(seed), names
        self.journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.control = self.space["control"]
        self.channel: Channel = self.space.channel("channel", 8, 64)
        self.lock, self.counter = self.space.lock("lock"), self.space.counter("counter")
        self.guarded = self.space["guarded"].numpy()
        self.views: list[tuple[str, int, Words]] = []
        self.anonymous: list[tuple[int, Array]] = []
        self.wheel = [
            self.put, self.put, self.put, self.put, self.new, self.new, self.full, self.delete, self.delete,
            self.rename, self.rename, self.hold, self.hold, self.make_anonymous, self.send, self.send,
            self.receive, self.receive, self.take_lock, self.count, self.look, self.grow,
        ]  # fmt: skip

    def write(self, *what: Any) -> None:
        os.write(self.journal, (json.dumps(what) + "\n").encode())

    def done(self) -> None:
        os.write(self.journal, b"0\n")

    def size(self) -> int:
        """In words: mostly small, some of several pages, a few of a megabyte."""
        kind = self.random.random()
        return self.random.randint(4, 500 if kind < 0.7 else 30_000 if kind < 0.95 else 1 << 18)

    def fresh_name(self) -> str | None:
        free = [f"{self.slot}/{number}" for number in range(NAMES) if f"{self.slot}/{number}" not in self.names]
        return self.random.choice(free) if free else None

    def own_name(self) -> str | None:
        return self.random.choice(list(self.names)) if self.names else None

    # Each changes one thing, between a line that says so and a line that it is done.

    def put(self) -> None:
        name = f"{self.slot}/{self.random.randrange(NAMES)}"
        fact = [self.random.getrandbits(31), self.size()]
        self.write("put", name, fact)
        self.space.put(name, words("", *fact))
        self.done()
        self.names[name] = fact

    def new(self) -> None:
        name, fact = self.fresh_name(), [self.random.getrandbits(31), self.size()]
        if name is None:
            return
        self.write("put", name, fact)
        with self.space.new(name, fact[1], "uint32") as draft:
            if draft.numpy().any():
                raise Fault("recycled memory was not cleared")
            draft.numpy()[:] = words("", *fact)
        self.done()
        self.names[name] = fact

    def full(self) -> None:
        name = self.fresh_name()
        if name is None:
            return
        fact = [self.random.choice([0, 0xABCD]), -self.size()]
        self.write("put", name, fact)
        if fact[0]:
            self.space.full(name, -fact[1], fact[0], "uint32")
        else:
            self.space.zeros(name, -fact[1], "uint32")
        self.done()
        self.names[name] = fact

    def delete(self) -> None:
        name = self.own_name()
        if name is None:
            return
        self.write("delete", name)
        self.space.delete(name)
        self.done()
        del self.names[name]

    def rename(self) -> None:
        name, to = self.own_name(), self.fresh_name()
        if name is None or to is None:
            return
        self.write("rename", name, to)
        self.space.rename(name, to)
        self.done()
        self.names[to] = self.names.pop(name)

    def hold(self) -> None:
        """Keeps a view of anybody's array; what it shows must not change any more."""
        if len(self.views) == VIEWS:
            self.views.pop(self.random.randrange(VIEWS))
        name = f"{self.random.randrange(4)}/{self.random.randrange(NAMES)}"
        array = self.space.get(name)
        if array is None:
            return
        view: Words = array.numpy()
        version = int(view[0])
        if version in (0, 0xABCD):
            return
        if wrong("", version, view):
            raise Fault(f"{name} was torn when it was found")
        self.views.append((name, version, view))

    def make_anonymous(self) -> None:
        if len(self.anonymous) == ANONYMOUS:
            self.anonymous.pop(self.random.randrange(ANONYMOUS))
        version = self.random.getrandbits(31)
        self.anonymous.append((version, self.space.put(None, words("anonymous", version, self.size()))))

    def send(self) -> None:
        kind = self.random.random()
        if kind < 0.4 and self.anonymous:
            _, array = self.anonymous.pop()
            self.channel.send(array, 0)
        elif kind < 0.7 and self.names:
            name = self.own_name()
            self.channel.send(self.space[name or ""], 0)
        else:
            payload = os.urandom(40)
            self.channel.send(payload + zlib.crc32(payload).to_bytes(4, "little"), 0)

    def receive(self) -> None:
        try:
            got = self.channel.receive(0)
        except UnknownName:
            return
        if isinstance(got, bytes):
            if zlib.crc32(got[:-4]).to_bytes(4, "little") != got[-4:]:
                raise Fault("a message was torn")
        elif got is not None:
            view: Words = got.numpy()
            version = int(view[0])
            if version not in (0, 0xABCD) and wrong("", version, view) and wrong("anonymous", version, view):
                raise Fault("an array came out of the channel torn")
            if len(self.views) < VIEWS and not wrong("", version, view):
                self.views.append(("from the channel", version, view))

    def take_lock(self) -> None:
        if not self.lock.acquire(30):
            raise Fault("nobody let go of the lock for 30 s")
        if self.guarded[0] != self.guarded[1] and not self.lock.previous_died:
            raise Fault("two had the lock at once, or a death was not told")
        value = self.random.getrandbits(30)
        self.guarded[0] = value
        time.sleep(0)
        self.guarded[1] = value
        self.lock.release()

    def count(self) -> None:
        self.write("count")
        self.counter.add()
        self.done()

    def look(self) -> None:
        for name, version, view in self.views:
            if wrong("", version, view):
                raise Fault(f"the memory of a held view (of {name}) was used for something else")
        for version, array in self.anonymous:
            if wrong("anonymous", version, array.numpy()):
                raise Fault("the memory of a held anonymous array was used for something else")

    def grow(self) -> None:
        if self.random.random() < 0.05 and self.space._native.stats()["bytes"] < GROW_LIMIT:
            self.space.grow(self.random.randint(1, 16) << 16)

    def pause(self, asked: int) -> None:
        """Waits, holding nothing half done; drops everything first if the number is even."""
        self.look()
        if asked % 2 == 0:
            self.views.clear()
            self.anonymous.clear()
            self.space.describe()  # hands back what it dropped
        answer, ask = self.control.atomic(2 + self.slot), self.control.atomic(PAUSE)
        answer.store(asked)
        while ask.load() == asked:
            ask.wait(asked, 0.05)

    def run(self) -> None:
        ask = self.control.atomic(PAUSE)
        while True:
            asked = ask.load()
            if asked == STOP:
                return
            if asked:
                self.pause(asked)
                continue
            self.random.choice(self.wheel)()


def work(path: str, slot: int, seed: int, journal: str, names: dict[str, list[int]], recovery: bool) -> None:
    faulthandler.register(signal.SIGUSR1)
    _core.set_recovery(recovery)
    worker = None
    try:
        worker = Worker(path, slot, seed, journal, names)
        worker.run()
    except BaseException as error:
        handle = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(handle, (json.dumps(["fault", f"{type(error).__name__}: {error}"]) + "\n").encode())
        os._exit(FAULT)
