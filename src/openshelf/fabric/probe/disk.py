"""The disk under a folder, by O_DIRECT: the page cache is memory, not disk.

Large blocks by four threads for bandwidth, single 4 KiB blocks for latency: how the flash tier reads. A
virtual disk may still be cached by its host, and a drive by itself; that is the disk this machine has.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openshelf import _files
from openshelf.fabric.model import Figure, Place
from openshelf.fabric.probe.effort import MIB, Effort, measured

_BLOCK_BYTES = MIB
_LEAST_BYTES = 4096  # O_DIRECT wants whole device blocks: 512 or 4096
_THREADS = 4
_IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")  # newer kernels take O_DIRECT on tmpfs and ignore it


def disk(effort: Effort, folder: Path) -> Place | str:
    """The place `disk`, or why it is left out."""
    kind = _file_system(folder)
    if kind in _IN_MEMORY:
        return f"disk: {folder} is on {kind}, which is memory; give another --disk-dir"
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    if free < 2 * effort.disk_bytes:
        needed = f"{free} bytes are free in {folder}, {2 * effort.disk_bytes} are needed"
        return f"disk: {needed}; give another --disk-dir"
    try:
        fd = _open_direct(folder)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return f"disk: the file system of {folder} refuses O_DIRECT; give another --disk-dir"
        return f"disk: no temporary file can be made in {folder}: {error.strerror}"
    try:
        return _measure(fd, effort, free)
    except OSError as error:
        return f"disk: reading or writing in {folder} by O_DIRECT failed: {error.strerror}"
    finally:
        os.close(fd)


def _file_system(folder: Path) -> str | None:
    """The type of the file system that holds the folder, if the mount table tells."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # id parent major:minor root mount-point options [optional fields] - type source options
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return None


def _open_direct(folder: Path) -> int:
    """A file without a name, so that nothing is left behind even by a kill."""
    named, path = tempfile.mkstemp(dir=folder, prefix=".openshelf-probe-")
    try:
        return _files.open_own(path, os.O_RDWR | os.O_DIRECT)
    finally:
        os.close(named)
        os.unlink(path)


def _measure(fd: int, effort: Effort, free: int) -> Place:
    blocks = effort.disk_bytes // _BLOCK_BYTES
    size = f"{effort.disk_bytes // MIB} MiB in 1 MiB blocks, {_THREADS} threads, O_DIRECT"

    def bandwidth(transfer: Callable[[int, mmap.mmap, int], int], after: Callable[[int], None], note: str) -> Figure:
        rates = []
        for _ in range(effort.disk_passes):
            start = time.perf_counter()
            _all_blocks(fd, blocks, transfer)
            after(fd)
            rates.append(effort.disk_bytes / (time.perf_counter() - start))
        return measured(rates, f"{size}, {note}, median of {len(rates)}")

    # The first pass allocates the file's blocks, which is the file system's time, not the disk's.
    _all_blocks(fd, blocks, _write)
    write = bandwidth(_write, os.fdatasync, "fdatasync included")
    read = bandwidth(_read, lambda _: None, "after a write of the same blocks")
    latency = measured(_single_reads(fd, effort), f"one 4 KiB read at a time, O_DIRECT, median of {effort.disk_reads}")
    return Place(
        name="disk",
        tier="flash",
        capacity_bytes=Figure(free, "measured", "free for this user"),
        read_bandwidth_bytes_per_s=read,
        write_bandwidth_bytes_per_s=write,
        latency_s=latency,
        line_bytes=_LEAST_BYTES,
    )


def _write(fd: int, buffer: mmap.mmap, offset: int) -> int:
    return os.pwrite(fd, buffer, offset)


def _read(fd: int, buffer: mmap.mmap, offset: int) -> int:
    return os.preadv(fd, [buffer], offset)


def _all_blocks(fd: int, blocks: int, transfer: Callable[[int, mmap.mmap, int], int]) -> None:
    def share(first: int) -> None:
        # Anonymous mmap: page-aligned, as O_DIRECT wants. Random bytes: some drives compress.
        with mmap.mmap(-1, _BLOCK_BYTES) as buffer:
            buffer.write(os.urandom(_BLOCK_BYTES))
            for block in range(first, blocks, _THREADS):
                if transfer(fd, buffer, block * _BLOCK_BYTES) != _BLOCK_BYTES:
                    raise OSError(errno.EIO, "a block was moved in part")

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(share, range(_THREADS)))


def _single_reads(fd: int, effort: Effort) -> list[float]:
    choose = random.Random(1)
    times = []
    with mmap.mmap(-1, _LEAST_BYTES) as buffer:
        for _ in range(effort.disk_reads):
            offset = choose.randrange(effort.disk_bytes // _LEAST_BYTES) * _LEAST_BYTES
            start = time.perf_counter()
            _read(fd, buffer, offset)
            times.append(time.perf_counter() - start)
    return times
