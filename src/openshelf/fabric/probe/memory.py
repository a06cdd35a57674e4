"""The machine's own memory: bandwidth by all cores, latency by one, per page size and under load."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from openshelf import _core
from openshelf.fabric.model import Figure, LoadedLatency, LoadPoint, PageFigures, Place
from openshelf.fabric.probe.effort import MIB, Effort, Progress, measured, rounded

SMALL_PAGE, HUGE_PAGE = mmap.PAGESIZE, 2 * MIB
_MOST_STREAMERS = 16
_MOST_ENLARGED = 4  # for a large cache a buffer grows up to this much: the time to measure grows with it


def timed(call: Callable[[], object], repetitions: int) -> list[float]:
    """Seconds of each call, after one not counted that pays for first touches and starting threads."""
    call()
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


@dataclass(frozen=True)
class _Pages:
    read: Figure
    write: Figure
    copy: Figure
    latency: Figure
    parallel: Figure


def dram(effort: Effort, threads: int, progress: Progress) -> tuple[Place, list[str]]:
    """The place `dram`, and what had to be left out of it."""
    left_out = []
    nbytes = _buffer_bytes(effort)
    cache = _last_level_cache_bytes()
    if nbytes < 2 * cache:
        left_out.append(
            f"memory beyond the cache: the buffers are {nbytes} bytes, the last-level cache is {cache}; "
            "the figures of dram are partly the cache's"
        )
    first, second = _core.Pages(nbytes, SMALL_PAGE), _core.Pages(nbytes, SMALL_PAGE)
    small = _measure(first, second, SMALL_PAGE, effort, threads, lambda what, share: progress(what, 0.35 * share))
    progress("latency under load", 0.35)
    curve = _curve(first, second, effort, threads)
    if curve is None:
        left_out.append("loaded latency: needs a second core to make the load; this process may use one")
    del first, second  # two buffers at once, not four
    huge = _huge(nbytes, effort, threads, lambda what, share: progress(what, 0.65 + 0.35 * share))
    if isinstance(huge, str):
        left_out.append(huge)
    total, how = _total_bytes()
    place = Place(
        name="dram",
        tier="dram",
        capacity_bytes=Figure(total, "measured", how),
        read_bandwidth_bytes_per_s=small.read,
        write_bandwidth_bytes_per_s=small.write,
        latency_s=small.latency,
        copy_bandwidth_bytes_per_s=small.copy,
        parallel_loads=small.parallel,
        page_bytes=SMALL_PAGE,
        loaded_latency=curve,
        other_pages=() if isinstance(huge, str) else (huge,),
    )
    return place, left_out


def _huge(nbytes: int, effort: Effort, threads: int, progress: Progress) -> PageFigures | str:
    first, second = _core.Pages(nbytes, HUGE_PAGE), _core.Pages(nbytes, HUGE_PAGE)
    got = min(first.huge_bytes, second.huge_bytes) / nbytes
    # With a few small pages among them the figures would be of neither size.
    if got < 0.95:
        return (
            f"memory with 2 MiB pages: the kernel gave {got:.0%} of the buffer as huge pages; "
            "see /sys/kernel/mm/transparent_hugepage/enabled (madvise or always) and free memory"
        )
    huge = _measure(first, second, HUGE_PAGE, effort, threads, progress)
    return PageFigures(HUGE_PAGE, huge.read, huge.write, huge.latency, huge.copy, huge.parallel)


def _measure(
    first: _core.Pages,
    second: _core.Pages,
    page_bytes: int,
    effort: Effort,
    threads: int,
    progress: Progress,
) -> _Pages:
    pages = f"{page_bytes // 1024} KiB pages"
    size = f"{first.nbytes // MIB} MiB, {pages}"

    def bandwidth(what: str, times: Callable[[int], list[float]]) -> Figure:
        alone = measured([first.nbytes / seconds for seconds in times(1)], "").value
        note = f"{what} of {size}, {threads} threads, median of {effort.passes}; one thread {alone:.4g} bytes/s"
        return measured([first.nbytes / seconds for seconds in times(threads)], note)

    a, b, nbytes, passes = first.address, second.address, first.nbytes, effort.passes
    progress(f"read, {pages}", 0.0)
    read = bandwidth("sum", lambda n: _core.time_reads(a, nbytes, n, passes))
    progress(f"write, {pages}", 0.2)
    write = bandwidth("memset", lambda n: _core.time_writes(a, nbytes, n, passes))
    progress(f"copy, {pages}", 0.35)
    copy = bandwidth("memcpy", lambda n: _core.time_copies(b, a, nbytes, n, passes))

    progress(f"latency, {pages}", 0.5)
    _core.chain_lines(a, nbytes)
    line, chases = a, []
    for _ in range(effort.chases):
        seconds, line = _core.chase(line, effort.loads)
        chases.append(seconds / effort.loads)
    latency = measured(chases, f"pointer chase over {size}, TLB misses included, median of {effort.chases}")
    ratios = []
    for seed in range(effort.chases):
        # Never the same addresses again: they could still be in a cache.
        waiting = _core.random_loads(b, nbytes, effort.loads, 2 * seed, dependent=True)
        free = _core.random_loads(b, nbytes, effort.loads, 2 * seed + 1, dependent=False)
        ratios.append(max(1.0, waiting / free))
    parallel = measured(ratios, "time of dependent over independent random loads, one thread")
    return _Pages(read, write, copy, latency, parallel)


def _curve(first: _core.Pages, second: _core.Pages, effort: Effort, threads: int) -> LoadedLatency | None:
    streamers = min(threads - 1, _MOST_STREAMERS)
    if streamers == 0:
        return None
    points: list[LoadPoint] = []
    line = first.address
    for duty in effort.duties:
        tries = []
        for _ in range(3):
            load, latency, line = _core.loaded_latency(
                line, effort.loads, second.address, second.nbytes, streamers, duty
            )
            tries.append((latency, load))
        latency, load = sorted(tries)[1]
        # On a busy machine a higher duty can stream less; such a point says nothing about load.
        if not points or rounded(load) > points[-1].load_bytes_per_s:
            points.append(LoadPoint(rounded(load), rounded(latency)))
    duties = ", ".join(f"{duty:g}" for duty in effort.duties)
    note = (
        f"chase over {first.nbytes // MIB} MiB, {SMALL_PAGE // 1024} KiB pages, "
        f"while {streamers} other thread(s) read for {duties} of the time, medians of 3"
    )
    return LoadedLatency(tuple(points), "measured", note)


def _buffer_bytes(effort: Effort) -> int:
    """Four times the last-level cache or the effort's size, within a tenth of the memory to be had."""
    wanted = max(effort.buffer_bytes, 4 * _last_level_cache_bytes())
    at_hand = min(_total_bytes()[0], _meminfo().get("MemAvailable", 1 << 62))
    nbytes = min(wanted, _MOST_ENLARGED * effort.buffer_bytes, at_hand // 10)
    return max(nbytes // HUGE_PAGE, 1) * HUGE_PAGE


def _last_level_cache_bytes() -> int:
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text.endswith("K"):
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes)


def _total_bytes() -> tuple[int, str]:
    """The machine's memory, or the container's limit if that is less."""
    total = _meminfo()["MemTotal"]
    try:
        # Version 2 of control groups: one line, `0::/path`.
        group = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
        limit = (Path("/sys/fs/cgroup") / group / "memory.max").read_text().strip()
    except OSError:
        limit = "max"  # none, version 1, or the root group
    if limit.isdigit() and int(limit) < total:
        return int(limit), "the limit of this control group"
    return total, "MemTotal"


def _meminfo() -> dict[str, int]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in pairs if rest.endswith("kB")}
