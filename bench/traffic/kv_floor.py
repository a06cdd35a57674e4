"""A KV pool's hit rate against the best of LRU, S3-FIFO and ARC, on traffic it was not tuned on: part of kv_trace.py.

The second half of Mooncake's conversation trace, and made-up traffic of five families (kv_families.py) whose seeds are
drawn when it runs. The ratio counts where it is worst: of all traces, and of pools with room for 1, 5 and 10 % of a
trace's blocks. Only the second half of a trace is scored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kit.side_by_side import Row
from openshelf import KVPool, Layout, Space, _core
from traffic import kv_families, kv_replays

LAYOUT = Layout("trace", layers=1, heads=1, head_dim=4, dtype="float32")
PEERS = (kv_replays.LRU, kv_replays.S3FIFO, kv_replays.ARC)
SHARES = (1, 5, 10)  # percent of the distinct blocks
LONGEST = 1 << 12


def rate(trace: kv_replays.Trace, request: Callable[[list[int]], int]) -> float:
    """Of the second half."""
    hit = asked = 0
    for at, prompt in enumerate(trace):
        found = request(prompt)
        if at >= len(trace) // 2:
            hit, asked = hit + found, asked + len(prompt)
    return hit / asked


def peer_rates(trace: kv_replays.Trace, room: int) -> dict[str, float]:
    return {kind.__name__: rate(trace, kind(room).request) for kind in PEERS}


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
    """The hit rate of a pool, and microseconds a request."""
    with open_pool(space, room) as pool:
        started = time.perf_counter()
        result = rate(trace, requests_of(pool))
        spent = time.perf_counter() - started
    space.delete("kv")
    return result, spent / len(trace) * 1e6


def distinct(trace: kv_replays.Trace) -> int:
    return len({block for prompt in trace for block in prompt})


@dataclass
class Measured:
    """Hit rates of a trace at one size; `about` says which."""

    about: str
    share: int
    pool: float
    peers: dict[str, float]

    @property
    def best(self) -> str:
        return max(self.peers, key=lambda name: self.peers[name])

    @property
    def ratio(self) -> float:
        best = self.peers[self.best]
        return self.pool / best if best else 1.0  # where nobody finds anything, nobody is better

    def rates(self) -> str:
        rates = {"pool": self.pool, **self.peers}
        return f"{self.about}, {self.share} %: " + ", ".join(f"{name} {value:.4f}" for name, value in rates.items())


def of_family(space: Space, family: str, seeds: list[int], blocks: int) -> list[Measured]:
    found = []
    for seed in seeds:
        trace = kv_families.generate(family, seed, blocks)
        rooms = {share: distinct(trace) * share // 100 for share in SHARES}
        for share, room in rooms.items():
            found.append(Measured(f"seed {seed}", share, alone(space, trace, room)[0], peer_rates(trace, room)))
    return found


def row_of(id: str, case: str, measured: list[Measured], *, bar: str = "", every: bool = True) -> Row:
    worst = min(measured, key=lambda one: one.ratio)
    shown = measured if every else [worst]
    return Row(
        id, f"{case}: hit rate over the best simple policy's, the worst",
        worst.ratio, "", worst.best, worst.ratio, None, bar=bar,
        note="\n".join(one.rates() for one in shown),
    )  # fmt: skip


def floor(space: Space, conversation: list[Measured], seeds: list[int], blocks: int, missing: str) -> list[Row]:
    """The rows: the worst of all, then of the real trace and of every family."""
    rows, everything = [], list(conversation)
    if conversation:
        rows.append(row_of("kv.floor.conversation", "conversation trace, second half", conversation))
    else:
        rows.append(Row("kv.floor.conversation", "conversation trace", None, "", "", None, None, note=missing))
    for family in kv_families.FAMILIES:
        measured = of_family(space, family, seeds, blocks)
        everything += [Measured(f"{family}, {one.about}", one.share, one.pool, one.peers) for one in measured]
        rows.append(row_of(f"kv.floor.{family}", f"{family}, {len(seeds)} seeds", measured))
    case = f"all traces, 1, 5 and 10 % room; seeds {' '.join(map(str, seeds))}"
    return [row_of("kv.floor", case, everything, bar=">= 1", every=False), *rows]
