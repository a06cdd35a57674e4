"""Tables: is a shared table as fast to read as private memory is with torch and FBGEMM?

Bags of 16 rows on one core, from a space, against F.embedding_bag and FBGEMM's TBE on memory of their own. An id's
value is the worst of its cases. Beside it: two processes, whole rows (consistent=True), rows of int8, and how many
random lines this machine reads.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from kit.side_by_side import Report, Row, arguments, compare
from openshelf import Space, Table, _core
from openshelf.tables import Uniform
from peers import tbe
from traffic.recsys_ids import KINDS

BAGS, LENGTH, BATCHES = 4096, 16, 4
COUNT = BAGS * LENGTH
OFFSETS = torch.arange(0, COUNT, LENGTH)
CASES = [(dtype, dim) for dtype in ("float32", "float16") for dim in (128, 64)]


def on_one_core() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)


@contextlib.contextmanager
def table_of(rows: int, dim: int, dtype: str) -> Iterator[tuple[Space, Table]]:
    room = rows * _core.table_row_bytes(("float32", "float16", "bfloat16", "int8").index(dtype), dim) + (16 << 20)
    with Space.temporary(room) as space:
        yield space, Table.create(space, "t", rows=rows, dim=dim, dtype=dtype, init=Uniform(-1, 1, 1))


def batches(kind: str, rows: int) -> list[torch.Tensor]:
    return [torch.from_numpy(KINDS[kind](rows, COUNT, seed)) for seed in range(BATCHES)]


def processor_time(call: Callable[[], object]) -> Callable[[], float]:
    """Seconds that this thread computes: what others do on the machine meanwhile does not count."""

    def measured() -> float:
        started = time.thread_time()
        call()
        return time.thread_time() - started

    return measured


def reader(table: Table, ids: list[torch.Tensor], **options: Any) -> Callable[[], object]:
    out, number = torch.empty(BAGS, table.dim), 0

    def call() -> None:
        nonlocal number
        number += 1
        table.bag(ids[number % BATCHES], OFFSETS, out=out, threads=1, **options)

    return call


def peer_of(work: Callable[[torch.Tensor], object], ids: list[torch.Tensor]) -> Callable[[], object]:
    number = 0

    def call() -> None:
        nonlocal number
        number += 1
        work(ids[number % BATCHES])

    return call


def of_torch(rows: torch.Tensor, ids: list[torch.Tensor]) -> Callable[[], object]:
    return peer_of(lambda one: torch.nn.functional.embedding_bag(one, rows, OFFSETS, mode="sum"), ids)


def copy_of(table: Table) -> torch.Tensor:
    """Its rows in private memory, in steps."""
    rows = torch.empty(table.rows, table.dim, dtype=getattr(torch, table.dtype))
    for first in range(0, table.rows, 1 << 18):
        ids = torch.arange(first, min(table.rows, first + (1 << 18)))
        table.lookup(ids, raw=True, out=rows[first : first + len(ids)])
    return rows


def against_peers(report: Report, rows: int, pairs: int) -> None:
    found: dict[str, list[Row]] = {"tables.x_torch": [], "tables.x_fbgemm": [], "tables.consistent": []}
    for dtype, dim in track(CASES, "floats"):
        with table_of(rows, dim, dtype) as (_, table):
            private = copy_of(table)
            for kind in KINDS:
                ids, case = batches(kind, rows), f"{dtype}, dim {dim}, ids {kind}"
                ours = processor_time(reader(table, ids))
                theirs = of_torch(private, ids)
                row = compare("tables.x_torch", case, "F.embedding_bag", ours, processor_time(theirs), pairs=pairs)
                row.note = _rate(row, table)
                found["tables.x_torch"].append(row)
                whole = processor_time(reader(table, ids, consistent=True))
                found["tables.consistent"].append(
                    compare("tables.consistent", case, "plain reads", whole, ours, pairs=pairs)
                )
                call = tbe.bags_of(private, ids, torch.cat([OFFSETS, torch.tensor([COUNT])]))
                if call is not None:
                    row = compare("tables.x_fbgemm", case, "FBGEMM TBE", ours, processor_time(call), pairs=pairs)
                    found["tables.x_fbgemm"].append(row)
                del call
                gc.collect()
            del private
    for name, bar in (("tables.x_torch", ">= 1.0"), ("tables.x_fbgemm", ">= 1.2"), ("tables.consistent", ">= 0.85")):
        _add_worst(report, name, bar, found[name])


def _rate(row: Row, table: Table) -> str:
    speed = COUNT / (row.median or 1)
    return f"{speed / 1e6:.1f} M rows/s, {speed * table._row_bytes / 1e9:.1f} GB/s"


def _add_worst(report: Report, name: str, bar: str, cases: list[Row]) -> None:
    if not cases:
        note = "FBGEMM is not installed: make bench-tables-peers"
        report.add(Row(name, "the worst case", None, "x", "", None, None, bar=bar, note=note))
        return
    worst = min(cases, key=lambda row: row.value or 0)
    report.add(replace(worst, case=f"the worst case: {worst.case}", bar=bar))
    for row in cases:
        report.add(replace(row, id=f"{name}.{row.case.replace(', ', '_').replace(' ', '')}"))


def int8(report: Report, rows: int, pairs: int) -> None:
    with table_of(rows, 128, "int8") as (_, table):
        ids = batches("meta", rows)
        packed = torch.empty(rows, 136, dtype=torch.uint8)
        for first in range(0, rows, 1 << 18):
            some = torch.arange(first, min(rows, first + (1 << 18)))
            table.lookup(some, raw=True, out=packed[first : first + len(some)])
        work = torch.ops.quantized.embedding_bag_byte_rowwise_offsets
        theirs = peer_of(lambda one: work(packed, one, OFFSETS, mode=0), ids)
        mine, other = processor_time(reader(table, ids)), processor_time(theirs)
        case = "int8, dim 128, ids meta"
        report.add(compare("tables.int8", case, "embedding_bag_byte", mine, other, pairs=pairs, bar=">= 1.0"))


def limit(report: Report, rows: int) -> None:
    """Random lines of the same memory, as many at a time as the processor takes."""
    with table_of(rows, 128, "float32") as (_, table):
        address = table._core.parts()[0][1]
        loads = 200_000
        seconds = min(_core.random_loads(address, rows * 512, loads, seed) for seed in range(5)) / loads
        note = f"{64 / seconds / 1e9:.1f} GB/s of lines"
        case = "random loads of 8 bytes, each a line"
        report.add(Row("tables.random_read", case, 1 / seconds / 1e6, "M/s", "", None, None, note=note))


def _read_for(path: str, seed: int, seconds: float, pipe: Any) -> None:
    torch.set_num_threads(1)
    with Space.open(path) as space:
        table = Table.open(space, "t")
        ids = [torch.from_numpy(KINDS["meta"](table.rows, COUNT, seed + at)) for at in range(BATCHES)]
        call = reader(table, ids)
        call()
        pipe.send("ready")
        pipe.recv()
        end, done = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            call()
            done += 1
        facts = Path("/proc/self/smaps_rollup").read_text().splitlines()
        pss = next(int(line.split()[1]) for line in facts if line.startswith("Pss:"))
        pipe.send((done / seconds, pss * 1024))
        pipe.recv()


def scale(report: Report, rows: int, seconds: float) -> None:
    """One process, then two at once, each on a core of its own."""
    context = multiprocessing.get_context("spawn")
    with table_of(rows, 128, "float32") as (space, table):
        speeds, memory = [], 0.0
        for count in (1, 2):
            pipes, processes = [], []
            for number in range(count):
                here, there = context.Pipe()
                process = context.Process(target=_read_for, args=(space.name, 10 * number, seconds, there))
                process.start()
                pipes.append(here)
                processes.append(process)
            for word in ("go", "end"):
                answers = [pipe.recv() for pipe in pipes]
                for pipe in pipes:
                    pipe.send(word)
            for process in processes:
                process.join()
            speeds.append(sum(speed for speed, _ in answers))
            memory = sum(pss for _, pss in answers)
        note = f"PSS of both {memory / 1e9:.2f} GB, the table {table.rows * 512 / 1e9:.2f} GB"
        case = "two processes against one"
        report.add(Row("tables.scale", case, speeds[1] / speeds[0], "x", "", None, None, bar=">= 1.8", note=note))


def main() -> None:
    args = arguments(__doc__ or "")
    rows, pairs = (500_000, 4) if args.quick else (10_000_000, 15)
    report = Report(f"Tables: {rows:,} rows, {BAGS:,} bags of {LENGTH}, one core")
    scale(report, rows, 1.0 if args.quick else 5.0)
    on_one_core()
    limit(report, rows)
    against_peers(report, rows, pairs)
    int8(report, rows, pairs)
    report.finish(args.json)


if __name__ == "__main__":
    main()
