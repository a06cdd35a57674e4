"""KV pool on one host: is a long prompt found at once, do its bytes move as memcpy moves them, and how do others do?

Llama-3.1-8B's cache in float16, blocks of 16 tokens: 2 MiB each. memcpy is one call for as many bytes, between private
arrays with the same page size.

The peers, Mooncake Store, Redis and LMCache, get what a worker wants: a prefix of 2,048 tokens that another process
stored, from its tokens (or keys) to memory that can be read, one load from each piece included. `kv.x_PEER`, which has
the bar, takes everybody's quickest way: for ours and for those that can, reading in place (Mooncake can if its hot
cache is switched on, and for what was read before: `kv.x_mooncake_hot`). `.use` includes letting go of it, `.block` is
the least that is found; in `.copy` all copy the prefix into memory of this process; `.put` stores as much. Values are
how many times as fast as the peer ours is; the note has the times. `make bench-kv-peers` installs the peers, which
take some 9 GiB of memory together; one that is absent is skipped with the reason.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from kit.servers import Absent
from kit.side_by_side import Report, Row, arguments, compare, p99, paired, timed
from openshelf import KVPool, Layout, Space
from peers.kv_stores import BLOCKS, LLAMA, Array, Openshelf, Redis, Store, private
from peers.lmcache import LMCacheLocal, LMCacheServer
from peers.mooncake import Mooncake, MooncakeHot, MooncakeNode, MooncakeTcp

TOKENS = 131_072
SMALL = Layout("small", layers=1, heads=1, head_dim=8, dtype="float32")
BARS = {
    "mooncake": ">= 10",
    "mooncake_tcp": "",
    "mooncake_hot": "",
    "redis": ">= 10",
    "lmcache_mp": ">= 1",
    "lmcache_local": "",
}
KINDS = ("prefix", "use", "block", "copy", "put")
NBYTES = BLOCKS * 2 << 20


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


@contextlib.contextmanager
def peers(home: Path, wanted: bool, quick: bool) -> Iterator[tuple[list[Store], dict[str, str]]]:
    """Those that run here, filled, and why the others do not."""
    if not wanted:
        yield [], dict.fromkeys(BARS, "--no-peers")
        return
    made: list[Store] = []
    absent: dict[str, str] = {id: "has no bar: without --quick" for id, bar in BARS.items() if quick and not bar}
    with contextlib.ExitStack() as stack:

        def attempt(ids: tuple[str, ...], make: Callable[[], list[Store]]) -> None:
            try:
                made.extend(make())
            except Absent as reason:
                absent.update(dict.fromkeys(ids, str(reason)))

        def mooncake(hot: bool, *kinds: type[Mooncake]) -> list[Store]:
            node = MooncakeNode(home, hot=hot)
            stack.callback(node.close)
            return [kind(node) for kind in kinds]

        attempt(("lmcache_mp",), lambda: [LMCacheServer(home)])  # first: it takes longest to start
        attempt(("redis",), lambda: [Redis(home)])
        if quick:
            attempt(("mooncake",), lambda: mooncake(False, Mooncake))
        else:
            attempt(("mooncake", "mooncake_tcp"), lambda: mooncake(False, Mooncake, MooncakeTcp))
            attempt(("mooncake_hot",), lambda: mooncake(True, MooncakeHot))
            attempt(("lmcache_local",), lambda: [LMCacheLocal()])
        present = []
        for store in sorted(made, key=lambda store: list(BARS).index(store.id)):
            stack.callback(store.close)
            try:
                store.fill()
                present.append(store)
            except (Absent, ImportError) as reason:
                absent[store.id] = str(reason)
        yield present, absent


def checksum(arrays: list[Array]) -> int:
    """The same for all layouts."""
    return sum(int(array.view(np.uint16).sum(dtype=np.uint64)) for array in arrays)


def check(store: Store, expected: int) -> None:
    for get in (store.prefix, store.copy):
        assert checksum(get()) == expected, f"{store.name}: other bytes than were stored"
        store.release()


def seconds_of(store: Store, kind: str) -> float:
    if kind == "put":
        took = timed(store.put)
        store.forget()
        return took
    get: Callable[[], list[Array]] = store.prefix if kind == "use" else getattr(store, kind)
    times = 20 if kind == "block" else 1
    total = 0.0
    for _ in range(times):
        started = time.perf_counter()
        arrays = get()
        for array in arrays:
            array.item(0)
        readable = time.perf_counter()
        del array, arrays
        store.release()
        total += (time.perf_counter() if kind == "use" else readable) - started
    return total / times


def case_of(kind: str, peer: Store) -> str:
    size = f"{BLOCKS * 16:,} tokens, 256 MiB"
    return {
        "prefix": f"a prefix of {size}, readable: match + views",
        "use": f"a prefix of {size}, readable and let go",
        "block": "a 2 MiB block, readable: match + view" + (f"; theirs a {peer.unit}" if "chunk" in peer.unit else ""),
        "copy": f"a prefix of {size}, copied: match + read",
        "put": f"put of {size}",
    }[kind]


def beside(report: Report, ours: Store, peer: Store, kind: str, pairs: int) -> None:
    mine, other, again = paired(lambda: seconds_of(ours, kind), lambda: seconds_of(peer, kind), pairs)
    best, theirs = min(mine + again), min(other)
    if kind in ("prefix", "use", "block"):
        note = f"{best * 1e3:.3g} and {theirs * 1e3:.3g} ms (medians {statistics.median(mine) * 1e3:.3g} and "
        note += f"{statistics.median(other) * 1e3:.3g})"
    else:
        note = f"{NBYTES / best / 1e9:.3g} and {NBYTES / theirs / 1e9:.3g} GB/s"
    id, bar = (f"kv.x_{peer.id}", BARS[peer.id]) if kind == "prefix" else (f"kv.x_{peer.id}.{kind}", "")
    report.add(
        Row(id, case_of(kind, peer), theirs / best, "x", peer.name, theirs / best, min(again) / min(mine),
            statistics.median(mine), p99(mine), bar, note + ("; behind" if theirs < best else ""))
    )  # fmt: skip


def against_peers(report: Report, ours: Openshelf, home: Path, wanted: bool, quick: bool) -> None:
    with peers(home, wanted, quick) as (present, absent):
        if present:
            ours.fill()
            for store in (ours, *present):
                check(store, checksum([ours.cache]))
        for kind in track(KINDS, "peers", disable=not present):  # puts last: they may evict the prefix
            for peer in present:
                if not quick or kind != "use":
                    beside(report, ours, peer, kind, 15 if not quick else 4 if kind == "prefix" else 2)
        for id, reason in absent.items():
            report.add(Row(f"kv.x_{id}", "", None, "x", id, None, None, bar=BARS[id], note=f"skipped: {reason}"))


def main() -> None:
    args = arguments(__doc__ or "", with_peers=True)
    rounds = 5 if args.quick else 15
    report = Report("KV pool on one host")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="openshelf-bench-") as home:
        os.environ["OPENSHELF_DIR"] = home
        with Space.create("bench", dram="1200MiB") as space:
            matching(report, space, rounds)
            with KVPool(space, LLAMA) as pool:
                ours = Openshelf("bench", pool)
                tokens, cache = np.arange(BLOCKS * 16), ours.cache
                for number in range(pool.stats()["capacity_blocks"] // BLOCKS + 1):
                    pool.put(tokens + 1_000_000 + number * 10_000, cache)
                pool.put(tokens, cache)
                viewing(report, pool, tokens, rounds)
                copying(report, pool, tokens, cache, rounds)
                against_peers(report, ours, Path(home), not args.no_peers, args.quick)
        Space.remove("bench")
    report.finish(args.json)


if __name__ == "__main__":
    main()
