"""KV pool on one host: is a long prompt found at once, and do its bytes move as fast as memcpy moves them?

Llama-3.1-8B's cache in float16, blocks of 16 tokens: 2 MiB each. memcpy is one call for as many bytes, between private
arrays with the same page size.
"""

from __future__ import annotations

import mmap
import os
import statistics
import tempfile
from typing import Any

import numpy as np

from openshelf import KVPool, Layout, Space
from side_by_side import Report, Row, arguments, compare, p99, timed

TOKENS = 131_072
LLAMA = Layout("llama", layers=32, heads=8, head_dim=128, dtype="float16")
SMALL = Layout("small", layers=1, heads=1, head_dim=8, dtype="float32")
BLOCKS = 128  # of LLAMA that are copied at a time: 256 MiB, where memcpy is at its best


def private(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Touched anonymous memory in 4 KiB pages, as the pool's are."""
    memory = mmap.mmap(-1, int(np.prod(shape)) * 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    array = np.frombuffer(memory, np.float16).reshape(shape)
    array[:] = 1.0
    return array


def timing(report: Report, id: str, case: str, bar: str, unit: float, work: Any, rounds: int, times: int = 1) -> None:
    mine, again = [], []
    work()
    for _ in range(rounds):
        mine.append(timed(work, times) / unit)
        again.append(timed(work, times) / unit)
    name, spread = "ms" if unit == 1e-3 else "us", min(again) / min(mine)
    report.add(
        Row(id, case, min(mine + again), name, "", None, spread, statistics.median(mine), p99(mine), bar)
    )  # fmt: skip


def matching(report: Report, space: Space, rounds: int) -> None:
    with KVPool(space, SMALL, name="match", capacity="32MiB") as pool:
        tokens = np.random.default_rng(1).integers(0, 150_000, TOKENS)
        pool.put(tokens, np.zeros(SMALL.shape(TOKENS), np.float32))
        texts = tokens.tolist()

        def match(given: Any) -> None:
            with pool.match(given) as hit:
                assert hit.length == TOKENS

        case = f"match of {TOKENS:,} tokens, {TOKENS // 16:,} blocks, all there"
        timing(report, "kv.match_ms", case, "<= 3", 1e-3, lambda: match(tokens), rounds)
        timing(report, "kv.match_list_ms", f"{case}; from a list", "", 1e-3, lambda: match(texts), rounds)
        pool.verify = True
        timing(report, "kv.match_verify_ms", f"{case}; tokens compared", "", 1e-3, lambda: match(tokens), rounds)
    space.delete("match")


def viewing(report: Report, pool: KVPool, tokens: Any, rounds: int) -> None:
    first = tokens[:16]

    def match_and_view() -> None:
        with pool.match(first) as hit:
            hit.block(0)

    with pool.match(tokens) as hit:
        timing(
            report, "kv.view_us", "a 2 MiB block of a hit as a view", "<= 3", 1e-6, lambda: hit.block(7), rounds, 2000
        )
    timing(report, "kv.match_view_us", "match of one block, and its view", "", 1e-6, match_and_view, rounds, 2000)


def copying(report: Report, pool: KVPool, tokens: Any, cache: Any, pairs: int) -> None:
    target, other = private(cache.shape), private(cache.shape)
    layer, source_layer = private(cache[0].shape), cache[3]
    number = 0

    def put() -> None:
        nonlocal number
        number += 1
        assert pool.put(tokens + number * 10_000, cache).stored == BLOCKS

    def memcpy() -> float:
        return timed(lambda: np.copyto(other, cache))

    with pool.match(tokens) as hit:
        report.add(
            compare("kv.copy", "a hit of 256 MiB into one array", "memcpy",
                    lambda: timed(lambda: hit.read(target)), memcpy, pairs=pairs, bar=">= 0.85")
        )  # fmt: skip
        assert np.array_equal(target, cache)
        report.add(
            compare("kv.copy_layer", "one layer of it, 8 MiB", "memcpy",
                    lambda: timed(lambda: hit.read_layer(3, layer), 20),
                    lambda: timed(lambda: np.copyto(layer, source_layer), 20), pairs=pairs)
        )  # fmt: skip
    report.add(
        compare("kv.put", "put of 256 MiB into a full pool", "memcpy", lambda: timed(put), memcpy, pairs=pairs,
                bar=">= 0.7")
    )  # fmt: skip


def main() -> None:
    args = arguments(__doc__ or "")
    rounds = 5 if args.quick else 15
    report = Report("KV pool on one host")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="openshelf-bench-") as home:
        os.environ["OPENSHELF_DIR"] = home
        with Space.create("bench", dram="1200MiB") as space:
            matching(report, space, rounds)
            with KVPool(space, LLAMA) as pool:
                tokens, cache = np.arange(BLOCKS * 16), private(LLAMA.shape(BLOCKS * 16))
                cache[:] = np.random.default_rng(1).random(cache.shape[-1])
                for number in range(pool.stats()["capacity_blocks"] // BLOCKS + 1):
                    pool.put(tokens + 1_000_000 + number * 10_000, cache)
                pool.put(tokens, cache)
                viewing(report, pool, tokens, rounds)
                copying(report, pool, tokens, cache, rounds)
        Space.remove("bench")
    report.finish(args.json)


if __name__ == "__main__":
    main()
