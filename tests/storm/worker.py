"""A process of a storm: does what its plan says, judges all that it sees, and leaves nothing behind when it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
import zlib
from typing import Any

from openshelf import Array, Space, spaces
from openshelf.errors import (
    AddressOccupied,
    Cancelled,
    Closed,
    NameTaken,
    NoRoom,
    NotPermitted,
    UnknownName,
)
from tests.storm.ledger import (
    ABSENT,
    CHILD,
    CONTESTED,
    NONE,
    SINCE_NS,
    STEP,
    TALLIES,
    THERE,
    WORKERS,
    Change,
    Problem,
    Words,
    content_of,
    tag,
    words,
)
from tests.storm.member import TITLES, Handle, Held, Member, furnish
from tests.storm.plan import OPERATIONS, Operation, operations

TROUBLE_S = 20.0
REMOVED = "was removed, and its keeper ended"  # and nobody else brings its bytes back
FAULT = 3  # exit code of a forked child that found something wrong
_VIEWS, _PINS = 4, 2
_GROWN = 128 << 20
_LOCK_S = 30.0  # the storm's watchdog is quicker


class _Abandoned(Exception):
    """Raised inside a draft's block."""


class Worker(Member):
    def __init__(self, kind: str, slot: int, place: str) -> None:
        super().__init__(kind, slot, place)
        self.child = 0

    def count(self, what: str) -> None:
        self.book.tallies[self.slot, TALLIES.index(what)] += 1

    def run(self, seed: int, life: int) -> None:
        codes = {name: number for number, name in enumerate(sorted(OPERATIONS[self.kind]), 2)}
        self.row[STEP] = 0
        with self.doing(1):
            self.resolve()
        for number, operation in enumerate(operations(self.kind, seed, self.slot, life)):
            if self.book.stop:
                break
            self.row[STEP] = number
            with self.doing(codes[operation.what]):
                self.before_step()
                getattr(self, operation.what)(operation)
            self.count("steps")
        with self.doing(1):
            self.reap()
            self.look_again()
            self.end()

    def before_step(self) -> None:
        """For those who must look around first."""

    # Life of spaces

    def create(self, step: Operation) -> None:
        if not self.owns(step.space):
            return
        if self.book.life(step.space)[1] == ABSENT:
            self.make(step.space)
            return
        with contextlib.suppress(NameTaken):
            Space.create(TITLES[step.space], "64MiB")
            raise Problem(f"{TITLES[step.space]} was created twice")

    def remove(self, step: Operation) -> None:
        if not self.owns(step.space) or self.book.life(step.space)[1] != THERE:
            return
        if step.chance < 0.3:
            self.leave(step.space)
        self.unmake(step.space)
        if step.chance < 0.7:
            self.make(step.space)

    def contest(self, step: Operation) -> None:
        """Everybody creates and removes this one: whoever gets it finds it whole."""
        if step.chance < 0.4:
            with contextlib.suppress(UnknownName):
                Space.remove(TITLES[CONTESTED])
            return
        try:
            life = self.slot << 16 | self.fresh() & 0xFFFF
            options = self.options(CONTESTED, life)
            space = Space.create(TITLES[CONTESTED], "64MiB", exist_ok=step.chance < 0.8, **options)
            furnish(space, CONTESTED, life)
        except (NameTaken, Closed, UnknownName, AddressOccupied):
            pass  # enter() judges the last one

    def open(self, step: Operation) -> None:
        self.leave(step.space)
        self.enter(step.space)

    def close(self, step: Operation) -> None:
        self.leave(step.space)

    def read_only(self, step: Operation) -> None:
        """Page protection is per process: what is held of the space for writing refuses it."""
        self.leave(step.space)
        self.pins.clear()
        if handle := self.enter(step.space, "r", NotPermitted):
            with self.law(handle):
                self.read(handle, step.owner, step.name)
        self.leave(step.space)

    def members(self, step: Operation) -> None:
        with contextlib.suppress(UnknownName):
            count = Space.members(TITLES[step.space])
            if not 0 <= count <= 4 * WORKERS:
                raise Problem(f"{TITLES[step.space]} has {count} members")

    def list(self, step: Operation) -> None:
        spaces()
        if handle := self.enter(step.space):
            with self.law(handle):
                strange = [name for name in handle.space if "/" not in name and name not in _FURNITURE]
                if strange:
                    raise Problem(f"names that nobody gave: {strange}")

    def describe(self, step: Operation) -> None:
        if handle := self.enter(step.space):
            with self.law(handle):
                handle.space.describe()

    def grow(self, step: Operation) -> None:
        if handle := self.enter(step.space):
            with self.law(handle):
                if handle.space.describe()["bytes"] < _GROWN:
                    handle.space.grow(step.length * 8)

    # Names

    def put(self, step: Operation) -> None:
        if handle := self.enter(step.space):
            change = Change(handle.life, NONE, step.name, self.fresh())
            with self.changing(handle, change):
                handle.space.put(self.title(step.name), self.text(handle, change, step.length), **self.homes(step.name))
                self.count("changed")

    def text(self, handle: Handle, change: Change, count: int) -> Words:
        return words(tag(handle.number, handle.life, self.slot, change.content), count)

    def draft(self, step: Operation) -> None:
        handle = self.enter(step.space)
        if handle is None or step.name in self.shown(handle):
            return
        change = Change(handle.life, NONE, step.name, self.fresh())
        with self.changing(handle, change):
            with handle.space.new(self.title(step.name), step.length, "uint64", **self.homes(step.name)) as array:
                if array.numpy().any():
                    raise Problem("a draft is not clear")
                array.numpy()[:] = self.text(handle, change, step.length)
            self.count("changed")

    def shown(self, handle: Handle) -> dict[int, int]:
        return self.book.shown(handle.number, self.slot, handle.life)

    def abandon(self, step: Operation) -> None:
        if handle := self.enter(step.space):
            with self.law(handle, NameTaken), contextlib.suppress(_Abandoned):
                with handle.space.new(self.title(step.name), step.length, "uint64", **self.homes(step.name)) as array:
                    array.numpy()[:] = 1
                    raise _Abandoned

    def delete(self, step: Operation) -> None:
        if handle := self.enter(step.space):
            content = self.shown(handle).get(step.name, 0)
            if content or self.contested(handle.number):
                with self.changing(handle, Change(handle.life, step.name, NONE, 0)):
                    handle.space.delete(self.title(step.name))
                    self.count("changed")

    def rename(self, step: Operation) -> None:
        if handle := self.enter(step.space):
            shown = self.shown(handle)
            if (step.name in shown and step.other not in shown) or self.contested(handle.number):
                change = Change(handle.life, step.name, step.other, shown.get(step.name, 0))
                with self.changing(handle, change):
                    handle.space.rename(self.title(step.name), self.title(step.other))
                    self.count("changed")

    def look(self, step: Operation) -> None:
        if handle := self.enter(step.space):
            with self.law(handle):
                self.read(handle, step.owner, step.name)
                self.count("read")

    def hold(self, step: Operation) -> None:
        if handle := self.enter(step.space):
            with self.law(handle):
                if found := self.read(handle, step.owner, step.name):
                    self.keep(found[1])

    def drop(self, step: Operation) -> None:
        self.views = self.views[: int(step.chance * len(self.views))]
        self.pins.clear()

    # Processes

    def nameless(self, handle: Handle, count: int) -> Array:
        text = words(tag(handle.number, handle.life, self.slot, self.fresh()), count)
        return handle.space.put(None, text, **self.homes(0))

    def unnamed(self, step: Operation) -> None:
        """An array that lives while this process holds it."""
        if handle := self.enter(step.space):
            with self.law(handle):
                view: Words = self.nameless(handle, step.length).numpy()
                content = content_of(view, handle.number, handle.life, self.slot)
                self.keep(Held(view, handle.number, handle.life, self.slot, content))

    def keep(self, held: Held) -> None:
        self.views = [*self.views[-_VIEWS + 1 :], held]

    def send(self, step: Operation) -> None:
        if handle := self.enter(step.space):
            with self.law(handle, UnknownName):
                channel = handle.space.channel("channel", 8, 64)
                if step.chance < 0.3:
                    channel.send(self.nameless(handle, step.length), 0)
                elif step.chance < 0.6:
                    channel.send(handle.space[self.title(step.name)], 0)
                else:
                    text = f"{self.slot} {self.fresh()}".encode()
                    channel.send(text + zlib.crc32(text).to_bytes(4, "little"), 0)

    def receive(self, step: Operation) -> None:
        if handle := self.enter(step.space):
            with self.law(handle, UnknownName):
                got = handle.space.channel("channel", 8, 64).receive(0)
                if isinstance(got, bytes):
                    if zlib.crc32(got[:-4]).to_bytes(4, "little") != got[-4:]:
                        raise Problem("a message was torn")
                elif got is not None:
                    view: Words = got.numpy()
                    content_of(view, handle.number, handle.life, int(view[0]) >> 56 & 15)

    def take_lock(self, step: Operation) -> None:
        if handle := self.enter(step.space):
            with self.law(handle):
                lock, guarded = handle.space.lock("lock"), handle.space["guarded"].numpy()
                if not lock.acquire(_LOCK_S):
                    raise Problem("nobody let go of the lock")
                if guarded[0] != guarded[1] and not lock.previous_died:
                    raise Problem("two had the lock at once, or a death was not told")
                guarded[0] = number = self.fresh() << 8 | self.slot
                time.sleep(0)
                guarded[1] = number
                lock.release()

    def add(self, step: Operation) -> None:
        if handle := self.enter(step.space):
            with self.law(handle):
                handle.space.counter("count").add()

    def fork(self, step: Operation) -> None:
        self.reap()
        pid = os.fork()
        if pid == 0:
            self.be_child(step)
        self.row[CHILD] = self.child = pid
        self.count("forked")
        if step.chance < 0.5:
            self.reap()

    def be_child(self, step: Operation) -> None:
        """Has what its parent has, though that lets go of it; and may do what its parent may, except change names."""
        try:
            self.row, slot = self.book.slots[WORKERS + self.slot], self.slot
            with self.doing(1):
                for number in range(1 + int(step.chance * 3)):
                    self.row[SINCE_NS] = time.monotonic_ns()
                    self.look_again()
                    self.take_lock(step)
                    self.look(step._replace(owner=(slot + number) % WORKERS))
                    if handle := self.enter(step.space):
                        with self.law(handle):
                            self.check_unnamed(handle, step.length)
                self.look_again()
                if step.chance < 0.7:
                    self.end()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(FAULT)

    def check_unnamed(self, handle: Handle, count: int) -> None:
        text = words(tag(handle.number, handle.life, self.slot, 0), count)
        if not (handle.space.put(None, text).numpy() == text).all():
            raise Problem("an array without a name shows other words")

    def reap(self) -> None:
        if self.child:
            pid, self.child = self.child, 0
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            self.row[CHILD] = 0  # before the number can be another's
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if not self.lawful_end(code):
                raise Problem(f"a forked child ended with {code}")

    def lawful_end(self, code: int) -> bool:
        """Where there are keepers, touches end with them for ever if the space was removed, or its host is lost."""
        touched = self.kind != "plain" and code == -signal.SIGBUS and self.troubled()
        return touched or code in (0, -signal.SIGKILL)

    def troubled(self) -> bool:
        """Whether the storm had its hand on a keeper, or on a whole host, a short time ago."""
        return time.monotonic() - self.book.trouble_s < TROUBLE_S

    # Tiers

    def some(self, step: Operation) -> tuple[Handle, Any] | None:
        if handle := self.enter(step.space):
            with self.law(handle):
                if found := self.read(handle, step.owner, step.name):
                    return handle, found[0]
        return None

    def demote(self, step: Operation) -> None:
        if found := self.some(step):
            with self.law(found[0], NoRoom, NotPermitted):
                transfer = found[1].demote()
                if step.chance < 0.7:
                    transfer.wait()

    def prefetch(self, step: Operation) -> None:
        if found := self.some(step):
            with self.law(found[0], NoRoom, Cancelled):
                transfer = found[1].prefetch(priority=step.name)
                if step.chance < 0.2:
                    transfer.cancel()
                if step.chance < 0.7:
                    transfer.wait()

    def pin(self, step: Operation) -> None:
        if found := self.some(step):
            with self.law(found[0], NoRoom):
                pin = found[1].pin()
                pin.wait()
                if found[1].tier != "dram":
                    raise Problem(f"pinned bytes are in {found[1].tier}")
                self.pins = [*self.pins[-_PINS + 1 :], pin]

    def press(self, step: Operation) -> None:
        if handle := self.enter(step.space):
            with self.law(handle):
                self.nameless(handle, 1 << 18)

    def flush(self, step: Operation) -> None:
        """What was done before it is there after a power cut."""
        if handle := self.enter(step.space):
            done = self.book.done[step.space].copy()
            with self.law(handle, NoRoom):
                handle.space.flush().wait()
                if handle.number != CONTESTED and self.book.there(handle.number, handle.life):
                    self.book.note_flush(handle.number, done)


_FURNITURE = ("guarded", "count", "lock", "channel", "life")
