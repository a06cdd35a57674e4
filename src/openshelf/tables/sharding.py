"""Where the rows of tables are to be: which host has which blocks.

The planner balances hosts: by bytes, so that they have room, and by bytes that are read, weighted by what a byte costs
on the way to its host's readers. A small table is on one host (table-wise), a large one is dealt out in blocks
(row-wise).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from openshelf.errors import BadInput, NoRoom

if TYPE_CHECKING:
    from openshelf.fabric import Fabric


@dataclass(frozen=True)
class Sharding:
    """The hosts of a table's rows, by number: `shares` of the rows for each, in the order of `hosts`; or the host of
    each block, in order, if `blocks` says so.
    """

    hosts: tuple[int, ...]
    shares: tuple[float, ...] = ()
    blocks: tuple[int, ...] = ()

    def hosts_of(self, blocks: int) -> list[int]:
        """The host of each block."""
        if self.blocks:
            return [
                self.blocks[min(block * len(self.blocks) // blocks, len(self.blocks) - 1)] for block in range(blocks)
            ]
        shares = np.array(self.shares or (1.0,) * len(self.hosts), float)
        if len(shares) != len(self.hosts) or not (shares >= 0).all() or shares.sum() <= 0:
            raise BadInput(f"shares are one number for each host, not negative, got {self.shares} for {self.hosts}")
        ends = np.array(list(accumulate(shares / shares.sum()))) * blocks
        return [
            self.hosts[min(int(np.searchsorted(ends, block, side="right")), len(self.hosts) - 1)]
            for block in range(blocks)
        ]

    @property
    def kind(self) -> str:
        return "table" if len(set(self.blocks or self.hosts)) == 1 else "row"


@dataclass(frozen=True)
class Planned:
    """A table as the planner sees it: bytes, and reads of each block if they were measured (Table.stat)."""

    rows: int
    row_bytes: int
    dim: int
    reads: Sequence[float] = field(default_factory=tuple)
    reads_a_second: float = 1.0


_TABLE_WISE = 0.05  # of a host's room: tables below stay in one piece


def plan_tables(
    tables: Mapping[str, Planned], room: Mapping[int, int], *, fabric: Fabric | None = None
) -> dict[str, Sharding]:
    """A Sharding for each table: hosts with `room` bytes each get blocks, the most read ones first, so that the
    busiest host has as little to send as possible. `fabric`, whose endpoints are the hosts by number, says how fast
    each host's links are. NoRoom if the tables do not fit.
    """
    left = {host: float(size) for host, size in room.items()}
    speed = _speeds(list(room), fabric)
    busy = dict.fromkeys(room, 0.0)
    result: dict[str, Sharding] = {}
    order = sorted(tables, key=lambda name: -tables[name].rows * tables[name].row_bytes)
    for name in order:
        table = tables[name]
        size = table.rows * table.row_bytes
        pieces = 1 if size <= _TABLE_WISE * max(left.values(), default=0.0) else max(len(table.reads), 16 * len(room))
        reads = _reads_of(table, pieces)
        hosts = [-1] * pieces
        for piece in sorted(range(pieces), key=lambda one: -reads[one]):
            fits = [host for host in left if left[host] >= size / pieces]
            if not fits:
                raise NoRoom(f"the table {name!r} of {size} bytes does not fit: {_rooms(left)}")
            host = min(fits, key=lambda one: (busy[one] + reads[piece] * table.row_bytes / speed[one], -left[one]))
            hosts[piece] = host
            left[host] -= size / pieces
            busy[host] += reads[piece] * table.row_bytes / speed[host]
        result[name] = Sharding(tuple(sorted(set(hosts))), blocks=tuple(hosts))
    return result


def _reads_of(table: Planned, pieces: int) -> list[float]:
    counts = np.asarray(table.reads, float)
    if not len(counts) or counts.sum() <= 0:
        return [table.reads_a_second / pieces] * pieces
    shared = np.interp(np.linspace(0, len(counts), pieces + 1), np.arange(len(counts) + 1), np.r_[0, np.cumsum(counts)])
    return [float(one) for one in np.diff(shared) / counts.sum() * table.reads_a_second]


def _speeds(hosts: list[int], fabric: Fabric | None) -> dict[int, float]:
    """Bytes a second that each host sends to the others, at the slowest."""
    if fabric is None or len(hosts) < 2:
        return dict.fromkeys(hosts, 1.0)
    some = 1 << 20
    return {
        host: some / max(fabric.send(some, host, other).seconds for other in hosts if other != host) for host in hosts
    }


def _rooms(left: Mapping[int, float]) -> str:
    return "left are " + ", ".join(f"{int(size)} bytes on host {host}" for host, size in left.items())
