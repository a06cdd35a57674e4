"""Four times as many bytes of rows as memory, looked up at random by one process.

Half of the memory is the space's dram, half are hot rows (Table.keep_hot). `tables.flash` is rows a second, of what the
disk allows: sectors that it reads at random a second (O_DIRECT, 4 KiB, the best of three depths, in the same run, of a
file beside the table's that has as many bytes, all written: of the table's own a part never was, and the disk is not
asked for it), over the share of rows that were read from flash. RocksDB has as much memory, as its block cache,
and reads directly, too. An id's value is the worst of its cases.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kit.random_reads import sectors_a_second
from kit.servers import Absent
from kit.side_by_side import Row
from lookups.asked import Asked, with_worst
from openshelf import Space, Table
from openshelf.tables import Uniform
from peers.row_stores import RocksDB, fill, keys_of
from traffic.recsys_ids import KINDS

DIM, ASKED, FRESH = 128, 16_384, 60  # batches before one comes again: what was read once is not simply there
MIB = 1 << 20


@contextmanager
def cold_table(home: Path, memory: int) -> Iterator[Table]:
    rows = 4 * memory // (4 * DIM)
    name = f"bench-tables-flash-{time.time_ns()}"
    space = Space.create(name, memory // 2, flash=f"{home / 'flash'}:{6 * memory}")
    try:
        with Table.create(space, "t", rows=rows, dim=DIM, init=Uniform(-1, 1, 1)) as table:
            table.keep_hot(memory // 2)
            yield table
    finally:
        space.close()
        Space.remove(name)


def speed_of(work: Callable[[Any], object], batches: list[Any], seconds: float) -> float:
    """Rows a second, after half as long to warm up."""
    at, end = 0, time.perf_counter() + seconds / 2
    while time.perf_counter() < end:
        work(batches[at % len(batches)])
        at += 1
    begun, done = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        work(batches[at % len(batches)])
        at += 1
        done += ASKED
    return done / (time.perf_counter() - begun)


def from_flash(table: Table, batches: list[Any], seconds: float) -> tuple[float, float]:
    """Rows a second, and the share of them that came from flash, without the first third of the calls."""
    out, read = np.empty((ASKED, DIM), np.float32), [table.stat()["flash_reads"]]

    def look_up(ids: Any) -> None:
        table.lookup(ids, out=out, threads=1)
        read.append(table.stat()["flash_reads"])

    speed = speed_of(look_up, batches, seconds)
    first = len(read) // 3
    return speed, (read[-1] - read[first]) / ((len(read) - 1 - first) * ASKED)


def written(path: Path, nbytes: int) -> Path:
    """A file of this size, every byte of it on the disk."""
    chance = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(nbytes // MIB):
            file.write(chance.bytes(MIB))
        os.fsync(file.fileno())
    return path


def of_disk(path: Path, seconds: float) -> Row:
    rates = {depth: sectors_a_second(path, depth, seconds) for depth in (32, 64, 128)}
    best = max(rates, key=rates.__getitem__)
    case = f"sectors of 4 KiB at random, {best} at once"
    return Row("tables.flash_disk", case, rates[best] / 1e3, "k/s", "", None, None)


def rows(asked: Asked) -> Iterator[Row]:
    memory, seconds = (64 * MIB, 1.2) if asked.quick else (512 * MIB, 10.0)
    size = f"{4 * memory // MIB} MiB of rows, {memory // MIB} MiB of memory"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, cold_table(Path(folder), memory) as table:
        home = Path(folder)
        batches = {kind: list(draw(table.rows, FRESH * ASKED, 1).reshape(-1, ASKED)) for kind, draw in KINDS.items()}
        beside = written(home / "written", 4 * memory)
        found: list[Row] = []
        speeds: dict[str, float] = {}
        for kind, ids in batches.items():
            disk = of_disk(beside, seconds / 4)
            yield disk
            speeds[kind], share = from_flash(table, ids, seconds)
            value = speeds[kind] / (1e3 * (disk.value or 0) / share)
            note = f"{speeds[kind] / 1e3:.0f} k rows/s, {share:.0%} from flash; {size}"
            found.append(Row("tables.flash", f"ids {kind}", value, "x", "the disk", value, None, note=note))
        yield from with_worst(found, ">= 0.8")
        yield from against_rocksdb(home, table, batches, speeds, memory, seconds)


def against_rocksdb(
    home: Path, table: Table, batches: dict[str, Any], speeds: dict[str, float], memory: int, seconds: float
) -> Iterator[Row]:
    name, bar = "tables.flash_x_rocksdb", ">= 3"
    try:
        store = RocksDB(home, memory)
    except Absent as why:
        yield Row(name, "the worst case", None, "x", "RocksDB", None, None, bar=bar, note=f"not measured: {why}")
        return
    try:
        fill(store, lambda ids: table.lookup(ids, threads=1), table.rows)
        found = []
        for kind, ids in batches.items():
            keys = [keys_of(one) for one in ids]
            speed = speed_of(lambda some: store.rows(some, DIM), keys, seconds)
            ratio, note = speeds[kind] / speed, f"RocksDB {speed / 1e3:.0f} k rows/s"
            found.append(Row(name, f"ids {kind}", ratio, "x", "RocksDB", ratio, None, note=note))
        yield from with_worst(found, bar)
    finally:
        store.closing.close()
