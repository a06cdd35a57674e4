"""Homes: where every storage of a program is while it is not in the arena: a packed file, scratch, or memory.

A packed file is never changed: it may be another run's too. A weight that is changed has room besides, and lives there
from its first store on. Scratch has no name, so nothing is left of a run that is killed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from openshelf._core import SECTOR, DeviceArena, Streamer, StreamFile, StreamTicket
from openshelf.errors import BadInput, Mismatch, NoRoom, UnknownName
from openshelf.offload.cache import cache_folder
from openshelf.offload.move.shared import Shared
from openshelf.offload.program.rates import Tier
from openshelf.offload.weights.files import Scratch, sectors
from openshelf.offload.weights.packed import Packed
from openshelf.space import format_size

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_STEP = 8 << 20  # what is put and taken outside of a run goes through a buffer of this size


class Place(NamedTuple):
    """In a file, or, without one, an address; `check` is known of what a packed file holds, and of what was checked."""

    file: StreamFile | None
    at: int
    check: int | None = None


class Home:
    """Of one storage: `now` is where its bytes are (None: it has no value yet), `room` where changed ones go."""

    __slots__ = ("name", "nbytes", "now", "room")

    def __init__(self, name: str, nbytes: int) -> None:
        self.name, self.nbytes = name, nbytes
        self.now: Place | None = None
        self.room: Place | None = None


class Homes:
    """Homes of storages, by their number in the program. `dram`: bytes of memory for those that live there."""

    def __init__(self, folder: Path | str | None = None, dram: int = 0) -> None:
        self._folder = cache_folder() if folder is None else Path(folder)
        self._homes: dict[int, Home] = {}
        self._scratch: Scratch | None = None
        self._memory = DeviceArena(sectors(dram)) if dram else None
        self._taken = 0
        self._loader: Streamer | None = None
        self._loading: list[tuple[Home, Place, StreamTicket]] = []
        self._buffer: tuple[DeviceArena, Streamer] | None = None
        self._kept: list[object] = []  # whose files or memory is used

    def __getitem__(self, storage: int) -> Home:
        try:
            return self._homes[storage]
        except KeyError:
            raise UnknownName(f"the storage {storage} has no home; give it one with packed() or room()") from None

    def __iter__(self) -> Iterator[int]:
        return iter(self._homes)

    def packed(self, storage: int, packed: Packed, name: str, tier: Tier = "flash") -> Home:
        """A weight, by a name that it has in the packed file; in `dram` it is copied there once, by load()."""
        there = packed.storage_of(name)
        home = self._add(storage, name, there.nbytes)
        home.now = Place(packed.file, there.at, there.check)
        self._keep(packed)
        if tier == "dram" and there.nbytes:
            place = self._take(name, there.nbytes)
            ticket = self._load().read(packed.file, there.at, place, there.nbytes, name, there.check)
            self._loading.append((home, Place(None, self._address(place)), ticket))
        return home

    def shared(self, storage: int, shared: Shared, name: str) -> Home:
        """A weight in memory that other processes use too."""
        there = shared.packed.storage_of(name)
        home = self._add(storage, name, there.nbytes)
        home.now = Place(None, shared.address(there))
        self._keep(shared)
        return home

    def room(self, storage: int, name: str, nbytes: int, tier: Tier = "flash") -> Home:
        """Room for what is made or changed: of a storage that has no home yet, or for what a weight will become.

        NoRoom if the disk, or `dram`, has not so much left.
        """
        known = self._homes.get(storage)
        if known is not None and known.nbytes != nbytes:
            raise Mismatch(f"the storage {name!r} has {known.nbytes} bytes at home, and {nbytes} in the program")
        home = known or self._add(storage, name, nbytes)
        if tier == "dram" and nbytes:
            home.room = Place(None, self._address(self._take(name, nbytes)))
        else:
            if self._scratch is None:
                self._scratch = Scratch(self._folder)
            home.room = Place(self._scratch.file, self._scratch.room(nbytes, f"the storage {name!r}"))
        return home

    def load(self) -> None:
        """Until what lives in `dram` has come from the packed file. Corrupt if that was altered."""
        while self._loading:
            home, place, ticket = self._loading[-1]
            ticket.wait()
            home.now = place  # until here it was read from the file
            self._loading.pop()
        if self._loader is not None:
            self._loader.close()
            self._loader = None

    # Values, while no transfer of a run is under way

    def put(self, storage: int, value: Any) -> None:
        """Gives a storage with room a value: a buffer, or None for zeros."""
        home = self[storage]
        zeros = np.zeros(min(home.nbytes, _STEP), np.uint8) if value is None else None
        source = None if value is None else np.frombuffer(value, np.uint8)
        if source is not None and source.nbytes != home.nbytes:
            raise Mismatch(f"the storage {home.name!r} has {home.nbytes} bytes, the value {source.nbytes}")
        room = need_room_of(home)
        for at, count in _steps(home.nbytes):
            part = zeros if source is None else source[at : at + count]
            assert part is not None
            if room.file is None:
                ctypes.memmove(room.at + at, part.ctypes.data, count)
                continue
            arena, streamer = self._passing()
            ctypes.memmove(arena.address, part.ctypes.data, count)
            streamer.write(room.file, room.at + at, 0, count, home.name).wait()
        home.now = room

    def value(self, storage: int) -> Bytes:
        """A copy of a storage's bytes as they are at home."""
        home = self[storage]
        now = need_value_of(home)
        out = np.empty(home.nbytes, np.uint8)
        if now.file is not None and now.check is not None and home.nbytes:
            whole = DeviceArena(sectors(home.nbytes))
            streamer = Streamer(whole, whole.address, whole.nbytes)
            streamer.read(now.file, now.at, 0, home.nbytes, home.name, now.check).wait()
            ctypes.memmove(out.ctypes.data, whole.address, home.nbytes)
            return out
        for at, count in _steps(home.nbytes):
            source = now.at + at
            if now.file is not None:
                arena, streamer = self._passing()
                streamer.read(now.file, now.at + at, 0, count, home.name).wait()
                source = arena.address
            ctypes.memmove(out.ctypes.data + at, source, count)
        return out

    def _add(self, storage: int, name: str, nbytes: int) -> Home:
        if storage in self._homes:
            raise BadInput(f"the storage {storage} has a home already: {self._homes[storage].name!r}")
        home = self._homes[storage] = Home(name, nbytes)
        return home

    def _keep(self, used: object) -> None:
        if not any(kept is used for kept in self._kept):
            self._kept.append(used)

    def _take(self, name: str, nbytes: int) -> int:
        have = 0 if self._memory is None else self._memory.nbytes
        if sectors(nbytes) > have - self._taken:
            raise NoRoom(
                f"{name!r} needs {format_size(nbytes)} of dram, and {format_size(have - self._taken)} of "
                f"{format_size(have)} are left; give more dram, or let it live on flash"
            )
        place, self._taken = self._taken, self._taken + sectors(nbytes)
        return place

    def _address(self, place: int) -> int:
        assert self._memory is not None
        return self._memory.address + place

    def _load(self) -> Streamer:
        if self._loader is None:
            assert self._memory is not None
            self._loader = Streamer(self._memory, self._memory.address, self._memory.nbytes)
        return self._loader

    def _passing(self) -> tuple[DeviceArena, Streamer]:
        if self._buffer is None:
            arena = DeviceArena(_STEP)
            self._buffer = arena, Streamer(arena, arena.address, arena.nbytes)
        return self._buffer


def need_value_of(home: Home) -> Place:
    if home.now is None:
        raise BadInput(f"the storage {home.name!r} is read before it was given a value or stored")
    return home.now


def need_room_of(home: Home) -> Place:
    if home.room is None:
        raise BadInput(f"the storage {home.name!r} is stored, but has no room of its own; give it some with room()")
    return home.room


def _steps(nbytes: int) -> Iterator[tuple[int, int]]:
    assert _STEP % SECTOR == 0
    for at in range(0, nbytes, _STEP):
        yield at, min(_STEP, nbytes - at)
