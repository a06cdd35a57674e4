"""Dynamic ids: keys of any size against rows of a plain table, and a day of drifting keys through a full table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from kit.side_by_side import Row
from lookups.asked import Asked, one_core, with_worst
from openshelf import Space, Table
from openshelf.tables import SGD, DynamicIds, Uniform
from traffic.recsys_ids import KINDS

DIM, BATCH, LENGTH, BATCHES = 128, 65_536, 16, 8
SGD_ONE = SGD(1.0)


def rows(asked: Asked) -> Iterator[Row]:
    yield day(24)
    with one_core():
        yield from dynamic(200_000 if asked.quick else 2_000_000, 24 if asked.quick else 40)


def dynamic(rows: int, pairs: int) -> Iterator[Row]:
    """Keys of any size against rows of a plain table: bags of 16 rows, processor time, interleaved."""
    found = []
    with Space.temporary(2 * rows * 4 * DIM + (64 << 20) + 32 * rows) as space:
        plain = Table.create(space, "plain", rows=rows, dim=DIM, init=Uniform(-1, 1, 1))
        keyed = Table.create(space, "keyed", rows=rows, dim=DIM, keys=DynamicIds(admit_after=1))
        for first in range(0, rows, 1 << 16):
            ids = np.arange(first, min(rows, first + (1 << 16)))
            keyed.write(_keys(ids), plain.lookup(ids))
        for kind in KINDS:
            offsets, out = np.arange(0, BATCH, LENGTH), np.empty((BATCH // LENGTH, DIM), np.float32)
            batches = [KINDS[kind](rows, BATCH, seed) for seed in range(BATCHES)]
            times: dict[str, list[float]] = {"plain": [], "keyed": []}
            for turn in range(pairs):
                ids = batches[turn % BATCHES]
                for name, table, wanted in (("plain", plain, ids), ("keyed", keyed, _keys(ids))):
                    begun = time.thread_time()
                    table.bag(wanted, offsets, out=out, threads=1)
                    times[name].append(time.thread_time() - begun)
            ratio = float(np.median(times["keyed"]) / np.median(times["plain"]))
            found.append(Row("tables.dynamic", f"ids {kind}", ratio, "x", "dense ids", None, None))
        facts = keyed.stat()
    note = f"{facts['keys']:,} of {facts['room']:,} places have a key"
    yield from with_worst([replace(row, note=note) for row in found], "<= 1.3", most=True)


def _keys(ids: Any) -> Any:
    return (ids.astype(np.int64) * 0x5851F42D4C957F2D) ^ 0x1234_5678_9ABC


def day(hours: int) -> Row:
    """Keys that drift through a full table: each hour a tenth of what is wanted is new."""
    with Space.temporary(64 << 20) as space:
        table = Table.create(space, "day", rows=20_000, dim=16, keys=DynamicIds(admit_after=2))
        free, chance = space.describe()["free"], np.random.default_rng(0)
        for hour in range(hours):
            for _ in range(40):
                keys = np.minimum(chance.zipf(1.2, 8192), 30_000) + 3_000 * hour
                table.update(keys, np.ones((8192, 16), np.float32), SGD_ONE)
        facts, grown = table.stat(), free - space.describe()["free"]
    note = ", ".join(f"{facts[name]:,} {name}" for name in ("admitted", "evicted", "refused", "keys"))
    case = f"{hours} hours of drifting keys: bytes that the table grew"
    return Row("tables.day", case, grown, "bytes", "", None, None, bar="<= 0", note=note)
