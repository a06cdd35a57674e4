"""One host: is shared memory as fast as private memory, and is finding it cheap?

Views against private arrays with the same page size, look-ups against a measured random load, put against memcpy,
joining a large space, two processes against one.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from rich.progress import track

from kit.side_by_side import Report, Row, arguments, compare, p99, timed
from openshelf import Space, _core

MIB = 1 << 20


def private_array(nbytes: int) -> np.ndarray[Any, Any]:
    """Anonymous memory in 4 KiB pages: numpy's own allocation would ask for huge ones."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.float64)


def address_of(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


NBYTES = 256 * MIB
CASES = (
    ("space.read", "streaming read of a 256 MiB view"),
    ("space.update", "in-place += on a 256 MiB view"),
    ("space.random", "random 8-byte loads in a 256 MiB view"),
)


def touches(array: np.ndarray[Any, Any]) -> list[float]:
    """Seconds of each case on one array, the best of eight, in turn: a burst of noise meets all of them."""
    array[:] = 1.0
    address = address_of(array)
    turns = [
        (
            _core.time_reads(address, NBYTES, 1, 1)[0],
            timed(lambda: np.add(array, 1.0, out=array)),
            _core.random_loads(address, NBYTES, 500_000, seed),
        )
        for seed in range(8)
    ]
    return [min(case) for case in zip(*turns, strict=True)]


def shared_view() -> tuple[list[float], int]:
    with Space.create("bench-view", dram=NBYTES + 16 * MIB) as space:
        times = touches(space.zeros("view", NBYTES // 8, "float64").numpy())
        huge = int(space.describe()["huge_bytes"])
    Space.remove("bench-view")
    return times, huge


def views(report: Report, pairs: int) -> None:
    """Which physical pages an array gets changes its speed by a fifth on this kind of machine. So each side takes its
    memory, is measured and gives it back before the other does: the kernel hands the same pages out again. The figure
    is the median over the pairs."""
    ours, peer = [], []
    huge = 0
    for pair in track(range(pairs), "views"):
        for side in (0, 1) if pair % 2 else (1, 0):
            if side:
                peer.append(touches(private_array(NBYTES)))
            else:
                times, huge = shared_view()
                ours.append(times)
    note = "4 KiB pages on both sides" if not huge else "huge pages in the space only"
    for at, (id, case) in enumerate(CASES):
        mine = [times[at] for times in ours]
        ratios = [theirs[at] / own[at] for own, theirs in zip(ours, peer, strict=True)]
        ratio = statistics.median(ratios)
        spread = statistics.median(before / after for before, after in pairwise(mine))
        report.add(
            Row(id, case, ratio, "x", "private array", ratio, spread, statistics.median(mine), p99(mine), ">= 0.95",
                f"{note}; pairs {min(ratios):.2f} to {max(ratios):.2f}")
        )  # fmt: skip


def opening(report: Report, space: Space, rounds: int) -> None:
    space.put("one", np.zeros(16))

    def once() -> float:
        return timed(lambda: space["one"].numpy(), 20_000)

    mine, again = [], []
    once()
    for _ in range(rounds):
        mine.append(once() * 1e6)
        again.append(once() * 1e6)
    best = min(mine + again)
    report.add(
        Row("space.open_us", 'space["name"].numpy()', best, "us", "", None, min(again) / min(mine),
            statistics.median(mine), p99(mine), "<= 2")
    )  # fmt: skip


def lookups(report: Report, count: int, rounds: int) -> None:
    with Space.create("bench-names", dram="256MiB") as space:
        value = np.zeros(1, np.uint8)
        core: Any = space._native
        names = [f"model/layer.{number % 997}/tensor.{number}" for number in range(count)]
        for name in names:
            core.put(value, 1, 3, 0, (1,), "", name, True)
        random.Random(1).shuffle(names)
        sample = names[: min(count, 200_000)]
        lines = private_array(256 * MIB)
        lines[:] = 0
        _core.chain_lines(address_of(lines), lines.nbytes, 1)
        cold, chase, again, hot = [], [], [], []
        for _ in range(rounds):
            cold.append(core.time_lookups(sample, 1))
            chase.append(_core.chase(address_of(lines), 1_000_000)[0] / 1_000_000)
            again.append(core.time_lookups(sample, 1))
            hot.append(core.time_lookups(sample[:16], 20_000))
        best = min(cold + again)
        report.add(
            Row("space.lookup_ratio", f"native look-up among {count:,} names", best / min(chase), "x",
                "random load in 256 MiB", best / min(chase), min(again) / min(cold),
                statistics.median(cold) / statistics.median(chase), None, "<= 2.5",
                f"{best * 1e9:.0f} ns against {min(chase) * 1e9:.0f} ns")
        )  # fmt: skip
        report.add(
            Row("space.lookup_hot_ns", "native look-up, name in cache", min(hot) * 1e9, "ns", "", None, None,
                statistics.median(hot) * 1e9, p99(hot) * 1e9, "<= 100")
        )  # fmt: skip
    Space.remove("bench-names")


def putting(report: Report, space: Space, pairs: int) -> None:
    source, target = np.ones(MIB, np.uint8), np.zeros(MIB, np.uint8)
    report.add(
        compare(
            "space.put", "put of 1 MiB", "memcpy",
            lambda: timed(lambda: space.put("put", source), 200), lambda: timed(lambda: np.copyto(target, source), 200),
            pairs=pairs, bar=">= 0.8",
        )
    )  # fmt: skip


def _join(name: str, pipe: Connection) -> None:
    """Opens and closes the space as often as asked, in a process that has imported everything."""
    while pipe.recv():
        gc.collect()
        started = time.perf_counter()
        space = Space.open(name)
        seconds = time.perf_counter() - started
        space.close()
        pipe.send(seconds)


def joining(report: Report, rounds: int) -> None:
    context = multiprocessing.get_context("spawn")
    with Space.create("bench-join", dram="4GiB") as space:
        value = np.zeros(256, np.uint8)
        for number in range(100_000):
            space._native.put(value, 256, 3, 0, (256,), "", f"array/{number}", True)
        ours, theirs = context.Pipe()
        process = context.Process(target=_join, args=("bench-join", theirs))
        process.start()

        def join() -> float:
            ours.send(True)
            return float(ours.recv()) * 1e3

        join()
        mine, again = [], []
        for _ in range(rounds):
            mine.append(join())
            again.append(join())
        report.add(
            Row("space.join_ms", "opening a 4 GiB space with 100,000 arrays", min(mine + again), "ms", "", None,
                min(again) / min(mine), statistics.median(mine), p99(mine), "<= 10", "another process has it open")
        )  # fmt: skip
    first = [join() for _ in range(rounds)]  # now nobody else has it open: each opening verifies the seal
    report.add(
        Row("space.join_first_ms", "the same as the first process", min(first), "ms", "", None, None,
            statistics.median(first), p99(first), "", "all metadata is checksummed")
    )  # fmt: skip
    ours.send(False)
    process.join()
    Space.remove("bench-join")


def _mix(name: str, number: int, pipe: Connection) -> None:
    """Gets, puts and deletes in its own order over names that all processes share."""
    space = Space.open(name)
    rng = random.Random(number)
    value = np.zeros(64)
    plan = [(rng.random(), f"mix/{rng.randrange(1000)}") for _ in range(4096)]
    while (seconds := pipe.recv()) > 0:
        done, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for chance, name_of in plan[done % 4096 : done % 4096 + 64]:
                if chance < 0.6:
                    space.get(name_of)
                elif chance < 0.9:
                    space.put(name_of, value)
                elif name_of in space:
                    with contextlib.suppress(KeyError):  # the other process was faster
                        space.delete(name_of)
            done += 64
        pipe.send(done / seconds)


def scaling(report: Report, space_name: str, rounds: int) -> None:
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(2):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=_mix, args=(space_name, number, theirs)))
        processes[-1].start()
        pipes.append(ours)

    def run(count: int) -> float:
        for pipe in pipes[:count]:
            pipe.send(0.2)
        return sum(float(pipe.recv()) for pipe in pipes[:count])

    run(2)
    # Two are compared with one just before and just after, and the median of that counts: the machine's speed drifts
    # by more than what is measured here.
    one, two, again = [], [], []
    for _ in track(range(3 * rounds), "two processes"):
        one.append(run(1))
        two.append(run(2))
        again.append(run(1))
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(0.0)
        process.join()
    ratios = [both / ((before + after) / 2) for before, both, after in zip(one, two, again, strict=True)]
    ratio = statistics.median(ratios)
    spread = statistics.median(after / before for before, after in zip(one, again, strict=True))
    report.add(
        Row("space.scale", "two processes mixing get, put, delete", ratio, "x", "one process", ratio, spread,
            None, None, ">= 1.6",
            f"{statistics.median(two):,.0f} operations/s by two; pairs {min(ratios):.2f} to {max(ratios):.2f}")
    )  # fmt: skip


def main() -> None:
    args = arguments(__doc__ or "")
    rounds = 5 if args.quick else 15
    report = Report("Space on one host")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="openshelf-bench-") as home:
        os.environ["OPENSHELF_DIR"] = home
        views(report, 15)
        with Space.create("bench", dram="1GiB") as space:
            opening(report, space, rounds)
            putting(report, space, 15)
            scaling(report, "bench", rounds)
        lookups(report, 1_000_000, rounds)
        joining(report, rounds)
    report.finish(args.json)


if __name__ == "__main__":
    main()
