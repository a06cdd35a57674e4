"""Streaming weights from a packed file through an arena, against plain direct reads of the same file.

Both read past the page cache, so every pass is cold. The peer is what the disk gives: four threads that read the same
ranges in 1 MiB steps into a touched buffer of the arena's size, in C, through the same calls. Ours has 256 MiB for a
file of 1 GiB: a storage's read is begun as soon as its range is free, as a plan would do it, and waited for in order.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console

from kit import page_cache
from kit.side_by_side import Report, Row, arguments, p99, paired
from openshelf._core import DeviceArena
from openshelf.offload import Homes, Mover, Packed, pack_state

Verify = Literal["always", "never"]
MIB = 1 << 20
ARENA = 256 * MIB
STORAGE = 16 * MIB
CHUNK = MIB
THREADS = 4


def plain(path: str, first: int, nbytes: int, buffer: memoryview) -> Callable[[], float]:
    """Seconds of four threads that read the range, each the next 1 MiB."""

    def read() -> float:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        places = iter(range(0, nbytes, CHUNK))
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    at = next(places, None)
                if at is None:
                    return
                count = min(CHUNK, nbytes - at)
                to = at % len(buffer)
                if os.preadv(file, [buffer[to : to + count]], first + at) != count:
                    raise OSError(f"{path} ended early")

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - started
        os.close(file)
        return took

    return read


def streamed(packed: Packed, folder: Path, arena: DeviceArena, verify: Verify) -> Callable[[], float]:
    """Seconds of a pass over all storages."""
    homes = Homes(folder)
    for number, storage in enumerate(packed.storages):
        homes.packed(number, packed, storage.name)
    mover = Mover(homes, arena, verify=verify)
    slots = ARENA // STORAGE

    def read() -> float:
        started = time.perf_counter()
        for number in range(len(packed.storages)):
            if number >= slots:
                mover.wait(number - slots)
            mover.begin_read(number, number % slots * STORAGE)
        for number in range(max(0, len(packed.storages) - slots), len(packed.storages)):
            mover.wait(number)
        return time.perf_counter() - started

    return read


def main() -> None:
    args = arguments(__doc__ or "")
    nbytes, pairs = (512 if args.quick else 1024) * MIB, 3 if args.quick else 10
    report = Report("Offload: weights from flash through an arena")
    with (
        tempfile.TemporaryDirectory(dir=page_cache.disk(), prefix="openshelf-bench-") as folder,
        Console().status("packing..."),
    ):
        values = np.random.default_rng(1).integers(0, 255, STORAGE, np.uint8)
        state = {f"layer.{at}": np.roll(values, at) for at in range(nbytes // STORAGE)}
        packed = pack_state(state, folder=folder, name="weights.packed")
        state.clear()
        arena, buffer = DeviceArena(ARENA), DeviceArena(ARENA)
        peer = plain(packed.path, packed.begins, nbytes, memoryview(buffer.range(0, ARENA, None)))
        kinds: tuple[tuple[str, str, Verify], ...] = (
            ("offload.stream", "a pass over the weights", "never"),
            ("offload.stream_checked", "a pass that compares every checksum", "always"),
        )
        for id, case, verify in kinds:
            ours, other, again = paired(streamed(packed, Path(folder), arena, verify), peer, pairs)
            ratio = min(other) / min(ours + again)
            report.add(
                Row(
                    id, case, ratio, "x", f"{THREADS} threads, O_DIRECT", ratio, min(again) / min(ours),
                    float(np.median(ours)), p99(ours), ">= 0.95",
                    f"{nbytes / min(ours + again) / 1e9:.2f} GB/s, plain {nbytes / min(other) / 1e9:.2f} GB/s",
                )
            )  # fmt: skip
    report.finish(args.json)


if __name__ == "__main__":
    main()
