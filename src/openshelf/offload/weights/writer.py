"""Writing a packed file: storages from anywhere, a few chunks in memory at a time, checksums on the way.

The file has no name until it is whole and on the disk. So a maker that is killed leaves nothing behind, nor does one
that finds the disk full, and nobody ever opens half a file.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from openshelf._core import PIECE, DeviceArena, Streamer, StreamFile, StreamTicket
from openshelf.offload.cache import private_folder
from openshelf.offload.weights import format as form
from openshelf.offload.weights.files import (
    discard,
    nameless,
    need_room,
    publish,
    sectors,
    unpublished,
)
from openshelf.offload.weights.packed import Packed

_SLOT = 4 * PIECE
_SLOTS = 6
_PATIENCE_S = 2.0  # then a bar says how far it is

Fill = Callable[[memoryview, int], None]  # writes the storage's bytes from this place on into the buffer


@dataclasses.dataclass(frozen=True)
class Source:
    """A storage to be packed."""

    name: str
    nbytes: int
    fill: Fill


def write_packed(
    folder: Path,
    name: str | None,
    sources: Sequence[Source],
    tensors: dict[str, form.PackedTensor],
    key: bytes,
    generation: int = 1,
) -> Packed:
    """Makes the file of this name in the folder, in place of another; without a name it is scratch."""
    storages, end = [], 0
    for source in sources:
        storages.append(form.PackedStorage(source.name, end, source.nbytes, 0))
        end += sectors(source.nbytes)
    begins = form.table_bytes(form.Table(tuple(storages), tensors))
    private_folder(folder)
    need_room(folder, begins + end, f"the packed file of {len(tensors)} tensors")
    descriptor = nameless(folder) if name is None else unpublished(folder, name)
    path = f"the packed scratch file in {folder}" if name is None else str(folder / name)
    try:
        with Writer(StreamFile(os.dup(descriptor), path), begins + end) as writer:
            checks = [
                writer.write(source.name, source.nbytes, begins + storage.at, source.fill)
                for source, storage in zip(sources, storages, strict=True)
            ]
            whole = tuple(
                dataclasses.replace(storage, check=check())
                for storage, check in zip(storages, checks, strict=True)
            )  # fmt: skip
            head = form.encode(form.Table(whole, tensors), generation, key, end)
            writer.write("the table", len(head), 0, lambda view, at: _copy(view, head, at))()
        if name is not None:
            publish(descriptor, folder, name)
        return Packed(os.dup(descriptor), path)
    except BaseException:
        if name is not None:
            discard(folder, name)
        raise
    finally:
        os.close(descriptor)


def _copy(view: memoryview, head: bytes, at: int) -> None:
    view[:] = head[at : at + len(view)]


class Writer:
    """Storages into a file through a ring of slots: while some are written, the next is filled."""

    def __init__(self, file: StreamFile, nbytes: int) -> None:
        file.allocate(nbytes)
        self._file = file
        self._arena = DeviceArena(_SLOT * _SLOTS)
        self._view = memoryview(self._arena.range(0, self._arena.nbytes, None))
        self._streamer = Streamer(self._arena, self._arena.address, self._arena.nbytes)
        self._slots: deque[StreamTicket | None] = deque([None] * _SLOTS)
        self._next = 0
        self._progress = _Bar(nbytes)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._streamer.close()
        self._progress.close()

    def write(self, name: str, nbytes: int, place: int, fill: Fill) -> Callable[[], int]:
        """Begins to write a storage at this place; what is returned waits for the last of it, and is its checksum."""
        tickets = []
        for at in range(0, nbytes, _SLOT):
            before = self._slots.popleft()
            if before is not None:
                before.wait()
            count = min(_SLOT, nbytes - at)
            slot = self._next * _SLOT
            fill(self._view[slot : slot + count], at)
            padding = sectors(count) - count
            self._view[slot + count : slot + count + padding] = bytes(padding)
            ticket = self._streamer.write(self._file, place + at, slot, count, name, True, at // PIECE)
            tickets.append(ticket)
            self._slots.append(ticket)
            self._next = (self._next + 1) % _SLOTS
            self._progress.add(count)

        def check() -> int:
            for ticket in tickets:
                ticket.wait()
            return sum(ticket.check for ticket in tickets) % (1 << 64)

        return check


class _Bar:
    """Says how far it is, to a person, once it has taken a while."""

    def __init__(self, nbytes: int) -> None:
        self._total, self._done, self._start = nbytes, 0, time.monotonic()
        self._progress: Progress | None = None

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is None and time.monotonic() - self._start > _PATIENCE_S:
            columns = (TextColumn("packing weights"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            console = Console(stderr=True)
            self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
            self._progress.add_task("", total=self._total)
            self._progress.start()
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=self._done)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
