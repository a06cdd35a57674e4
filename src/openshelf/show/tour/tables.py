"""Chapter seven: an embedding table that one process trains while another reads it, and a trainer that is killed."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from rich.console import Console

from openshelf.show.times import format_time
from openshelf.show.tour.workers import start
from openshelf.space import Space, format_size
from openshelf.tables import SGD, DynamicIds, Table, Uniform

ROWS, DIM = 100_000, 64
BAGS, LENGTH = 4096, 16
HOT = 1000  # rows that are trained
KEYS, ROUNDS = 2000, 12


def _train(name: str, pipe: Connection) -> None:
    """For ever: adds one to every number of some rows. Says when it has begun."""
    with Space.open(name) as space:
        table, chance = Table.open(space, "users"), np.random.default_rng(1)
        told = False
        while True:
            table.update(chance.choice(HOT, 64, replace=False), np.full((64, DIM), -1.0, np.float32), SGD(1.0))
            if not told:
                pipe.send(time.time())
                told = True


def _read_while_it_trains(table: Table, name: str) -> tuple[int, bool, int]:
    """Looks rows up while a process changes them, and kills it: look-ups that saw a change, whether all rows were whole
    at any time, and how many writers died in an update."""
    process, pipe = start(_train, name)
    try:
        pipe.recv()
        before, changes, whole, end = table.lookup(np.arange(HOT)), 0, True, time.monotonic() + 0.5
        while time.monotonic() < end:
            rows = table.lookup(np.arange(HOT), consistent=True)
            changes += int((rows != before).any())
            whole = whole and bool((rows == rows[:, :1]).all())
            before = rows
    finally:
        process.kill()
        process.join()
    rows = table.lookup(np.arange(HOT), consistent=True)
    return changes, whole and bool((rows == rows[:, :1]).all()), int(table.stat()["interrupted"])


def _time_bags(table: Table) -> float:
    """Seconds of bags from rows anywhere in the table: the best of some calls."""
    ids = np.random.default_rng(2).integers(HOT, ROWS, BAGS * LENGTH)
    offsets, out = np.arange(0, BAGS * LENGTH, LENGTH), np.empty((BAGS, DIM), np.float32)
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        table.bag(ids, offsets, out=out, threads=1)
        best = min(best, time.perf_counter() - started)
    return best


def _drift(space: Space) -> dict[str, Any]:
    """Keys of which some are new in each round come to a table with too few rows."""
    table = Table.create(space, "items", rows=KEYS, dim=16, keys=DynamicIds(admit_after=2))
    chance, served = np.random.default_rng(3), 0.0
    for turn in range(ROUNDS):
        for _ in range(10):
            keys = np.minimum(chance.zipf(1.3, 4096), 3 * KEYS) + KEYS * turn
            table.update(keys, np.ones((4096, 16), np.float32), SGD(1.0))
        served = float(table.lookup(keys).any(axis=1).mean())
    facts = table.stat()
    return {"served": served} | {name: facts[name] for name in ("room", "keys", "admitted", "evicted")}


def tables_chapter(console: Console) -> dict[str, Any]:
    name = f"tour-tables-{os.getpid()}"
    console.rule("[bold]Rows of a recommender, read where they are")
    made = Space.create(name, dram="64MiB")
    try:
        with made as space, console.status("one process reads a table that another one trains"):
            table = Table.create(space, "users", rows=ROWS, dim=DIM, init=Uniform(-1, 1, seed=1))
            table.write(np.arange(HOT), np.zeros((HOT, DIM), np.float32))
            seconds = _time_bags(table)
            changes, whole, interrupted = _read_while_it_trains(table, name)
            day = _drift(space)
    finally:
        Space.remove(name)
    read = BAGS * LENGTH
    console.print(
        f"'users' has {ROWS:,} rows of {DIM} numbers ({format_size(ROWS * DIM * 4)}). {BAGS:,} bags of {LENGTH} rows "
        f"by one core: {format_time(seconds)}, {read / seconds / 1e6:.0f} million rows a second."
    )
    console.print(
        f"Another process trained {HOT:,} rows meanwhile: {changes} look-ups saw new rows, all of them "
        f"{'whole' if whole else 'TORN'}. It was killed (-9); writers that died in an update: {interrupted}."
    )
    console.print(
        f"'items' has room for {day['room']:,} keys. {day['admitted']:,} got a row in {ROUNDS} rounds, and "
        f"{day['evicted']:,} made room for others; {day['served']:.0%} of the last round's look-ups found their row."
    )
    return {
        "bags_s": seconds,
        "rows_per_s": read / seconds,
        "changes_seen": changes,
        "rows_whole": whole,
        "interrupted": interrupted,
        "dynamic": day,
    }
