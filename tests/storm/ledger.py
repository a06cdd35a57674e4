"""What a storm's spaces may show: a table beside them, in memory that survives whoever is killed.

Three spaces. Two of them have an owner, the only process that creates and removes them; their word in `lives` says how
often that happened and what is being done. The third one is everybody's: only its own words say what may be in it. A
name has an owner too, the only process that puts, deletes and renames it; everybody reads. Before each change the owner
writes into the name's row what it is about to do, afterwards that it is done, so a reader that looks at the row before
and after knows what it may have seen. `log` has all changes of an owner in their order: what a durable space shows
after a power cut is what it was after some of them, from the last flush on.

Every word of an array follows from space, life, owner, content number and place: bytes that nobody published tell
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SPACES, WORKERS, NAMES = 3, 4, 5
CONTESTED = 2  # the space that everybody creates and removes
NONE = 15  # no name, in an entry of the log
ABSENT, CREATING, THERE, REMOVING = range(4)
STEP, SINCE_NS, DOING, CHILD = range(4)  # of a slot
TALLIES = ("steps", "read", "changed", "forked")
_LOG = 1 << 16
_RAMP = np.arange(1 << 18, dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)

Words = np.ndarray[Any, np.dtype[np.uint64]]


class Problem(Exception):
    """What a storm is looking for."""


class Mark(NamedTuple):
    """The content that a name shows in one life of its space (0: none), and how often the name had changed then."""

    life: int
    tick: int
    content: int

    def pack(self) -> int:
        return self.life << 48 | self.tick << 24 | self.content

    @staticmethod
    def of(word: int) -> Mark:
        return Mark(word >> 48, word >> 24 & 0xFF_FFFF, word & 0xFF_FFFF)


class Change(NamedTuple):
    """An entry of the log: `content` goes from a name to a name; from NONE: it is put; to NONE: it is deleted."""

    life: int
    source: int
    target: int
    content: int

    def pack(self) -> int:
        return self.life << 32 | self.source << 28 | self.target << 24 | self.content

    @staticmethod
    def of(word: int) -> Change:
        return Change(word >> 32, word >> 28 & 15, word >> 24 & 15, word & 0xFF_FFFF)


def tag(space: int, life: int, owner: int, content: int) -> int:
    return space << 60 | owner << 56 | life << 32 | content << 1 | 1


def words(name: int, count: int) -> Words:
    """The words of an array; the first one is its tag, the second its size."""
    made = _RAMP[:count] ^ np.uint64(name * 0xD6E8_FEB8_6659_FD93 & 0xFFFF_FFFF_FFFF_FFFF)
    made[0], made[1] = name, count
    return made


def content_of(view: Words, space: int, life: int, owner: int) -> int:
    """The content number that an array shows. Problem if any word is not of this space, life and owner."""
    found = int(view[0])
    if found >> 32 != tag(space, life, owner, 0) >> 32 or not np.array_equal(view, words(found, view.size)):
        bad = np.flatnonzero(view != words(found, view.size))
        where = f", {bad.size} words of {view.size} from {bad[0]} on are not its own" if bad.size else ""
        raise Problem(f"an array of owner {owner} in space {space}, life {life}, shows the tag {found:#x}{where}")
    return found >> 1 & 0x7FFF_FFFF


class Ledger:
    """Mapped by the storm and by all workers; each word is written by one process at a time."""

    def __init__(self, path: Path) -> None:
        rows, logs = SPACES * WORKERS * NAMES * 2, SPACES * WORKERS * _LOG
        shape = (
            2
            + SPACES
            + WORKERS
            + SPACES * WORKERS
            + WORKERS * len(TALLIES)
            + rows
            + 3 * SPACES * WORKERS
            + 2 * WORKERS * 4
            + logs
        )
        if not path.exists():
            with path.open("xb") as file:
                file.truncate(8 * shape)
        self._all: Any = np.memmap(path, np.uint64, "r+", shape=(shape,))
        at = 2
        self.lives = self._all[at : (at := at + SPACES)]
        self.contents = self._all[at : (at := at + WORKERS)]  # that an owner has used
        self.left = self._all[at : (at := at + SPACES * WORKERS)].reshape(SPACES, WORKERS)  # who made way, when
        self.tallies = self._all[at : (at := at + WORKERS * len(TALLIES))].reshape(WORKERS, len(TALLIES))
        self.rows = self._all[at : (at := at + rows)].reshape(SPACES, WORKERS, NAMES, 2)  # begun, done
        counts = self._all[at : (at := at + 3 * SPACES * WORKERS)].reshape(3, SPACES, WORKERS)
        self.begun, self.done, self.flushed = counts  # entries of the log
        self.slots = self._all[at : (at := at + 2 * WORKERS * 4)].reshape(2 * WORKERS, 4)  # workers, their children
        self.log = self._all[at:].reshape(SPACES, WORKERS, _LOG)

    @property
    def stop(self) -> bool:
        return bool(self._all[0])

    @stop.setter
    def stop(self, value: bool) -> None:
        self._all[0] = value

    @property
    def trouble_s(self) -> float:
        """When the storm last had its hand on a keeper, by the clock of all processes."""
        return int(self._all[1]) / 1e9

    @trouble_s.setter
    def trouble_s(self, moment: float) -> None:
        self._all[1] = int(moment * 1e9)

    # Lives of spaces

    def life(self, space: int) -> tuple[int, int]:
        """Which life of a space this is, and in what state."""
        word = int(self.lives[space])
        return word >> 4, word & 15

    def live(self, space: int, life: int, state: int) -> None:
        self.lives[space] = life << 4 | state

    def there(self, space: int, life: int) -> bool:
        return self.life(space) == (life, THERE)

    # Changes of names, by their owner

    def shown(self, space: int, owner: int, life: int) -> dict[int, int]:
        """The contents of an owner's names, as far as they are done."""
        marks = (Mark.of(int(row[1])) for row in self.rows[space, owner])
        return {name: mark.content for name, mark in enumerate(marks) if mark.life == life and mark.content}

    def begin(self, space: int, owner: int, change: Change) -> None:
        self.log[space, owner, int(self.begun[space, owner])] = change.pack()
        self.begun[space, owner] += 1
        for name, content in _effects(change):
            row = self.rows[space, owner, name]
            tick = max(Mark.of(int(word)).tick for word in row) + 1
            row[0] = Mark(change.life, tick, content).pack()

    def end(self, space: int, owner: int, change: Change, happened: bool = True) -> None:
        """The change is done; or it is known, after a kill, that it was not.

        That it is no longer pending is said last: who is killed in here does all of it again.
        """
        for name, _ in _effects(change):
            row = self.rows[space, owner, name]
            if happened:
                row[1] = row[0]
            else:  # with a later tick, so that who looked between the two is not misled
                kept = Mark.of(int(row[1]))
                content = kept.content if kept.life == change.life else 0
                row[0] = row[1] = Mark(change.life, Mark.of(int(row[0])).tick + 1, content).pack()
        if happened:
            self.done[space, owner] = self.begun[space, owner]
        else:
            self.begun[space, owner] = self.done[space, owner]

    def pending(self, space: int, owner: int) -> Change | None:
        """What its owner was at when it was killed."""
        begun, done = int(self.begun[space, owner]), int(self.done[space, owner])
        return Change.of(int(self.log[space, owner, done])) if begun > done else None

    # Readers

    def before(self, space: int, owner: int, name: int) -> Mark:
        return Mark.of(int(self.rows[space, owner, name, 1]))

    def judge(self, space: int, life: int, owner: int, name: int, before: Mark, content: int) -> None:
        """A reader has found this content (0: no such name) in this life, after it had looked at the row."""
        after = Mark.of(int(self.rows[space, owner, name, 0]))
        if after.life > life or before.life > life:
            return  # what it holds is older than what the row tells of
        old = before.content if before.life == life else 0
        new = after.content if after.life == life else 0
        if content in (old, new) or after.tick - before.tick > 1:
            return
        raise Problem(
            f"name {name} of owner {owner} in space {space}, life {life}, shows {content}; "
            f"it was {old} before and {new} after"
        )

    # After a power cut

    def note_flush(self, space: int, done: Words) -> None:
        """What was done before a flush, which is done too, is on flash."""
        for owner in range(WORKERS):
            self.flushed[space, owner] = max(self.flushed[space, owner], done[owner])

    def flushed_in(self, space: int, owner: int, life: int) -> bool:
        """Whether a flush has changes of this life in it."""
        last = int(self.flushed[space, owner])
        return last > 0 and Change.of(int(self.log[space, owner, last - 1])).life == life

    def moments(self, space: int, owner: int, life: int) -> Iterator[tuple[int, dict[int, int]]]:
        """The number of entries and the names that they lead to, for all moments since the last flush."""
        shown: dict[int, int] = {}
        first, last = int(self.flushed[space, owner]), int(self.begun[space, owner])
        if first == 0:
            yield 0, {}
        for number in range(last):
            change = Change.of(int(self.log[space, owner, number]))
            if change.life == life:
                for name, content in _effects(change):
                    shown[name] = content
            if number + 1 >= first:
                yield number + 1, {name: content for name, content in shown.items() if content}

    def fall_back(self, space: int, owner: int, life: int, found: dict[int, int]) -> None:
        """A restored space shows these names of an owner. Problem if it never did since the last flush."""
        moments = list(self.moments(space, owner, life))
        number = max((number for number, shown in moments if shown == found), default=None)
        if number is None:
            flushed, begun = int(self.flushed[space, owner]), int(self.begun[space, owner])
            raise Problem(
                f"space {space}, life {life}, restored: the names of owner {owner} show {found}; that was at no moment "
                f"between its changes {flushed} (flushed) and {begun}: {[shown for _, shown in moments][-9:]}"
            )
        self.begun[space, owner] = self.done[space, owner] = self.flushed[space, owner] = number
        for name in range(NAMES):
            row = self.rows[space, owner, name]
            tick = max(Mark.of(int(word)).tick for word in row) + 1
            row[0] = row[1] = Mark(life, tick, found.get(name, 0)).pack()


def _effects(change: Change) -> list[tuple[int, int]]:
    """Names and what they show afterwards."""
    gone = [(change.source, 0)] if change.source != NONE else []
    return gone + ([(change.target, change.content)] if change.target != NONE else [])
