"""Rows looked up and copied by one process, 4,096 in a call, against the same rows from Redis, LMDB and RocksDB."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kit.servers import Absent
from kit.side_by_side import Row, compare, timed
from lookups.asked import Asked
from lookups.bags import table_of
from openshelf import Table
from peers.row_stores import Lmdb, Redis, RocksDB, RowStore, fill, keys_of
from traffic.recsys_ids import KINDS

DIM, ASKED = 128, 4096


def rows(asked: Asked) -> Iterator[Row]:
    count, pairs = (100_000, 8) if asked.quick else (1_000_000, 25)
    with table_of(count, DIM, "float32") as (_, table), tempfile.TemporaryDirectory(dir="/dev/shm") as home:
        for name, bar, kind in (("redis", ">= 30", Redis), ("lmdb", "", Lmdb), ("rocksdb", "", RocksDB)):
            case = f"float32, dim {DIM}, {count:,} rows, {ASKED:,} in a call, ids meta"
            try:
                store: RowStore = kind(Path(home))
            except Absent as why:
                yield Row(
                    f"tables.x_{name}", case, None, "x", kind.name, None, None, bar=bar, note=f"not measured: {why}"
                )
                continue
            try:
                fill(store, table.lookup, count)
                yield _against(store, table, f"tables.x_{name}", case, pairs, bar)
            finally:
                store.closing.close()


def _against(store: RowStore, table: Table, name: str, case: str, pairs: int, bar: str) -> Row:
    batches = [KINDS["meta"](table.rows, ASKED, seed) for seed in range(4)]
    keys = [keys_of(batch) for batch in batches]
    out, turn = np.empty((ASKED, DIM), np.float32), 0

    def mine() -> float:
        nonlocal turn
        turn += 1
        return timed(lambda: table.lookup(batches[turn % 4], out=out, threads=1))

    def theirs() -> float:
        return timed(lambda: store.rows(keys[turn % 4], DIM))

    assert np.array_equal(store.rows(keys[0], DIM), table.lookup(batches[0]))
    row = compare(name, case, store.name, mine, theirs, pairs=pairs, bar=bar)
    row.note = f"{ASKED / (row.median or 1) / 1e6:.1f} M rows/s here"
    return row
