"""A space larger than memory: bytes that are on flash, read by prefetch and by touch; what tracking and faults cost.

All in one run, ours and the peer in turn. O_DIRECT is four threads that read the same file in steps of 1 MiB into
buffers they use again: what the disk gives. `tiers.policy` counts hits of real touches, by what the keeper had to read;
the policies beside it are simulated, seeing every use. What is demoted on request leaves its pages behind as long as
the space has room for them; `tiers.prefetch_fresh` is the same array when other bytes took them.
"""

from __future__ import annotations

import mmap
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # compute on one core: the other one moves bytes

import numpy as np
from rich.console import Console

from kit import page_cache
from kit.side_by_side import Report, Row, arguments, compare, p99, paired
from openshelf import _core
from openshelf.space import Array, Space
from peers.tier_policies import ARC, LRU, MIN, S3FIFO, SIEVE, ClockPro, Policy
from traffic import tier_traces as traces

STEP = 1 << 20  # elements of 8 bytes that are summed at a time
CHUNK, THREADS = 1 << 20, 4  # of O_DIRECT
WATCH = "OPENSHELF_WATCH"
ONLINE: tuple[type[Policy], ...] = (LRU, SIEVE, S3FIFO, ARC, ClockPro)
ALL: tuple[type[Policy], ...] = (*ONLINE, MIN)


@contextmanager
def space(home: Path, name: str, dram: int, flash: int) -> Iterator[Space]:
    made = Space.create(name, dram, flash=f"{home}/{name}:{flash}")
    try:
        yield made
    finally:
        made.close()
        Space.remove(name)


def sum_of(view: np.ndarray) -> int:
    return sum(int(view[at : at + STEP].sum()) for at in range(0, len(view), STEP))


def direct(path: str, nbytes: int) -> float:
    """Seconds to read a file's first bytes past the page cache."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffers = [mmap.mmap(-1, CHUNK) for _ in range(THREADS)]
    for buffer in buffers:
        buffer.write(b"x" * CHUNK)
    places, turn = iter(range(0, nbytes, CHUNK)), threading.Lock()

    def work(buffer: mmap.mmap) -> None:
        while True:
            with turn:
                at = next(places, None)
            if at is None:
                return
            os.preadv(handle, [buffer], at)

    threads = [threading.Thread(target=work, args=(buffer,)) for buffer in buffers]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - started
    os.close(handle)
    return spent


def cold_mmap(path: Path, elements: int, starts: list[int], piece: int) -> float:
    """Seconds to read pieces of a file that no cache has, mapped."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        view = np.frombuffer(mmap.mmap(file.fileno(), elements * 8, prot=mmap.PROT_READ), np.int64)
        for at in starts:
            view[at : at + piece].sum()
        return time.perf_counter() - started


def sequential(report: Report, home: Path, nbytes: int, pairs: int, full: bool) -> None:
    """Reading a demoted array from its beginning to its end."""
    elements = nbytes // 8
    with space(home, "sequential", nbytes + nbytes // 4, 2 * nbytes + nbytes // 2) as shelf:
        array = shelf.zeros("array", elements, "int64")
        view = array.numpy()
        for at in range(0, elements, STEP):
            view[at : at + STEP] = np.arange(at, at + STEP)
        wanted, path = elements * (elements - 1) // 2, str(home / "sequential")

        def demoted(read: Callable[[], int]) -> float:
            array.demote().wait()
            assert array.tier == "flash"
            started = time.perf_counter()
            total = read()
            spent = time.perf_counter() - started
            assert total == wanted
            return spent

        def with_prefetch() -> int:
            array.prefetch()
            return sum_of(view)

        size = f"{nbytes >> 30} GiB"

        def raw() -> float:
            return direct(path, nbytes)

        rows = [
            ("tiers.prefetch", f"read of {size} from flash with prefetch()", with_prefetch, ">= 0.9"),
            ("tiers.touch", f"read of {size} from flash by touch alone", lambda: sum_of(view), ">= 0.7"),
        ]
        for id, case, read, bar in rows:
            report.add(compare(id, case, "O_DIRECT", partial(demoted, read), raw, pairs=pairs, bar=bar))
        peer, mapped = home / "mapped", elements if full else elements // 2
        with open(peer, "wb") as file:
            for at in range(0, mapped, STEP):
                file.write(np.arange(at, at + STEP).tobytes())
            os.fsync(file.fileno())

        def against_mmap(id: str, piece: int, rounds: int, **more: str) -> None:
            starts = np.random.default_rng(3).permutation(mapped // piece)[: min(mapped // piece // 4, 4096)] * piece
            chosen = sum(piece * at + piece * (piece - 1) // 2 for at in starts.tolist())

            def pieces() -> int:
                shelf.prefetch(array.address + starts * 8, piece * 8)
                total = sum(int(view[at : at + piece].sum()) for at in starts.tolist())
                return wanted if total == chosen else 0

            report.add(
                compare(
                    id,
                    f"{len(starts):,} pieces of {piece // 128} KiB in any order, prefetched",
                    "mmap, cold",
                    lambda: demoted(pieces),
                    lambda: cold_mmap(peer, mapped, starts.tolist(), piece),
                    pairs=rounds,
                    **more,
                )
            )

        against_mmap("tiers.x_mmap", 1 << 15, 6 if full else 2, bar=">= 5")
        if full:
            against_mmap("tiers.x_mmap_64k", 1 << 13, 4)
            against_mmap("tiers.x_mmap_16k", 1 << 11, 4, note="a unit of 64 KiB is read for each")
            report.add(
                compare(
                    "tiers.x_mmap_sequential",
                    f"read of {size} from flash with prefetch()",
                    "mmap, cold, in order",
                    lambda: demoted(with_prefetch),
                    lambda: cold_mmap(peer, elements, list(range(0, elements, STEP)), STEP),
                    pairs=4,
                    note="the kernel reads ahead here",
                )
            )
        peer.unlink()
        if not full:
            return
        other = shelf.zeros("other", elements + elements // 8, "int64").numpy()

        def fresh() -> float:
            array.demote().wait()
            other[:] = 1  # takes the pages
            return demoted(with_prefetch)

        report.add(
            compare(
                "tiers.prefetch_fresh",
                f"the same, of {size} whose pages other bytes took",
                "O_DIRECT",
                fresh,
                raw,
                pairs=2,
                note="no bar: giving a tmpfs pages is what it waits for",
            )
        )


def hidden(report: Report, home: Path, parts: int, pairs: int) -> None:
    """A loop that computes on one part while the next one comes."""
    part = 8 << 20  # elements: 64 MiB
    matrix = np.random.default_rng(1).random((640, 640))

    def compute(view: np.ndarray) -> float:
        total = float(view[:: 1 << 12].sum())
        for _ in range(14):
            total += float((matrix @ matrix)[0, 0])
        return total

    with space(home, "hidden", part * 8 * parts + (128 << 20), part * 8 * (parts + 4)) as shelf:
        arrays: list[Array] = []
        for number in range(parts):
            arrays.append(shelf.zeros(f"part{number}", part, "int64"))
            arrays[-1].numpy()[:] = number
        views = [array.numpy() for array in arrays]

        def resident() -> float:
            for array in arrays:
                array.prefetch().wait()
            started = time.perf_counter()
            for view in views:
                compute(view)
            return time.perf_counter() - started

        def streamed() -> float:
            for array in arrays:
                array.demote().wait()
            arrays[0].prefetch().wait()
            started = time.perf_counter()
            for number, view in enumerate(views):
                if number + 1 < parts:
                    arrays[number + 1].prefetch()
                compute(view)
            return time.perf_counter() - started

        row = compare(
            "tiers.hidden",
            "compute on 64 MiB parts, the next prefetched",
            "all in dram",
            streamed,
            resident,
            pairs=pairs,
        )
        row.value, row.unit, row.bar = (1 / (row.ratio or 1) - 1) * 100, "% lost", "<= 5"
        report.add(row)


def warm(report: Report, home: Path, rounds: int) -> None:
    """Access to what is in memory: a fault-managed view against a plain mapping of the same kind of memory.

    Which physical pages a mapping gets changes its speed: both are made anew some times, and the best counts."""
    elements, picks = 16 << 20, np.random.default_rng(2).integers(0, 16 << 20, 1 << 21)

    def use(array: np.ndarray) -> float:
        started = time.perf_counter()
        sum_of(array)
        array[picks].sum()
        array[: elements // 4] += 1
        return time.perf_counter() - started

    sides: tuple[list[float], list[float], list[float]] = ([], [], [])
    for _ in range(rounds):
        with (
            space(home, "warm", elements * 8 + (64 << 20), elements * 8 * 2) as shelf,
            tempfile.TemporaryFile(dir="/dev/shm") as file,
        ):
            view = shelf.zeros("array", elements, "int64").numpy()
            file.truncate(elements * 8)
            plain = np.frombuffer(mmap.mmap(file.fileno(), elements * 8), np.int64)
            for side, times in zip(sides, paired(partial(use, view), partial(use, plain), 4), strict=True):
                side.extend(times)
    mine, other, again = sides
    ratio = min(other) / min(mine + again)
    report.add(
        Row(
            "tiers.warm",
            "read, gather and update of 128 MiB in dram",
            ratio,
            "x",
            "a plain mapping, 4 KiB pages",
            ratio,
            min(again) / min(mine),
            statistics.median(mine),
            p99(mine),
            ">= 0.97",
        )
    )


def uses(view: np.ndarray, trace: np.ndarray) -> float:
    """Seconds to use a page of every unit of a trace."""
    places = (trace.astype(np.int64) * (_core.UNIT // 8)).tolist()
    started = time.perf_counter()
    for at in places:
        view[at : at + 512].sum()
    return time.perf_counter() - started


def sampling(report: Report, home: Path, chunks: int) -> None:
    """What it costs that uses are noticed, where it cannot help: all units are used alike. Two spaces in turn."""
    units, room, length = 2048, 512, 250
    trace = np.random.default_rng(5).integers(0, units, (chunks + 10) * length).astype(np.uint32)
    times: dict[str, list[float]] = {"on": [], "off": []}
    with ExitStack() as stack:
        shelves, views = {}, {}
        for watch in times:
            os.environ[WATCH] = watch
            shelf = stack.enter_context(space(home, f"watch-{watch}", room * _core.UNIT, 2 * units * _core.UNIT))
            shelves[watch], views[watch] = shelf, shelf.zeros("data", units * _core.UNIT // 8, "int64").numpy()
            for at in range(0, len(views[watch]), STEP):
                views[watch][at : at + STEP] = at
        del os.environ[WATCH]
        before = shelves["on"].describe()["tiers"]["armed_touched"]
        for number in range(chunks + 10):
            for watch in ("on", "off") if number % 2 else ("off", "on"):
                times[watch].append(uses(views[watch], trace[number * length : (number + 1) * length]))
        noticed = (shelves["on"].describe()["tiers"]["armed_touched"] - before) / len(trace)
    on, off = times["on"][10:], times["off"][10:]
    cost = statistics.median(mine / other for mine, other in zip(on, off, strict=True)) - 1
    report.add(
        Row(
            "tiers.sampling",
            "units used at random, uses noticed",
            cost * 100,
            "% slower",
            "uses not noticed",
            1 / (1 + cost),
            statistics.median(on[::2]) / statistics.median(on[1::2]),
            statistics.median(on),
            p99(on),
            "<= 3",
            f"{noticed:.3f} faults a use to notice them",
        )
    )


def policy(report: Report, home: Path, length: int) -> None:
    """Hits of real touches with memory for a quarter of the data."""
    ratios, notes = [], []
    for case in (traces.zipf(length, units=4096), traces.scan(length, units=4096)):
        with space(home, f"policy-{case.id}", case.room * _core.UNIT, 2 * case.units * _core.UNIT) as shelf:
            view = shelf.zeros("data", case.units * _core.UNIT // 8, "int64").numpy()
            for at in range(0, len(view), STEP):
                view[at : at + STEP] = at
            for part in range(0, len(view), 1 << 22):  # an empty memory to begin with, as in the simulations
                shelf["data"][part : part + (1 << 22)].demote().wait()
            before = shelf.describe()["tiers"]
            uses(view, case.trace)
            after = shelf.describe()["tiers"]
        misses = (after["read_bytes"] - before["read_bytes"]) / _core.UNIT
        ours = 1 - misses / len(case.trace)
        trace = case.trace.tolist()
        rates = {kind.__name__: kind(case.room).hits(trace) / len(trace) for kind in ALL}
        replayed, *_ = _core.replay_tier_policy(case.units, case.room, case.trace)
        best = max((kind.__name__ for kind in ONLINE), key=lambda name: rates[name])
        wanted = case.id == "scan" or length > 30_000
        kernel = page_cache.hit_rate(case.trace, case.units, _core.UNIT, case.room * _core.UNIT) if wanted else None
        said = (
            f"{kernel:.3f}, measured"
            if kernel is not None
            else f"not measured: {page_cache.why_not() if wanted else 'quick'}"
        )
        ratios.append(ours / rates[best])
        notes.append(f"{case.id}: {ours:.3f} / {rates[best]:.3f} ({best})")
        report.add(
            Row(
                f"tiers.policy_{case.id}_real",
                f"{case.what}: hit rate of touches",
                ours,
                "",
                f"{best}, simulated, sees all",
                ours / rates[best],
                None,
                bar=">= 0.95 of it" + (", > page cache" if case.id == "scan" else ""),
                note=f"page cache {said}; ours simulated {replayed / len(trace):.3f}; simulated, seeing all: "
                + ", ".join(f"{name} {rate:.3f}" for name, rate in rates.items()),
            )
        )
        if case.id == "scan" and kernel is not None:
            notes.append(f"page cache on the scan {kernel:.3f}")
    report.add(
        Row(
            "tiers.policy",
            "hit rate against the best of five policies that see all, the worse of two traces",
            min(ratios),
            "x",
            "the best, simulated",
            min(ratios),
            None,
            bar=">= 0.95",
            note="; ".join(notes),
        )
    )


def main() -> None:
    args = arguments(__doc__ or "")
    report = Report("Tiers: flash and dram behind one address")
    with (
        tempfile.TemporaryDirectory(dir=page_cache.disk(), prefix="openshelf-bench-") as home,
        Console().status("") as status,
    ):
        parts: list[tuple[str, Callable[[], None]]] = [
            (
                "sequential",
                lambda: sequential(
                    report, Path(home), (1 if args.quick else 4) << 30, 4 if args.quick else 8, not args.quick
                ),
            ),
            ("hidden", lambda: hidden(report, Path(home), 3 if args.quick else 8, 2 if args.quick else 10)),
            ("warm", lambda: warm(report, Path(home), 2 if args.quick else 8)),
            ("sampling", lambda: sampling(report, Path(home), 40 if args.quick else 600)),
            ("policy", lambda: policy(report, Path(home), 30_000 if args.quick else 150_000)),
        ]
        for name, part in parts:
            status.update(f"{name}...")
            part()
    report.finish(args.json)


if __name__ == "__main__":
    main()
