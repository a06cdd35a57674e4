"""Tables and other ways to share rows: two processes at once, and rows from Redis, LMDB and RocksDB.

`tables.scale` is the bags that two processes pool, against one, both on cores of their own; the memory of both is
counted once (PSS). Beside it FBGEMM with a table in each process. `tables.x_redis` and the others: rows looked up and
copied by one process, 4,096 in a call, against the same rows from a store on this machine.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kit.servers import Absent
from kit.side_by_side import Report, Row, arguments, compare, timed
from openshelf import Space, Table
from peers import tbe
from peers.row_stores import Lmdb, Redis, RocksDB, RowStore, fill, keys_of
from tables import COUNT, ENDS, ours, row_bytes, table_of
from traffic.recsys_ids import KINDS

DIM, ASKED = 128, 4096


def _memory() -> int:
    facts = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in facts if line.startswith("Pss:"))


def _pool_for(path: str, number: int, seconds: float, with_fbgemm: bool, pipe: Any) -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    with Space.open(path) as space:
        table = Table.open(space, "t")
        ids = [torch.from_numpy(KINDS["meta"](table.rows, COUNT, 10 * number + at)) for at in range(4)]
        work: Callable[[torch.Tensor], object] = ours(table)
        if with_fbgemm:
            rows = torch.empty(table.rows, DIM)
            for first in range(0, table.rows, 1 << 18):
                some = torch.arange(first, min(table.rows, first + (1 << 18)))
                table.lookup(some, raw=True, out=rows[first : first + len(some)])
            call = tbe.bags_of(rows, DIM)
            pipe.send(call is not None)
            if call is None:
                return
            table.close()
            work = lambda batch: call(batch, ENDS)  # noqa: E731
        for batch in ids:
            work(batch)
        pipe.send("ready")
        pipe.recv()
        begun, end, done = time.perf_counter(), time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            work(ids[done % 4])
            done += 1
        pipe.send((done * COUNT / (time.perf_counter() - begun), _memory()))
        pipe.recv()


def _answer(pipe: Any) -> Any:
    return pipe.recv()


def together(path: str, count: int, seconds: float, with_fbgemm: bool) -> tuple[float, int] | None:
    """Rows a second of so many processes, and the memory of all."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(count):
        here, there = context.Pipe()
        process = context.Process(target=_pool_for, args=(path, number, seconds, with_fbgemm, there))
        process.start()
        pipes.append(here)
        processes.append(process)
    if with_fbgemm and not all(list(map(_answer, pipes))):
        return None
    answers: list[Any] = []
    for word in ("go", "end"):
        answers = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(word)
    for process in processes:
        process.join()
    return sum(speed for speed, _ in answers), sum(memory for _, memory in answers)


def scale(report: Report, rows: int, seconds: float, rounds: int) -> None:
    """One process and two in turn; the best of each."""
    size = rows * row_bytes("float32", DIM)
    with table_of(rows, DIM, "float32") as (space, _):
        one, two, memory = 0.0, 0.0, 0
        for _ in range(rounds):
            for count in (1, 2):
                found = together(space.name, count, seconds, False)
                assert found is not None
                if count == 1:
                    one = max(one, found[0])
                else:
                    two, memory = max(two, found[0]), found[1]
        note = f"{two / 1e6:.1f} M rows/s; PSS of both {memory / 1e9:.2f} GB, the table {size / 1e9:.2f} GB"
        case = "two processes against one, ids meta"
        report.add(Row("tables.scale", case, two / one, "x", "", None, None, bar=">= 1.8", note=note))
        theirs = together(space.name, 2, seconds, True)
        case, name = "two processes, a table in each", "FBGEMM TBE"
        if theirs is None:
            note = "FBGEMM is not installed: make bench-tables-peers"
            report.add(Row("tables.scale_fbgemm", case, None, "x", name, None, None, note=note))
        else:
            note = f"PSS of both {theirs[1] / 1e9:.2f} GB, two tables {2 * size / 1e9:.2f} GB"
            ratio = two / theirs[0]
            report.add(Row("tables.scale_fbgemm", case, ratio, "x", name, ratio, None, note=note))


def against_stores(report: Report, rows: int, pairs: int) -> None:
    with table_of(rows, DIM, "float32") as (_, table), tempfile.TemporaryDirectory(dir="/dev/shm") as home:
        for name, bar, kind in (("redis", ">= 30", Redis), ("lmdb", "", Lmdb), ("rocksdb", "", RocksDB)):
            case = f"float32, dim {DIM}, {rows:,} rows, {ASKED:,} in a call, ids meta"
            try:
                store: RowStore = kind(Path(home))
            except Absent as why:
                report.add(Row(f"tables.x_{name}", case, None, "x", kind.name, None, None, bar=bar, note=str(why)))
                continue
            try:
                fill(store, table.lookup, rows)
                report.add(_against(store, table, f"tables.x_{name}", case, pairs, bar))
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


def main() -> None:
    args = arguments(__doc__ or "")
    rows, few = (500_000, 200_000) if args.quick else (5_000_000, 1_000_000)
    report = Report("Tables: two processes, and other stores")
    scale(report, rows, 1.0 if args.quick else 5.0, 1 if args.quick else 3)
    torch.set_num_threads(1)
    against_stores(report, few, 8 if args.quick else 25)
    report.finish(args.json)


if __name__ == "__main__":
    main()
