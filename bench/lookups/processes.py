"""Two processes at once on cores of their own.

`tables.scale` is the bags that two processes pool, against one; the memory of both is counted once (PSS). Beside it
what the machine allows: the same of F.embedding_bag on private rows, and of single random loads from the table's
memory. Also FBGEMM with a table in each process.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from kit.side_by_side import Row
from lookups.asked import Asked
from lookups.bags import COUNT, ENDS, copy_of, of_torch, ours, row_bytes, table_of
from openshelf import Space, Table, _core
from peers import tbe
from traffic.recsys_ids import KINDS

DIM = 128


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


def rows(asked: Asked) -> Iterator[Row]:
    """One process and two in turn, ours and the others; the best of each. Two processes of torch share nothing: what
    they lose to each other the machine takes."""
    count, seconds, rounds = (500_000, 0.12, 7) if asked.quick else (5_000_000, 1.5, 10)
    size = count * row_bytes("float32", DIM)
    context = multiprocessing.get_context("spawn")
    with table_of(count, DIM, "float32") as (space, _):
        pipes, processes = [], []
        for number in range(2):
            here, there = context.Pipe()
            processes.append(context.Process(target=_pool_for, args=(space.name, number, there)))
            processes[-1].start()
            pipes.append(here)
        ready = [pipe.recv() for pipe in pipes]
        names: list[str] = ready[0][0]
        best = {(name, number): 0.0 for name in names for number in (1, 2)}
        for turn in range(rounds):
            for name, number in best:
                some = pipes if number == 2 else [pipes[turn % 2]]
                best[name, number] = max(best[name, number], _together(some, name, seconds))
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join()
    two, shared = best["ours", 2], sum(each[1] for each in ready)
    note = f"{two / 1e6:.1f} M rows/s; PSS of both {shared / 1e9:.2f} GB, the table {size / 1e9:.2f} GB"
    case = "two processes against one, ids meta"
    yield Row("tables.scale", case, two / best["ours", 1], "x", "", None, None, bar=">= 1.8", note=note)
    for row, name, case in (
        ("tables.scale_machine", "torch", "the same with F.embedding_bag, rows of their own"),
        ("tables.scale_loads", "loads", "the same with random loads of 8 bytes, each a line"),
    ):
        limit, note = best[name, 2] / best[name, 1], f"{best[name, 2] / 1e6:.1f} M/s"
        yield Row(row, case, limit, "x", "", None, None, note=note)
    case, name = "two processes, a table in each", "FBGEMM TBE"
    if "fbgemm" not in names:
        note = "not measured: FBGEMM is not installed (make bench-tables-peers)"
        yield Row("tables.scale_fbgemm", case, None, "x", name, None, None, note=note)
        return
    memory = sum(each[2] for each in ready) - size  # the rows of the space are not theirs
    alone = best["fbgemm", 2] / best["fbgemm", 1]
    note = f"PSS of both {memory / 1e9:.2f} GB, two tables {2 * size / 1e9:.2f} GB; its two against its one {alone:.2f}"
    ratio = two / best["fbgemm", 2]
    yield Row("tables.scale_fbgemm", case, ratio, "x", name, ratio, None, note=note)
