"""How often Linux's page cache has what a trace asks for: a file, read through a cache of limited size, for real.

A child process in a memory cgroup of its own, below the caller's, reads units of a file in the order of the trace,
with readahead off. Before each read it asks with mincore whether all of the unit is cached (RWF_NOWAIT would begin to
read). The limit is adjusted until the cache, and not the process with it, has the wanted size. The file is one hole:
the kernel caches its pages as it does others, and no disk has to be waited for, for what is counted is hits, not
time.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from traffic.tier_traces import Units

ROOT = Path("/sys/fs/cgroup")
LIMITS = ("memory.limit_in_bytes", "memory.max")  # of cgroups version 1 and 2
CACHED = ("cache", "file")


def hit_rate(trace: Units, units: int, unit_bytes: int, capacity_bytes: int, rounds: int = 3) -> float | None:
    """The median of some rounds, for it differs from one to the next by up to a tenth; None where it cannot be
    measured: `why_not` says why."""
    rates = [_one_round(trace, units, unit_bytes, capacity_bytes) for _ in range(rounds)]
    found = [rate for rate in rates if rate is not None]
    return statistics.median(found) if len(found) == rounds else None


def _one_round(trace: Units, units: int, unit_bytes: int, capacity_bytes: int) -> float | None:
    try:
        with group() as at, tempfile.TemporaryDirectory(dir=disk(), prefix="openshelf-bench-") as home:
            np.save(f"{home}/trace.npy", trace)
            with open(f"{home}/units", "wb") as file:
                file.truncate(units * unit_bytes)
            done = subprocess.run(
                [sys.executable, __file__, home, str(at), str(unit_bytes), str(capacity_bytes)],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return float(json.loads(done.stdout)) / len(trace)


def why_not() -> str:
    """Why the page cache cannot be measured here; empty where it can."""
    try:
        disk()
        with group():
            return ""
    except OSError as error:
        return f"skipped: {error}"


def disk() -> str:
    """A directory for the file: tmpfs has no page cache of its own."""
    for place in (tempfile.gettempdir(), "/var/tmp", os.getcwd()):
        kind = subprocess.run(["stat", "-f", "-c", "%T", place], capture_output=True, text=True).stdout.strip()
        if kind and kind not in ("tmpfs", "ramfs") and os.access(place, os.W_OK):
            return place
    raise OSError("there is no directory on a disk")


@contextmanager
def group() -> Iterator[Path]:
    """A new memory cgroup below our own, so that whatever limits us still does."""
    at = own_group() / f"openshelf-bench-{os.getpid()}"
    if not (at.parent / LIMITS[0]).exists() and "memory" not in (at.parent / "cgroup.subtree_control").read_text():
        (at.parent / "cgroup.subtree_control").write_text("+memory")
    at.mkdir()
    try:
        limit_file(at)
        yield at
    finally:
        at.rmdir()


def own_group() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return ROOT / "memory" / path.lstrip("/")
    if not (ROOT / "cgroup.controllers").exists():
        raise OSError("there is no memory cgroup")
    return ROOT / path.lstrip("/")


def limit_file(at: Path) -> Path:
    for name in LIMITS:
        if (at / name).exists():
            return at / name
    raise OSError(f"{at} cannot limit memory")


def cached_bytes(at: Path) -> int:
    stat = dict(line.split() for line in (at / "memory.stat").read_text().splitlines())
    return next(int(stat[name]) for name in CACHED if name in stat)


def replay(home: str, at: Path, unit_bytes: int, capacity: int) -> int:
    """In the child: the hits of the trace."""
    trace: list[int] = np.load(f"{home}/trace.npy").tolist()
    file = os.open(f"{home}/units", os.O_RDONLY)
    size = os.fstat(file).st_size
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    buffer = [bytearray(unit_bytes)]
    (at / "cgroup.procs").write_text(str(os.getpid()))
    limit = capacity + (4 << 20)
    for _ in range(4):
        limit_file(at).write_text(str(limit))
        for offset in range(0, min(size, capacity + (capacity >> 1)), unit_bytes):
            os.preadv(file, buffer, offset)
        limit += capacity - cached_bytes(at)
    limit_file(at).write_text(str(limit))
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    view = np.frombuffer(mmap.mmap(file, size, prot=mmap.PROT_READ), np.uint8)
    base, pages = view.ctypes.data, unit_bytes // mmap.PAGESIZE
    present, all_there = ctypes.create_string_buffer(pages), b"\1" * pages
    hits = 0
    for unit in trace:
        if mincore(base + unit * unit_bytes, unit_bytes, present):
            raise OSError(ctypes.get_errno(), "mincore")
        hits += present.raw == all_there
        os.preadv(file, buffer, unit * unit_bytes)
    return hits


if __name__ == "__main__":
    print(json.dumps(replay(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
