"""Copies that a queue of a device has under way: the memory that they use, and how much was done."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from openshelf.space.devices.base import Queue
from openshelf.space.transfer import Part

DIRECTIONS = ("in", "out", "within")


class Flights:
    """Keeps what a copy reads and writes until it is done, even if nobody holds the handle.

    Locks here can be met again by the same thread: a collection may run anywhere, and a replica that goes copies.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.copies = dict.fromkeys(DIRECTIONS, 0)
        self.bytes = dict.fromkeys(DIRECTIONS, 0)
        self.waited_s = 0.0
        self._counting = threading.RLock()
        self._flying: deque[tuple[Part, Any]] = deque()
        self._landing = threading.Lock()

    def fly(self, direction: str, nbytes: int, part: Part, kept: Any) -> Flight:
        """Notes a copy that was given to the queue."""
        self._flying.append((part, kept))
        with self._counting:
            self.copies[direction] += 1
            self.bytes[direction] += nbytes
        self.land()
        return Flight(self, part)

    def land(self) -> None:
        """Lets go of what copies used that are done."""
        # Two that look at the first one could both take it, and the second of them another that is not done. Who does
        # not get the lock need not: somebody is at it, perhaps this thread further up.
        if self._landing.acquire(blocking=False):
            try:
                while self._flying and self._flying[0][0].done:
                    self._flying.popleft()
            finally:
                self._landing.release()

    def drain(self) -> None:
        """Waits for all that is under way now."""
        if self._flying:
            self.queue.mark().wait(-1.0)  # never an error of a copy's, which is for who waits for that one
        self.land()

    def waited(self, duration_s: float) -> None:
        with self._counting:
            self.waited_s += duration_s


class Flight:
    """One copy under way: the part of a Transfer."""

    __slots__ = ("flights", "part")

    def __init__(self, flights: Flights, part: Part) -> None:
        self.flights, self.part = flights, part

    @property
    def done(self) -> bool:
        return self.part.done

    def wait(self, timeout_s: float, /) -> bool:
        if not self.part.done:
            start = time.perf_counter()
            try:
                if not self.part.wait(timeout_s):
                    return False
            finally:
                self.flights.waited(time.perf_counter() - start)
        self.part.wait(0.0)  # says what went wrong, if anything did
        self.flights.land()
        return True
