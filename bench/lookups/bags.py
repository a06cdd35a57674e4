"""Is a shared table as fast to read as private memory is with torch and FBGEMM?

Bags of 16 rows on one core, from a space, against F.embedding_bag (of int8, embedding_bag_byte) and FBGEMM's TBE on
memory of their own. Beside it: whole rows (consistent=True), alone and while another process updates; and how many
random lines this machine reads. 10 M rows where three quarters of the free memory hold the table and a private copy,
otherwise fewer.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import mmap
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kit.side_by_side import Row, compare
from lookups.asked import CASES, Asked, one_core, with_worst
from openshelf import Space, Table, _core
from openshelf.tables import SGD, Uniform
from peers import tbe
from traffic.recsys_ids import KINDS

BAGS, LENGTH, BATCHES = 4096, 16, 7
COUNT = BAGS * LENGTH
OFFSETS = torch.arange(0, COUNT, LENGTH)
ENDS = torch.arange(0, COUNT + 1, LENGTH)
DTYPES = ("float32", "float16", "bfloat16", "int8")
BARS = {"tables.x_torch": ">= 1.0", "tables.x_fbgemm": ">= 1.2", "tables.consistent": ">= 0.85"}
Call = Callable[[], float]


def row_bytes(dtype: str, dim: int) -> int:
    return _core.table_row_bytes(DTYPES.index(dtype), dim)


def rows_that_fit(dtype: str, dim: int, most: int) -> int:
    free = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    copies = 3 if dtype == "int8" else 2  # FBGEMM lays rows of int8 out in its own way
    return min(most, int(free.split()[1]) * 768 // (copies * row_bytes(dtype, dim)))


@contextlib.contextmanager
def table_of(rows: int, dim: int, dtype: str) -> Iterator[tuple[Space, Table]]:
    with Space.temporary(rows * row_bytes(dtype, dim) + (16 << 20)) as space:
        optimizer = None if dtype == "int8" else SGD(0.01)
        yield (
            space,
            Table.create(space, "t", rows=rows, dim=dim, dtype=dtype, init=Uniform(-1, 1, 1), optimizer=optimizer),
        )


class Batches:
    """Ids of one kind, a batch after the other, whoever asks: nobody reads rows that somebody else has just read."""

    def __init__(self, kind: str, rows: int) -> None:
        drawn = torch.from_numpy(KINDS[kind](rows, COUNT * BATCHES, 1))
        self.ids = list(drawn.split(COUNT))
        self.number = 0

    def timed(self, work: Callable[[torch.Tensor], object]) -> Call:
        """Seconds that this thread computes: what others do on the machine meanwhile does not count."""

        def call() -> float:
            self.number += 1
            ids = self.ids[self.number % BATCHES]
            started = time.thread_time()
            work(ids)
            return time.thread_time() - started

        return call


@functools.cache
def results(dim: int) -> torch.Tensor:
    """One for all: where it happens to lie makes a difference."""
    return torch.empty(BAGS, dim)


def ours(table: Table, **options: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    out = results(table.dim)

    def work(ids: torch.Tensor) -> torch.Tensor:
        table.bag(ids, OFFSETS, out=out, threads=1, **options)
        return out

    return work


def of_torch(rows: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    if rows.dtype == torch.uint8:
        return lambda ids: torch.ops.quantized.embedding_bag_byte_rowwise_offsets(rows, ids, OFFSETS, mode=0)
    return lambda ids: torch.nn.functional.embedding_bag(ids, rows, OFFSETS, mode="sum")


def of_fbgemm(call: Callable[[torch.Tensor, torch.Tensor], Any], ids: torch.Tensor) -> Any:
    return call(ids, ENDS)


def copy_of(table: Table, into: torch.Tensor | None = None) -> torch.Tensor:
    """Its rows in private memory, in steps."""
    if into is None:
        kind = torch.uint8 if table.dtype == "int8" else getattr(torch, table.dtype)
        into = torch.empty(table.rows, row_bytes(table.dtype, table.dim), dtype=torch.uint8).view(kind)
    for first in range(0, table.rows, 1 << 18):
        ids = torch.arange(first, min(table.rows, first + (1 << 18)))
        table.lookup(ids, raw=True, out=into[first : first + len(ids)])
    return into


def same(work: Callable[[torch.Tensor], torch.Tensor], peer: Callable[[torch.Tensor], Any], ids: torch.Tensor) -> None:
    torch.testing.assert_close(work(ids), peer(ids).float(), rtol=1e-2, atol=3e-2)


def rows(asked: Asked) -> Iterator[Row]:
    most, pairs = (1_000_000, 7) if asked.quick else (10_000_000, 25)
    found: dict[str, list[Row]] = {name: [] for name in BARS}
    kept: dict[tuple[str, int], Batches] = {}
    with one_core():
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        for at, (dtype, dim) in enumerate(CASES[name] for name in asked.cases):
            count = rows_that_fit(dtype, dim, most)
            with table_of(count, dim, dtype) as (space, table):
                if at == 0:
                    yield limit(space, table)
                case_of(space, table, kept, found, pairs)
                if (dtype, dim) == ("float32", 128):
                    yield on_huge_pages(table, kept["meta", count], pairs)
            gc.collect()
        torch.set_num_threads(threads)
    for name, cases in found.items():
        if cases:
            yield from with_worst(cases, BARS[name])
        else:
            note = "not measured: FBGEMM is not installed (make bench-tables-peers)"
            yield Row(name, "the worst case", None, "x", "", None, None, bar=BARS[name], note=note)


def case_of(
    space: Space, table: Table, kept: dict[tuple[str, int], Batches], found: dict[str, list[Row]], pairs: int
) -> None:
    dtype, dim, count = table.dtype, table.dim, table.rows
    private = copy_of(table)
    fbgemm = tbe.bags_of(private, dim)
    peers = {"tables.x_torch": ("embedding_bag_byte" if dtype == "int8" else "F.embedding_bag", of_torch(private))}
    if fbgemm is not None:
        peers["tables.x_fbgemm"] = ("FBGEMM TBE", functools.partial(of_fbgemm, fbgemm))
    for kind in KINDS:
        if (kind, count) not in kept:
            kept[kind, count] = Batches(kind, count)
        batches = kept[kind, count]
        case, plain = f"{dtype}, dim {dim}, ids {kind}", ours(table)
        for name, (peer_name, peer) in peers.items():
            same(plain, peer, batches.ids[0])
            row = compare(name, case, peer_name, batches.timed(plain), batches.timed(peer), pairs=pairs)
            speed = COUNT / (row.median or 1)
            row.note = f"{speed / 1e6:.1f} M rows/s, {speed * row_bytes(dtype, dim) / 1e9:.1f} GB/s, {count:,} rows"
            found[name].append(row)
        found["tables.consistent"].append(whole_rows(table, batches, case, pairs))
    if dtype != "int8":
        with updates(space.name):
            case = f"{dtype}, dim {dim}, ids meta, while another process updates"
            found["tables.consistent"].append(whole_rows(table, kept["meta", count], case, pairs))


def whole_rows(table: Table, batches: Batches, case: str, pairs: int) -> Row:
    """Plain reads stand on the side that has more samples, and so the better best."""
    plain, whole = batches.timed(ours(table)), batches.timed(ours(table, consistent=True))
    row = compare("tables.consistent", case, "plain reads", plain, whole, pairs=pairs)
    share = 1 / (row.ratio or 1)
    return replace(row, value=share, ratio=share)


def on_huge_pages(table: Table, batches: Batches, pairs: int) -> Row:
    """torch with private memory that was asked to be huge pages, which torch does not do by itself."""
    memory = mmap.mmap(-1, table.rows * 512, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    rows = torch.from_numpy(np.frombuffer(memory, np.float32).reshape(table.rows, 128))
    peer = batches.timed(of_torch(copy_of(table, rows)))
    case = "float32, dim 128, ids meta, torch on huge pages"
    return compare("tables.x_torch_huge", case, "F.embedding_bag", batches.timed(ours(table)), peer, pairs=pairs)


@contextlib.contextmanager
def updates(path: str) -> Iterator[None]:
    """Another process changes rows all the time, on another core."""
    program = Path(__file__).parents[1] / "processes" / "tables.py"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, str(program), path], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        changed, _ = process.communicate()
        assert int(changed) > 0


def limit(space: Space, table: Table) -> Row:
    """Random lines of the table's memory, as many at a time as the processor takes."""
    address, size, loads = table._core.parts()[0][1], table.rows * row_bytes(table.dtype, table.dim), 200_000
    seconds = min(_core.random_loads(address, size, loads, seed) for seed in range(5)) / loads
    huge = space.describe()["huge_bytes"]
    note = f"{64 / seconds / 1e9:.1f} GB/s of lines, {huge / size:.0%} of the table in huge pages"
    case = "random loads of 8 bytes, each a line"
    return Row("tables.random_read", case, 1 / seconds / 1e6, "M/s", "", None, None, note=note)
