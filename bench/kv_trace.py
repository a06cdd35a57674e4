"""Which blocks does a full KV pool keep? A trace of conversations, through the pool and through other policies.

Mooncake's conversation trace (Qin et al., FAST 2025; 12,031 requests, ids of 512-token blocks), or a synthetic one
where the file is missing (OPENSHELF_TRACE names another place). The pool has room for 1, 5 and 10 % of the distinct
blocks; every id is a block of one token and a few bytes. A request is matched, then put. What the policy learns it
learns while it runs; its constants were chosen on the first half, and only the second half is scored: blocks found /
blocks asked for. The bound is Belady's MIN with bypass, which knows the future.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from ctypes import c_int64
from typing import Any

import numpy as np

import kv_replays
from openshelf import KVPool, Layout, Space, _core
from side_by_side import Report, Row, arguments

LAYOUT = Layout("trace", layers=1, heads=1, head_dim=4, dtype="float32")
PEERS = (kv_replays.LRU, kv_replays.S3FIFO, kv_replays.ARC)
SHARES = (1, 5, 10)  # percent of the distinct blocks
WORKERS = 4
LONGEST = 1 << 12


def rate(trace: kv_replays.Trace, request: Callable[[list[int]], int]) -> float:
    """Of the second half."""
    hit = asked = 0
    for at, prompt in enumerate(trace):
        found = request(prompt)
        if at >= len(trace) // 2:
            hit, asked = hit + found, asked + len(prompt)
    return hit / asked


def open_pool(space: Space, room: int) -> KVPool:
    need = _core.KVCore.bytes_needed(LAYOUT.block_bytes(1), 1, room)
    pool = KVPool(space, LAYOUT, block_tokens=1, capacity=need)
    assert pool.stats()["capacity_blocks"] == room
    return pool


def requests_of(pool: KVPool) -> Callable[[list[int]], int]:
    cache: Any = np.zeros(LAYOUT.shape(LONGEST), np.float32)

    def request(prompt: list[int]) -> int:
        tokens = np.array(prompt, np.uint32)
        with pool.match(tokens) as hit:
            found = hit.blocks
        pool.put(tokens, cache[:, :, : len(prompt)])
        return found

    return request


def alone(space: Space, trace: kv_replays.Trace, room: int) -> tuple[float, float]:
    """The hit rate, and microseconds a request."""
    with open_pool(space, room) as pool:
        started = time.perf_counter()
        result = rate(trace, requests_of(pool))
        spent = time.perf_counter() - started
    space.delete("kv")
    return result, spent / len(trace) * 1e6


def work(number: int, room: int, trace: kv_replays.Trace, turn: Any, found: Any) -> None:
    """Every fourth request, each in its turn: what is compared is the sharing, not the order."""
    with Space.open("bench") as space, open_pool(space, room) as pool:
        request = requests_of(pool)
        for at in range(number, len(trace), WORKERS):
            while turn.value < at:
                os.sched_yield()
            hit = request(trace[at])
            if at >= len(trace) // 2:
                found[number] += hit
            turn.value = at + 1


def shared(space: Space, trace: kv_replays.Trace, room: int) -> float:
    """The hit rate of several processes that share the pool."""
    context = mp.get_context("spawn")
    turn, found = context.RawValue(c_int64, 0), context.RawArray(c_int64, WORKERS)
    with open_pool(space, room):
        workers = [context.Process(target=work, args=(at, room, trace, turn, found)) for at in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
    space.delete("kv")
    return sum(found) / sum(map(len, trace[len(trace) // 2 :]))


def gap(space: Space, trace: kv_replays.Trace, share: int, room: int, runs: int, note: str) -> tuple[Row, float]:
    """How much of the way from LRU to the bound the pool goes, on the mean; and its hit rate."""
    peers = {kind.__name__: rate(trace, kind(room).request) for kind in PEERS}
    bound = rate(trace, kv_replays.Bound(room, trace).request)
    rates_of, times_of = zip(*(alone(space, trace, room) for _ in range(runs)), strict=True)
    ours, spent_us = statistics.mean(rates_of), statistics.mean(times_of)
    best = max(peers, key=lambda name: peers[name])
    rates = ", ".join(f"{name} {value:.4f}" for name, value in {"pool": ours, **peers, "bound": bound}.items())
    row = Row(
        f"kv.gap{share}", f"room for {room:,} blocks: gap from LRU to the bound that is closed",
        (ours - peers["LRU"]) / (bound - peers["LRU"]), "", best, ours / peers[best], max(rates_of) / min(rates_of),
        bar=">= 0.25, ratio >= 1", note="; ".join(filter(None, [rates, f"{spent_us:.0f} us a request", note])),
    )  # fmt: skip
    return row, ours


def main() -> None:
    args = arguments(__doc__ or "")
    trace, note = kv_replays.load()
    distinct = len({block for prompt in trace for block in prompt})
    report = Report(f"KV pool: {len(trace):,} requests, {distinct:,} distinct blocks")
    runs, differences = 2 if args.quick else 3, []
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="openshelf-bench-") as home:
        os.environ["OPENSHELF_DIR"] = home
        with Space.create("bench", dram="256MiB") as space:
            for share in SHARES:
                room = distinct * share // 100
                row, ours = gap(space, trace, share, room, runs, note)
                report.add(row)
                if share == 5 or not args.quick:
                    together = [shared(space, trace, room) for _ in range(runs)]
                    differences.append(abs(statistics.mean(together) / ours - 1))
        Space.remove("bench")
    case = f"hit rate of {WORKERS} processes that share a pool, against that of one: difference"
    report.add(Row("kv.share", case, max(differences), "", "", None, None, bar="<= 0.01", note=note))
    report.finish(args.json)


if __name__ == "__main__":
    main()
