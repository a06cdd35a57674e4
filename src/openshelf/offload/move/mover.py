"""Mover: what the executor calls to bring storages into the arena and back home, without waiting before it must.

Nothing here plans. It keeps the order that bytes need: a storage is not read from home before it was written there,
nor into a range of the arena that a write is still leaving. It uses no faults.
"""

from __future__ import annotations

from types import TracebackType
from typing import Literal, NamedTuple

from openshelf._core import DeviceArena, Streamer, StreamTicket
from openshelf.errors import BadInput
from openshelf.offload.move.homes import Homes, need_room_of, need_value_of
from openshelf.offload.weights.files import sectors

Verify = Literal["first", "always", "never"]


class Traffic(NamedTuple):
    """What went one way, and the seconds in which at least one transfer was under way there."""

    requests: int
    nbytes: int
    busy_s: float
    most: int  # transfers under way at one time


class _Leaving(NamedTuple):
    ticket: StreamTicket
    offset: int
    end: int


class Mover:
    """Transfers between an arena and the homes of storages. For one thread, and the process that made it.

    `verify`: a weight's checksum is compared when it is first read ("first"), whenever anything is read from flash
    ("always", changed storages too), or "never". Errors of a transfer are raised by the wait for it.
    """

    def __init__(self, homes: Homes, arena: DeviceArena, *, depth: int = 6, verify: Verify = "first") -> None:
        if verify not in ("first", "always", "never"):
            raise BadInput(f"verify is 'first', 'always' or 'never', got {verify!r}")
        homes.load()
        self.homes, self.arena = homes, arena
        self.reads = self.writes = 0  # that were begun
        self._verify, self._depth = verify, depth
        self._streamer = self._new_streamer()
        self._reads: dict[int, StreamTicket] = {}
        self._writes: dict[int, _Leaving] = {}
        self._verified: set[int] = set()

    def begin_read(self, storage: int, offset: int) -> None:
        """Begins to read a storage from its home into the arena."""
        home = self.homes[storage]
        if (before := self._reads.get(storage)) is not None and not before.done:
            raise BadInput(f"the storage {home.name!r} is being read already, and nobody has waited for it")
        if self._verify == "always" and storage in self._writes:
            self.wait_written(storage)  # its checksum is known then
        now, end = need_value_of(home), offset + sectors(home.nbytes)
        self.reads += 1
        if not home.nbytes:
            return
        wanted = self._verify == "always" or (self._verify == "first" and storage not in self._verified)
        check = now.check if wanted and now.file is not None else None
        after = [
            leaving.ticket
            for number, leaving in self._writes.items()
            if number == storage or (leaving.offset < end and offset < leaving.end)
        ]
        self._reads[storage] = self._streamer.read(now.file, now.at, offset, home.nbytes, home.name, check, after)

    def wait(self, storage: int) -> None:
        """Until the storage is in the arena. Corrupt, FlashFailed or NoRoom if it did not get there."""
        ticket = self._reads.get(storage)
        if ticket is not None:
            ticket.wait()
            del self._reads[storage]
            self._verified.add(storage)

    def begin_write(self, storage: int, offset: int) -> None:
        """Begins to write a storage, which stays in the arena, to its room."""
        home = self.homes[storage]
        if storage in self._reads:
            raise BadInput(f"the storage {home.name!r} is stored while it is being read, and nobody has waited for it")
        room = need_room_of(home)
        self.wait_written(storage)  # that it is stored again before it has arrived is rare
        self.writes += 1
        home.now = room
        if not home.nbytes:
            return
        check = self._verify == "always" and room.file is not None
        ticket = self._streamer.write(room.file, room.at, offset, home.nbytes, home.name, check)
        self._writes[storage] = _Leaving(ticket, offset, offset + sectors(home.nbytes))

    def wait_written(self, storage: int) -> None:
        """Until the storage is at home; at once if nothing of it is on the way."""
        leaving = self._writes.get(storage)
        if leaving is not None:
            leaving.ticket.wait()
            del self._writes[storage]
            home = self.homes[storage]
            if self._verify == "always" and home.now is not None and home.now.file is not None:
                home.now = home.now._replace(check=leaving.ticket.check)

    def abandon(self) -> None:
        """After a run that ended half-way: nothing is under way any more, and lanes count from zero.

        A transfer whose ticket nobody has (who asked for it was interrupted) ends here too. What failed is not raised:
        who wants these bytes asks again.
        """
        self._streamer.close()
        self._streamer = self._new_streamer()
        self._reads.clear()
        self._writes.clear()

    def _new_streamer(self) -> Streamer:
        return Streamer(self.arena, self.arena.address, self.arena.nbytes, self._depth)

    def lanes(self) -> dict[str, Traffic]:
        """By flash_read, flash_write, dram_read, dram_write."""
        return {name: Traffic(*counts) for name, counts in self._streamer.counts().items()}

    def close(self) -> None:
        """Finishes what is under way; errors of it are raised, the first of them."""
        self._streamer.close()
        for storage in list(self._writes):
            self.wait_written(storage)

    def __enter__(self) -> Mover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._streamer.close()  # what it was about is raised already
