"""Device: a budget of memory of an accelerator, blocks of it, and copies in order.

What differs between devices is behind `base.py`; this is what they have in common: who has which range, forks, the end.
Nothing is allocated on the device after it was made.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from openshelf._sizes import format_size, parse_size, whole
from openshelf.errors import BadInput, Closed, Mismatch, NoRoom, UnknownName
from openshelf.space.devices import dirty
from openshelf.space.devices.base import Arena
from openshelf.space.devices.block import Block, Taken
from openshelf.space.devices.cuda import CudaArena
from openshelf.space.devices.flights import DIRECTIONS, Flights
from openshelf.space.devices.host import HostArena
from openshelf.space.devices.placement import Placement
from openshelf.space.devices.room import ALIGNMENT, Room, aligned
from openshelf.space.devices.stream import OwnStream, Stream

ARENAS: dict[str, Callable[[str, int], Arena]] = {"host": HostArena, "cuda": CudaArena}

_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class Device(Stream):
    """Memory of a device, 'host', 'cuda' or 'cuda:1', of a fixed size that is taken at once; also its first stream.

    Thread-safe. Dropping or closing it waits for the copies under way. A forked child cannot use it.
    """

    def __init__(self, kind: str, budget: str | int) -> None:
        name, _, which = str(kind).partition(":")
        if name not in ARENAS:
            raise UnknownName(f"there is no device {kind!r}; known: {', '.join(sorted(ARENAS))}")
        size = parse_size(budget) // ALIGNMENT * ALIGNMENT
        if not size:
            raise BadInput(f"a budget of {budget!r}: a device has at least {ALIGNMENT} bytes")
        self.kind, self.arena = kind, ARENAS[name](which, size)
        self._fork, self._closed = _forks, False
        self._room, self._changing = Room(size), threading.RLock()
        self._back: deque[tuple[int, int]] = deque()
        self._idle: deque[Flights] = deque()
        self._queues = [Flights(self.arena.queue())]
        self._finish = weakref.finalize(self, _finish, self._queues, _forks)
        super().__init__(self._queues[0])

    @property
    def device(self) -> Device:
        return self

    @property
    def budget(self) -> int:
        """Bytes that it has for blocks."""
        return self.arena.nbytes

    def check(self) -> None:
        """Closed if it cannot be used any more, or not by this process."""
        if self._closed:
            raise Closed("this device was closed; make another")
        if self._fork != _forks:
            raise Closed(
                "this device belongs to the process that this one was forked from; make one here, or start processes "
                "by spawn"
            )

    def has(self, flights: Flights) -> bool:
        return flights in self._queues

    def stream(self) -> Stream:
        """Another stream, with a thread or queue of its own; reused when it is dropped."""
        self.check()
        try:
            flights = self._idle.pop()
        except IndexError:
            flights = Flights(self.arena.queue())
            self._queues.append(flights)
        return OwnStream(self, flights, self._idle)

    # Blocks

    def take(self, nbytes: str | int) -> Block:
        """A block of memory with whatever is in it; NoRoom says how much is free. Waits for no view, but for copies."""
        size = 0 if isinstance(nbytes, int) and nbytes == 0 else parse_size(nbytes)
        return Block(self, taken := self._take(size, ALIGNMENT), taken.offset, size)

    def arrange(self, placement: Placement) -> list[Block]:
        """Blocks at the offsets of a placement, in its order. Their memory comes back when all are released."""
        if not isinstance(placement, Placement):
            raise Mismatch(f"expected what place() returns, got {placement!r:.60}")
        for number, (offset, size) in enumerate(zip(placement.offsets, placement.sizes, strict=True)):
            if not 0 <= offset <= offset + size <= placement.peak:
                raise BadInput(
                    f"storage {number} of the placement, {size} bytes at {offset}, is beyond its {placement.peak} bytes"
                )
        taken = self._take(placement.peak, max(ALIGNMENT, placement.alignment))
        return [
            Block(self, taken, taken.offset + offset, size)
            for offset, size in zip(placement.offsets, placement.sizes, strict=True)
        ]

    def _take(self, nbytes: int, alignment: int) -> Taken:
        self.check()
        size = max(ALIGNMENT, aligned(whole(nbytes, "a size")))
        for last_try in (False, True):
            with self._changing:
                self._settle()
                offset = self._room.take(size, alignment)
                if offset is not None:
                    return Taken(offset, size, self._back)
                free, largest = self._room.free, self._room.largest
            if not last_try:  # what was released may still be used by copies
                for flights in list(self._queues):
                    flights.drain()
        raise NoRoom(
            f"{nbytes} bytes of a device: its budget is {self.budget}, free are {free}, the largest free run is "
            f"{largest}; release blocks (and let go of their views), arrange() them once, or give a larger budget"
        )

    def _settle(self) -> None:
        """Takes back what was given up since; with the lock held."""
        while self._back:
            self._room.give(*self._back.popleft())

    # The rest

    def describe(self) -> dict[str, Any]:
        """Its room, what was copied in, out and within it, and how long callers waited for copies."""
        with self._changing:
            self._settle()
            free, largest = self._room.free, self._room.largest
        queues = list(self._queues)
        found: dict[str, Any] = {"kind": self.kind, "budget": self.budget, "used": self.budget - free}
        found |= {"free": free, "largest_free": largest, "streams": len(queues)}
        for direction in DIRECTIONS:
            found[f"copies_{direction}"] = sum(flights.copies[direction] for flights in queues)
            found[f"bytes_{direction}"] = sum(flights.bytes[direction] for flights in queues)
        found["waited_s"] = sum(flights.waited_s for flights in queues)
        return found

    def close(self) -> None:
        """Writes dirty replicas back, waits for all copies, and ends the streams. Views stay valid. Again: nothing."""
        if self._fork == _forks and not self._closed:
            dirty.write_back_of(self)
        self._closed = True
        self._finish()

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Device({self.kind!r}, {format_size(self.budget)}{', closed' if self._closed else ''})"


def _finish(queues: list[Flights], fork: int) -> None:
    if fork == _forks:
        for flights in queues:
            flights.queue.close()
            flights.land()
