"""Which blocks does a full KV pool keep? A trace of conversations, through the pool and through other policies.

Mooncake's conversation trace (Qin et al., FAST 2025; 12,031 requests, ids of 512-token blocks), or a synthetic one
where the file is missing (OPENSHELF_DATA names another directory). The pool has room for 1, 5 and 10 % of the distinct
blocks; every id is a block of one token and a few bytes. A request is matched, then put. What the policy learns it
learns while it runs; its constants were chosen on the first half, and only the second half is scored: blocks found /
blocks asked for. The bound is Belady's MIN with bypass, which knows the future. traffic/kv_floor.py adds other
traffic, with seeds that are drawn anew for every run; --seed takes those of an earlier one.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import secrets
import statistics
import tempfile
from ctypes import c_int64
from typing import Any

from kit.side_by_side import Report, Row, arguments
from openshelf import Space
from traffic import kv_replays
from traffic.kv_floor import SHARES, Measured, alone, distinct, floor, open_pool, peer_rates, rate, requests_of

WORKERS = 4


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


def gap(space: Space, trace: kv_replays.Trace, share: int, room: int, runs: int, note: str) -> tuple[Row, Measured]:
    """How much of the way from LRU to the bound the pool goes, on the mean; and the hit rates."""
    peers = peer_rates(trace, room)
    bound = rate(trace, kv_replays.Bound(room, trace).request)
    rates_of, times_of = zip(*(alone(space, trace, room) for _ in range(runs)), strict=True)
    ours, spent_us = statistics.mean(rates_of), statistics.mean(times_of)
    measured = Measured("conversations", share, ours, peers)
    row = Row(
        f"kv.gap{share}", f"room for {room:,} blocks: gap from LRU to the bound that is closed",
        (ours - peers["LRU"]) / (bound - peers["LRU"]), "", measured.best, measured.ratio,
        max(rates_of) / min(rates_of), bar=">= 0.25, ratio >= 1",
        note="; ".join(filter(None, [measured.rates(), f"bound {bound:.4f}", f"{spent_us:.0f} us a request", note])),
    )  # fmt: skip
    return row, measured


def main() -> None:
    args = arguments(__doc__ or "", with_seeds=True)
    trace, note = kv_replays.load()
    seeds = args.seed or [secrets.randbelow(1 << 32) for _ in range(1 if args.quick else 3)]
    print("--seed", *seeds, flush=True)
    report = Report(f"KV pool: {len(trace):,} requests, {distinct(trace):,} distinct blocks")
    runs, differences, conversation = 2 if args.quick else 3, [], []
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="openshelf-bench-") as home:
        os.environ["OPENSHELF_DIR"] = home
        with Space.create("bench", dram="256MiB") as space:
            for share in SHARES:
                room = distinct(trace) * share // 100
                row, measured = gap(space, trace, share, room, runs, note)
                report.add(row)
                conversation.append(measured)
                if share == 5 or not args.quick:
                    together = [shared(space, trace, room) for _ in range(runs)]
                    differences.append(abs(statistics.mean(together) / measured.pool - 1))
            blocks = 20_000 if args.quick else 40_000
            for row in floor(space, [] if note else conversation, seeds, blocks, note):
                report.add(row)
        Space.remove("bench")
    case = f"hit rate of {WORKERS} processes that share a pool, against that of one: difference"
    report.add(Row("kv.share", case, max(differences), "", "", None, None, bar="<= 0.01", note=note))
    report.finish(args.json)


if __name__ == "__main__":
    main()
