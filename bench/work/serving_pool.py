"""The pool in virtual time against the real one, on the conversation trace; and how fast serving is simulated.

The real pool is a KVPool with blocks of bytes in a Space; the twin's has none. Both are asked for each request's
blocks in turn, and given them. Hit rates are of the second half of the trace.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kit.side_by_side import Row
from openshelf import KVPool, Layout, Space, _core
from openshelf.twin.ops import accelerator
from openshelf.twin.serve import (
    Engine,
    Plan,
    Requests,
    drawn,
    find_model,
    hit_rate,
    read_requests,
    serve,
    shipped,
    times_of_law,
    work_of,
)

LAYOUT = Layout("trace", layers=1, heads=1, head_dim=4, dtype="float32")
SHARES = (1, 2, 5, 10, 25)
DAY_S = 86_400


def real_rate(space: Space, requests: Requests, room: int) -> float:
    need = _core.KVCore.bytes_needed(LAYOUT.block_bytes(1), 1, room)
    cache = np.zeros(LAYOUT.shape(1 << 12), np.float32)
    found = asked = 0
    with KVPool(space, LAYOUT, block_tokens=1, capacity=need) as pool:
        for at in range(len(requests)):
            tokens = requests.ids[int(requests.ids_at[at]) : int(requests.ids_at[at + 1])]
            with pool.match(tokens) as hit:
                if at >= len(requests) // 2:
                    found, asked = found + hit.blocks, asked + len(tokens)
            pool.put(tokens, cache[:, :, : len(tokens)])
    space.delete("kv")
    return found / asked


def rows(data: Path, quick: bool) -> Iterator[Row]:
    path = data / "mooncake_conversation_trace.jsonl"
    if path.exists():
        requests = read_requests(path)
        yield from hits(requests)
    yield speed(quick)
    if path.exists() and not quick:
        yield day(requests)


def hits(requests: Requests) -> Iterator[Row]:
    distinct, worst = len(np.unique(requests.ids)), 0.0
    before = os.environ.get("OPENSHELF_DIR")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="openshelf-bench-") as home:
        os.environ["OPENSHELF_DIR"] = home
        try:
            with Space.create("bench", dram="256MiB") as space:
                for share in SHARES:
                    room = distinct * share // 100
                    real = real_rate(space, requests, room)
                    told = hit_rate(requests, room, block_bytes=LAYOUT.block_bytes(1), counted=len(requests) // 2)
                    worst = max(worst, abs(told - real))
                    yield Row(
                        "work.hits.row",
                        f"room for {room:,} blocks ({share} %)",
                        100 * told,
                        "%",
                        f"the real pool {100 * real:.2f} %",
                        told / real,
                        None,
                        note="not fitted",
                    )
            Space.remove("bench")
        finally:
            del os.environ["OPENSHELF_DIR"]
            if before is not None:
                os.environ["OPENSHELF_DIR"] = before
    yield Row(
        "work.hits",
        f"hit rate, largest difference of {len(SHARES)} sizes",
        100 * worst,
        "points",
        "the real pool",
        None,
        None,
        bar="<= 0.5",
    )


def speed(quick: bool) -> Row:
    model, plan = find_model("llama-3.1-8b"), Plan(dtype="fp8")
    times = times_of_law(shipped(), work_of(model, accelerator("h100_sxm"), plan), "vllm")
    requests = drawn(10_000, 160.0, (200, 2000), (50, 500))
    began = time.perf_counter()
    served = serve(requests, Engine(30_000), times, replicas=16)
    spent = time.perf_counter() - began
    steps = sum(each["steps"] for each in served.replicas)
    return Row(
        "work.speed_serve",
        "10,000 requests on 16 replicas, one core",
        spent,
        "s",
        "",
        None,
        None,
        bar="<= 10",
        note=f"{steps:,} steps, {int(served.output_tokens.sum()):,} tokens, mean TTFT {served.ttft_s.mean():.2f} s",
    )


def day(requests: Requests) -> Row:
    """24 hours like the trace's one, on 125 replicas of 8, faster so that they have something to do."""
    model, plan = find_model("llama-3.1-70b"), Plan(8, dtype="fp8")
    times = times_of_law(shipped(), work_of(model, accelerator("h100_sxm"), plan), "vllm")
    many = requests.repeated(round(DAY_S / requests.span_s))
    began = time.perf_counter()
    served = serve(many, Engine(200_000, most_tokens=8192, prefixes=True), times, replicas=125, routing="by_cache")
    return Row(
        "work.speed_day",
        f"a day of the conversation trace ({len(many):,} requests) on 1,000 accelerators",
        time.perf_counter() - began,
        "s",
        "",
        None,
        None,
        bar="<= 300",
        note=f"{int(served.done.sum()):,} served, mean TTFT {served.ttft_s.mean():.2f} s",
    )
