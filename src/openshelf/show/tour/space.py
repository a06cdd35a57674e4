"""Chapter one: processes on one host share one address space, and nothing breaks when one is killed."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from openshelf.show.times import format_time
from openshelf.show.tour.courier_steps import STEPS, courier
from openshelf.show.tour.workers import start
from openshelf.space import Space, format_size

ROWS = 2048  # of 4096 float32: 32 MiB
WORKERS = 4
ADDS = 100_000


def _worker(name: str, number: int, pipe: Connection) -> None:
    """Opens the space, looks at the array, counts; the last one then puts for ever, until it is killed."""
    with Space.open(name) as space:
        started = time.perf_counter()
        view = space["weights"].numpy()
        opened = time.perf_counter() - started
        started = time.perf_counter()
        first = float(view[7, 0])
        load = time.perf_counter() - started
        started = time.perf_counter()
        view.max()
        read = time.perf_counter() - started
        counter = space.counter("steps")
        for _ in range(ADDS):
            counter.add()
        view[number, :] = number  # a plain store, seen by all
        pipe.send(
            {"address": space["weights"].address, "value": first, "open_s": opened, "load_s": load, "read_s": read}
        )
        if number == WORKERS - 1:
            flag = space["busy"].atomic()
            large = np.full(256 << 20, 7, np.uint8)
            while True:
                flag.add(1)
                space.put("large", large)
                flag.add(1)
        pipe.recv()


def _kill_inside_put(space: Space, process: Any) -> int:
    """Waits until the worker is in the middle of a put and kills it there; returns how many it had finished."""
    flag = space["busy"].atomic()
    while True:
        before = flag.load()
        time.sleep(0.004)
        if before % 2 and flag.load() == before and before > 2:
            process.kill()
            process.join()
            return before // 2


def space_chapter(console: Console) -> dict[str, Any]:
    console.rule("[bold]One address space on one host")
    name = f"tour-{os.getpid()}"
    processes: list[BaseProcess] = []
    made = Space.create(name, dram="2GiB")
    try:
        with made as space, console.status("four processes share an array and a counter"):
            with space.new("weights", (ROWS, 4096), "float32") as weights:
                weights.numpy()[:] = 1.0
            space.zeros("busy", (), "int64")
            pipes, reports = [], []
            for number in range(WORKERS):
                process, pipe = start(_worker, name, number)
                processes.append(process)
                pipes.append(pipe)
            reports = [pipe.recv() for pipe in pipes]
            puts = _kill_inside_put(space, processes[-1])
            counted = space.counter("steps").value
            survivor = space["large"].numpy()
            whole = bool((survivor == 7).all())
            del survivor
            stored = [float(space["weights"].numpy()[row, 0]) for row in range(WORKERS)]
            check = space.check()
            for process, pipe in zip(processes[:-1], pipes[:-1], strict=True):
                pipe.send("done")
                process.join(5)
            steps = courier(space["weights"].numpy())
    finally:
        for process in processes:
            process.kill()
            process.join()
        Space.remove(name)

    same = len({report["address"] for report in reports}) == 1
    shared = format_size(ROWS * 4096 * 4)
    verdict = "the same address in each" if same else "DIFFERENT ADDRESSES"
    console.print(f"Four processes found 'weights' ({shared}) at {reports[0]['address']:#x}: {verdict}.")
    console.print(
        f"Each added {ADDS:,} to one counter: {counted:,} (expected {WORKERS * ADDS:,}). Their plain stores: {stored}."
    )
    console.print(
        f"One was killed (-9) inside its put number {puts + 1} of 256 MiB: the array it had published before is "
        f"{'whole' if whole else 'TORN'}, {check['leaked_bytes']} bytes leaked, {check['missing_blocks']} blocks lost."
    )
    table = Table(title=f"Handing {shared} to another process, measured now on this machine", title_justify="left")
    table.add_column("by message: the courier")
    table.add_column("time", justify="right")
    table.add_column("by address: the open shelf")
    table.add_column("time", justify="right")
    open_s = min(report["open_s"] for report in reports)
    load_s = min(report["load_s"] for report in reports)
    read_s = min(report["read_s"] for report in reports)
    shelf = [("find it, map it as numpy", open_s), ("first load of a value", load_s), ("read all of it once", read_s)]
    for at, step in enumerate(STEPS):
        right = shelf[at] if at < len(shelf) else ("", None)
        table.add_row(step, format_time(steps[step]), right[0], "" if right[1] is None else format_time(right[1]))
    total, mine = sum(steps.values()), open_s + load_s + read_s
    table.add_section()
    table.add_row("in all", format_time(total), "in all", format_time(mine))
    console.print(table)
    console.print("The courier moves every byte five times before the first can be read; the open shelf moves none.")
    return {
        "same_address": same,
        "counted": counted,
        "expected": WORKERS * ADDS,
        "stores_seen": stored,
        "killed_in_put": puts + 1,
        "published_array_whole": whole,
        "check": check,
        "courier_s": steps,
        "open_s": open_s,
        "load_s": load_s,
        "read_all_s": read_s,
    }
