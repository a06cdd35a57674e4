"""A worker's hold on the spaces of a storm: what it has open, what it holds, and which errors are lawful when."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from openshelf import Array, Space
from openshelf.errors import AddressOccupied, Closed, NameTaken, OpenshelfError, UnknownName
from tests.storm.ledger import (
    ABSENT,
    CONTESTED,
    CREATING,
    DOING,
    NONE,
    REMOVING,
    SINCE_NS,
    SPACES,
    THERE,
    Change,
    Ledger,
    Problem,
    Words,
    content_of,
    tag,
    words,
)

TITLES = ("red", "blue", "grey")
_FIRST_BASE, _STEP = 0x3000_0000_0000, 32 << 30  # above what the package chooses by itself
_DRAM = {"plain": 64 << 20, "tiered": 32 << 20, "durable": 32 << 20}
_FLASH = {"tiered": 128 << 20, "durable": 192 << 20}


class Handle(NamedTuple):
    """An open space, and which life of it this is: its own array `life` says so."""

    space: Space
    number: int
    life: int


class Held(NamedTuple):
    """A view, and what it shows for as long as it lives."""

    view: Words
    number: int
    life: int
    owner: int
    content: int


class Member:
    def __init__(self, kind: str, slot: int, place: str) -> None:
        self.kind, self.slot, self.place = kind, slot, Path(place)
        self.book = Ledger(self.place / "ledger")
        self.row = self.book.slots[slot]
        self.handles: dict[int, Handle] = {}
        self.views: list[Held] = []
        self.pins: list[Any] = []
        self.first_descriptors = descriptors()

    @contextlib.contextmanager
    def doing(self, code: int) -> Iterator[None]:
        """Seen from outside while it lasts."""
        self.row[SINCE_NS] = time.monotonic_ns()
        self.row[DOING] = code
        yield
        self.row[DOING] = 0

    # Spaces

    def contested(self, index: int) -> bool:
        """Whether everybody creates and removes it."""
        return index == CONTESTED

    def owns(self, index: int) -> bool:
        return self.slot == index and not self.contested(index)

    def options(self, index: int, life: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if not self.contested(index) and life % 3:  # the others have the addresses of the life before
            made.update(base=_FIRST_BASE + (index * 128 + life % 128) * _STEP, reserve=_STEP)
        if flash := _FLASH.get(self.kind):
            made["flash"] = f"{self.place}/flash/{TITLES[index]}:{flash}"
        if self.kind == "durable":
            made["durable"] = True
        return made

    def make(self, index: int) -> None:
        """Its owner begins another life of a space."""
        life = self.book.life(index)[0] + 1
        self.book.live(index, life, CREATING)
        space = Space.create(TITLES[index], _DRAM[self.kind], **self.options(index, life))
        furnish(space, index, life)
        self.book.live(index, life, THERE)

    def unmake(self, index: int) -> None:
        life, _ = self.book.life(index)
        self.book.live(index, life, REMOVING)
        with contextlib.suppress(UnknownName):  # whoever was killed in it had got so far
            Space.remove(TITLES[index])
        self.book.live(index, life, ABSENT)

    def enter(self, index: int, mode: str = "rw", *allowed: type[OpenshelfError]) -> Handle | None:
        """The space, opened anew if it is not open; None if there is none just now."""
        if index in self.handles:
            return self.handles[index]
        if not (self.views or self.handles):
            gc.collect()  # tracebacks in cycles hold what their frames held
        before = self.book.life(index)
        try:
            space = Space.open(TITLES[index], mode)
            life = life_of(space, index)
        except (UnknownName, Closed) as error:
            if not self.contested(index) and before == self.book.life(index) and before[1] == THERE:
                raise Problem(f"{TITLES[index]} is there, and cannot be opened: {error!r}") from error
            return None
        except OpenshelfError as error:
            if not isinstance(error, (AddressOccupied, *allowed)):
                raise
            if not (self.views or self.handles):
                raise Problem(f"nothing is held, and yet {error!r}") from error
            return None
        if not self.contested(index) and not before[0] <= life <= self.book.life(index)[0]:
            raise Problem(f"{TITLES[index]} is of life {life}, not of {before[0]} to {self.book.life(index)[0]}")
        self.handles[index] = Handle(space, index, life)
        return self.handles[index]

    def leave(self, index: int) -> None:
        if handle := self.handles.pop(index, None):
            handle.space.close()

    @contextlib.contextmanager
    def law(self, handle: Handle, *allowed: type[OpenshelfError]) -> Iterator[None]:
        """Closed is what calls raise after the space was removed, and only then."""
        try:
            yield
        except Closed as error:
            if not self.contested(handle.number) and self.book.there(handle.number, handle.life):
                raise Problem(f"{TITLES[handle.number]} was not removed, and yet {error!r}") from error
            self.leave(handle.number)
        except allowed:
            self.pins.clear()

    # Names

    def homes(self, name: int) -> dict[str, Any]:
        """Where a name's array lives, if that is to be said."""
        return {}

    def title(self, name: int, owner: int | None = None) -> str:
        return f"{self.slot if owner is None else owner}/{name}"

    def fresh(self) -> int:
        """A content number that was never used."""
        self.book.contents[self.slot] += 1
        return int(self.book.contents[self.slot])

    @contextlib.contextmanager
    def changing(self, handle: Handle, change: Change) -> Iterator[None]:
        """Says before what is about to be changed, and afterwards that it is."""
        if self.contested(handle.number):
            with self.law(handle, NameTaken, UnknownName):
                yield
            return
        self.book.begin(handle.number, self.slot, change)
        with self.law(handle):
            yield
        self.book.end(handle.number, self.slot, change)

    def read(self, handle: Handle, owner: int, name: int) -> tuple[Array, Held] | None:
        """Finds a name, looks at every byte, and judges it."""
        before = self.book.before(handle.number, owner, name)
        array = handle.space.get(self.title(name, owner))
        found = None
        if array is not None:
            view: Words = array.numpy()
            content = content_of(view, handle.number, handle.life, owner)
            found = array, Held(view, handle.number, handle.life, owner, content)
        if not self.contested(handle.number):
            self.book.judge(handle.number, handle.life, owner, name, before, found[1].content if found else 0)
        return found

    def look_again(self, _: object = None) -> None:
        """What is held shows what it did, whatever became of its name and its space."""
        for held in self.views:
            if (content := content_of(held.view, held.number, held.life, held.owner)) != held.content:
                raise Problem(f"a held view of content {held.content} shows {content}")

    def resolve(self) -> None:
        """After a kill: what was under way in the life before happened wholly or not at all."""
        for index in range(SPACES):
            if self.owns(index) and self.book.life(index)[1] in (CREATING, REMOVING):
                self.unmake(index)
            if change := self.book.pending(index, self.slot):
                handle = self.enter(index)
                happened = True  # if that life is over it does not matter
                if handle and handle.life == change.life:
                    with self.law(handle):
                        happened = self.happened(handle, change)
                self.book.end(index, self.slot, change, happened)
            if self.owns(index) and self.book.life(index)[1] == ABSENT:
                self.make(index)

    def happened(self, handle: Handle, change: Change) -> bool:
        def shows(name: int) -> int:
            found = self.read(handle, self.slot, name)
            return found[1].content if found else 0

        if change.target == NONE:
            return not shows(change.source)
        new = shows(change.target) == change.content
        if change.source != NONE and new == bool(shows(change.source)):
            raise Problem(f"after a kill {'both or' if new else 'none of the'} two names are there: {change}")
        return new

    # The end

    def end(self) -> None:
        """Everything is let go of: nothing of the spaces stays in the process."""
        self.views.clear()
        self.pins.clear()
        for index in list(self.handles):
            self.leave(index)
        deadline = time.monotonic() + 10
        while left := self.left():
            if time.monotonic() > deadline:
                raise Problem(f"worker {self.slot} let go of everything, and has {left}")
            gc.collect()
            time.sleep(0.01)

    def left(self) -> list[str]:
        """Descriptors and mappings that a process has though it let go of everything."""
        more = [f"{number} -> {what}" for number, what in (descriptors() - self.first_descriptors)]
        if lost := [one for one in more if one.endswith(LOST_BYTES)]:
            more.remove(lost[0])  # one stays for the process's life, once bytes were lost: native/faults/faults.cpp
        directory = os.environ["OPENSHELF_DIR"]
        maps = Path("/proc/self/maps").read_text().splitlines()
        return more + [line for line in maps if directory in line]


LOST_BYTES = "/memfd:openshelf-lost (deleted)"


def descriptors() -> set[tuple[str, str]]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them
            found.add((entry.name, os.readlink(entry)))
    return {(number, what) for number, what in found if not what.startswith("/proc/")}


def furnish(space: Space, index: int, life: int, home: int | None = None) -> None:
    """What every space of a storm has; `life` comes last."""
    space.zeros("guarded", 2, "uint64", home=home)
    space.counter("count", home=home)
    space.lock("lock", home=home)
    space.channel("channel", 8, 64, home=home)
    space.put("life", words(tag(index, life, 0, 0), 2), replace=False, home=home)


def life_of(space: Space, index: int) -> int:
    """The life that a space says it is of. UnknownName if its maker has not come so far."""
    view: Words = space["life"].numpy()
    if content_of(view, index, life := int(view[0]) >> 32 & 0xFF_FFFF, 0):
        raise Problem("the array `life` has a content number")
    return life
