"""Tables and other ways to share rows: two processes at once, and rows from Redis, LMDB and RocksDB.

`tables.scale` is the bags that two processes pool, against one, both on cores of their own; the memory of both is
counted once (PSS). Beside it what the machine allows: the same of F.embedding_bag on private rows, and of single random
loads from the table's memory. Also FBGEMM with a table in each process. `tables.x_redis` and the others: rows looked up
and copied by one process, 4,096 in a call, against the same rows from a store on this machine.
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
from openshelf import Space, Table, _core
from peers import tbe
from peers.row_stores import Lmdb, Redis, RocksDB, RowStore, fill, keys_of
from tables import COUNT, ENDS, copy_of, of_torch, ours, row_bytes, table_of
from traffic.recsys_ids import KINDS

DIM, ASKED = 128, 4096


def _memory() -> int:
    facts = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in facts if line.startswith("Pss:"))


def _pool_for(path: str, number: int, pipe: Any) -> None:
    """Rows a second of what is asked for, again and again: bags from the space, or from rows of its own."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    with Space.open(path) as space:
        table = Table.open(space, "t")
        ids = [torch.from_numpy(KINDS["meta"](table.rows, COUNT, 10 * number + at)) for at in range(4)]
        works: dict[str, Callable[[torch.Tensor], object]] = {"ours": ours(table)}
        for batch in ids:
            works["ours"](batch)
        shared = _memory()
        rows = copy_of(table)
        works["torch"] = of_torch(rows)
        address, size = table._core.parts()[0][1], table.rows * row_bytes("float32", DIM)
        works["loads"] = lambda _: _core.random_loads(address, size, COUNT, number)
        call = tbe.bags_of(rows, DIM)
        if call is not None:
            works["fbgemm"] = lambda batch: call(batch, ENDS)
        for work in works.values():
            for batch in ids:
                work(batch)
        pipe.send((list(works), shared, _memory()))
        while (order := pipe.recv()) is not None:
            name, seconds = order
            work, done = works[name], 0
            begun = time.perf_counter()
            while time.perf_counter() < begun + seconds:
                work(ids[done % 4])
                done += 1
            pipe.send(done * COUNT / (time.perf_counter() - begun))


def _together(pipes: list[Any], name: str, seconds: float) -> float:
    """Rows a second of all these processes at once."""
    for pipe in pipes:
        pipe.send((name, seconds))
    return float(sum(pipe.recv() for pipe in pipes))


def scale(report: Report, rows: int, seconds: float, rounds: int) -> None:
    """One process and two in turn, ours and the others; the best of each. Two processes of torch share nothing: what
    they lose to each other the machine takes."""
    size = rows * row_bytes("float32", DIM)
    context = multiprocessing.get_context("spawn")
    with table_of(rows, DIM, "float32") as (space, _):
        pipes, processes = [], []
        for number in range(2):
            here, there = context.Pipe()
            processes.append(context.Process(target=_pool_for, args=(space.name, number, there)))
            processes[-1].start()
            pipes.append(here)
        ready = [pipe.recv() for pipe in pipes]
        names: list[str] = ready[0][0]
        best = {(name, count): 0.0 for name in names for count in (1, 2)}
        for turn in range(rounds):
            for name, count in best:
                some = pipes if count == 2 else [pipes[turn % 2]]
                best[name, count] = max(best[name, count], _together(some, name, seconds))
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join()
    two, shared = best["ours", 2], sum(each[1] for each in ready)
    note = f"{two / 1e6:.1f} M rows/s; PSS of both {shared / 1e9:.2f} GB, the table {size / 1e9:.2f} GB"
    case = "two processes against one, ids meta"
    report.add(Row("tables.scale", case, two / best["ours", 1], "x", "", None, None, bar=">= 1.8", note=note))
    for row, name, case in (
        ("tables.scale_machine", "torch", "the same with F.embedding_bag, rows of their own"),
        ("tables.scale_loads", "loads", "the same with random loads of 8 bytes, each a line"),
    ):
        limit, note = best[name, 2] / best[name, 1], f"{best[name, 2] / 1e6:.1f} M/s"
        report.add(Row(row, case, limit, "x", "", None, None, note=note))
    case, name = "two processes, a table in each", "FBGEMM TBE"
    if "fbgemm" not in names:
        note = "FBGEMM is not installed: make bench-tables-peers"
        report.add(Row("tables.scale_fbgemm", case, None, "x", name, None, None, note=note))
        return
    memory = sum(each[2] for each in ready) - size  # the rows of the space are not theirs
    alone = best["fbgemm", 2] / best["fbgemm", 1]
    note = f"PSS of both {memory / 1e9:.2f} GB, two tables {2 * size / 1e9:.2f} GB; its two against its one {alone:.2f}"
    ratio = two / best["fbgemm", 2]
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
    scale(report, rows, 0.4 if args.quick else 1.5, 6 if args.quick else 10)
    torch.set_num_threads(1)
    against_stores(report, few, 8 if args.quick else 25)
    report.finish(args.json)


if __name__ == "__main__":
    main()
