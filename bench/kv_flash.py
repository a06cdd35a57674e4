"""KV pool on flash: how long until a matched prefix that is not in memory has been read?

A prefix of 256 MiB (Llama-3.1-8B's cache in float16, 2,048 tokens) is put and driven out of dram. `kv_flash.read` is
from its tokens to all of it copied into private memory; the peers read the same bytes from a file into the same memory:
buffered, after the kernel was told to forget it (posix_fadvise DONTNEED), and with O_DIRECT, in pieces of 2 MiB, by one
thread. `.touch` reads in place, one load from every page; `.put` stores a prefix while dram is full, against buffered
writes with fdatasync. Values are seconds; ratios above 1 say that ours is quicker.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kit.side_by_side import Report, Row, arguments, timed
from openshelf import KVPool, Layout, Space

LLAMA = Layout("llama-3.1-8b", layers=32, heads=8, head_dim=128, dtype="float16")
PIECE = 2 << 20
MIB = 1 << 20
DEMOTE = 4  # native Want


class Pool:
    """Prefixes of one size in a space with less dram than they take together."""

    def __init__(self, home: Path, mib: int) -> None:
        self.tokens = np.arange(mib * 8)  # 128 KiB a token
        self.space = Space.create("bench", 2 * mib * MIB, flash=f"{home / 'flash'}:{8 * mib}MiB")
        self.pool = KVPool(self.space, LLAMA)
        self.cache = np.random.default_rng(1).integers(0, 1 << 15, mib << 19, np.uint16).view(np.float16)
        self.cache = self.cache.reshape(LLAMA.shape(len(self.tokens)))
        self.into = np.ones_like(self.cache)
        self.puts = 0
        assert not self.pool.put(self.tokens, self.cache).declined

    def demote(self) -> None:
        """All blocks leave dram, and the page cache has none of it."""
        native: Any = self.space._native
        ((address, nbytes),) = [(address, nbytes) for name, nbytes, address, *_ in native.list("") if name == "kv"]
        native.tiers.wait(native.tiers.ask(DEMOTE, address, nbytes, 0), -1.0)
        assert self.pool.stats()["dram_blocks"] == 0

    def read(self) -> float:
        self.demote()

        def work() -> None:
            with self.pool.match(self.tokens) as hit:
                assert hit.length == len(self.tokens)
                hit.read(self.into)

        return timed(work)

    def touch(self) -> float:
        self.demote()

        def work() -> None:
            with self.pool.match(self.tokens) as hit:
                for at in range(hit.blocks):
                    hit.block(at).view(np.uint16).reshape(-1)[:: 4096 // 2].sum()

        return timed(work)

    def put(self) -> float:
        self.puts += 1
        tokens = self.tokens + 1_000_000 * self.puts
        return timed(lambda: self.pool.put(tokens, self.cache))


class File:
    """The same bytes in a file."""

    def __init__(self, path: Path, cache: Any, into: Any) -> None:
        self.path, self.cache = path, memoryview(cache.reshape(-1).view(np.uint8))
        self.into = memoryview(into.reshape(-1).view(np.uint8))
        self.aligned = mmap.mmap(-1, PIECE)
        self.write()

    def write(self) -> float:
        def work() -> None:
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT)
            for at in range(0, len(self.cache), PIECE):
                os.write(handle, self.cache[at : at + PIECE])
            os.fdatasync(handle)
            os.close(handle)

        return timed(work)

    def buffered(self) -> float:
        handle = os.open(self.path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)

        def work() -> None:
            for at in range(0, len(self.into), PIECE):
                assert os.preadv(handle, [self.into[at : at + PIECE]], at) == PIECE

        took = timed(work)
        os.close(handle)
        return took

    def direct(self) -> float:
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECT)

        def work() -> None:  # by way of an aligned buffer, for the target need not be
            for at in range(0, len(self.into), PIECE):
                assert os.preadv(handle, [self.aligned], at) == PIECE
                self.into[at : at + PIECE] = self.aligned[:]

        took = timed(work)
        os.close(handle)
        return took


def interleaved(works: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for round_number in range(rounds):
        names = list(works)
        for at in range(len(names)):
            name = names[(at + round_number) % len(names)]
            took[name].append(works[name]())
    return took


@contextlib.contextmanager
def a_home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory, tempfile.TemporaryDirectory(dir="/var/tmp") as disk:
        os.environ["OPENSHELF_DIR"], os.environ["OPENSHELF_LINGER"] = memory, "0.5"
        yield Path(disk)


def main() -> None:
    args = arguments(__doc__ or "")
    mib, rounds = (256, 5) if args.quick else (256, 15)
    report = Report(f"KV pool on flash: a prefix of {mib} MiB")
    with a_home() as home:
        pool = Pool(home, mib)
        file = File(home / "file", pool.cache, pool.into)
        reads = interleaved(
            {"read": pool.read, "touch": pool.touch, "buffered": file.buffered, "direct": file.direct}, rounds
        )
        pool.read()
        assert np.array_equal(pool.into.view(np.uint16), pool.cache.view(np.uint16))
        writes = interleaved({"put": pool.put, "buffered": file.write}, max(3, rounds // 3))

        def row(id: str, case: str, took: list[float], peer: str, theirs: list[float]) -> None:
            mine, other = statistics.median(took), statistics.median(theirs)
            note = f"{mib / 1024 / mine:.2f} GiB/s, {peer} {other:.3f} s"
            report.add(Row(id, case, mine, "s", peer, other / mine, None, mine, max(took), "", note))

        case = "match, and copy all of it from flash"
        row("kv_flash.read", case, reads["read"], "buffered, cold", reads["buffered"])
        row("kv_flash.read_direct", case, reads["read"], "O_DIRECT", reads["direct"])
        row(
            "kv_flash.touch",
            "match, and touch every page",
            reads["touch"],
            "buffered, cold",
            reads["buffered"],
        )
        row("kv_flash.put", "put while dram is full", writes["put"], "buffered and fdatasync", writes["buffered"])
        pool.pool.close()
        pool.space.close()
        Space.remove("bench")
    report.finish(args.json)


if __name__ == "__main__":
    main()
