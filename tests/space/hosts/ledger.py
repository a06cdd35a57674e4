"""What self-checking units must hold: a table beside the space, in memory that survives whoever is killed.

Every word of a unit tells home, unit, epoch (how often its home has begun anew) and version, mixed with its place:
bytes that nobody wrote, zeros among them, tell nothing. The row of a unit is changed only by who holds the unit's lock,
and says which versions it may show. What a lost host had borrowed may fall back to the last version that its home knew:
one that a process on another host has seen, or that was there when the host borrowed it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

HOSTS, UNITS, SLOTS = 3, 6, 12
UNIT_WORDS = 8192
Words = np.ndarray[Any, np.dtype[np.uint64]]
_MIX = np.random.default_rng(7).integers(0, 2**64, UNIT_WORDS, dtype=np.uint64)
_VERSION_BITS = 40

# Of a row
ACKED, WRITER, LOSSES, KNOWN, PENDING, NEWEST, HOLDER, _ = range(8)
# Of a slot
STEPS, SINCE_NS, DOING, _UNUSED = range(4)


class Problem(Exception):
    """What these tests are looking for."""


def _tag(home: int, unit: int, epoch: int, version: int) -> int:
    return home << 60 | unit << 52 | epoch << _VERSION_BITS | version


def content(home: int, unit: int, epoch: int, version: int) -> Words:
    """The words of a unit."""
    return _MIX ^ np.uint64(_tag(home, unit, epoch, version))


def versions(words: Words, home: int, unit: int, epoch: int) -> list[int]:
    """Those that a unit shows, one if it is whole. Problem if a word tells of nothing that belongs here."""
    tags = words ^ _MIX
    base = _tag(home, unit, epoch, 0)
    strange = np.flatnonzero(tags >> np.uint64(_VERSION_BITS) != base >> _VERSION_BITS)
    if len(strange):
        first = int(strange[0])
        what = "zeros" if not words[strange].any() else f"{int(words[first]):#x}, which tells {int(tags[first]):#x}"
        raise Problem(f"unit {unit} of host {home}, epoch {epoch}: {len(strange)} words from {first} on hold {what}")
    return [int(tag) - base for tag in np.unique(tags)]


class Ledger:
    """Mapped by the test and by all workers; numbers of 8 bytes, each written by one process at a time."""

    def __init__(self, path: Path) -> None:
        shape = 1 + HOSTS + HOSTS * HOSTS + HOSTS * UNITS * 8 + SLOTS * 4
        if not path.exists():
            path.write_bytes(bytes(8 * shape))
        self._all: Any = np.memmap(path, np.int64, "r+", shape=(shape,))
        at = 1
        self.epochs = self._all[at : (at := at + HOSTS)]
        self.losses = self._all[at : (at := at + HOSTS * HOSTS)].reshape(HOSTS, HOSTS)  # of home and borrower
        self.rows = self._all[at : (at := at + HOSTS * UNITS * 8)].reshape(HOSTS, UNITS, 8)
        self.slots = self._all[at:].reshape(SLOTS, 4)

    @property
    def stop(self) -> bool:
        return bool(self._all[0])

    @stop.setter
    def stop(self, value: bool) -> None:
        self._all[0] = value

    def begin(self, home: int) -> int:
        """A host begins anew: the epoch of what it must publish, all units in version 1."""
        epoch = 1 - int(self.epochs[home])
        self.rows[home] = 0
        for column in (ACKED, KNOWN, NEWEST):
            self.rows[home, :, column] = 1
        self.rows[home, :, WRITER] = home
        return epoch

    def end(self, home: int) -> None:
        """A host is about to be killed: nobody judges its units until they are published anew."""
        self.epochs[home] = -abs(int(self.epochs[home]))

    def lose(self, one: int) -> None:
        """Before a host is cut or killed: what it and others have of each other may fall back."""
        self.losses[:, one] += 1
        self.losses[one, :] += 1

    def check(self, home: int, unit: int, found: list[int], host: int) -> None:
        """What a holder of the lock, on `host`, has found; brings the row up to it. Problem if that may not be."""
        row = self.rows[home, unit]
        acked, known, pending = (int(row[column]) for column in (ACKED, KNOWN, PENDING))
        writer = int(row[WRITER])
        fell_back = int(self.losses[home, writer]) != int(row[LOSSES])
        good = found == [acked] or (fell_back and len(found) == 1 and known <= found[0] <= acked)
        if pending:  # its writer was killed: any of its words may be new
            good = good or set(found) <= {acked, pending}
        if not good:
            raise Problem(
                f"unit {unit} of host {home} shows versions {found} on host {host}; acknowledged {acked} by host "
                f"{writer}{f', begun {pending}' if pending else ''}, known at home {known}, lost since: {fell_back}"
            )
        if len(found) == 1:
            row[ACKED], row[PENDING] = found[0], 0
            if writer != host:
                row[KNOWN] = found[0]

    def begin_write(self, home: int, unit: int) -> int:
        """The version that is about to be written."""
        row = self.rows[home, unit]
        row[NEWEST] += 1
        row[PENDING] = row[NEWEST]
        return int(row[NEWEST])

    def end_write(self, home: int, unit: int, host: int, losses: int) -> None:
        row = self.rows[home, unit]
        row[WRITER], row[LOSSES] = host, losses
        row[ACKED] = row[PENDING]
        row[PENDING] = 0
        if host == home:
            row[KNOWN] = row[ACKED]
