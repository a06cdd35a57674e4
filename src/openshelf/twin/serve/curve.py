"""What a pool of which size would bring: hit rate, time to the first token, throughput and bytes by tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from openshelf import _core
from openshelf.errors import BadInput
from openshelf.twin.serve.requests import Requests
from openshelf.twin.serve.simulate import Engine, Pool, Routing, Served, serve


def hit_rate(
    requests: Requests,
    blocks: int,
    *,
    block_bytes: int,
    fast_blocks: int | None = None,
    counted: int = 0,
    seed: int = 1,
) -> float:
    """Of a pool that each request in turn asks and fills: blocks found, over blocks asked for, from request `counted`
    on."""
    if not len(requests.ids):
        raise BadInput("the trace names no blocks (hash_ids): without them nobody can tell what prompts have in common")
    fast = blocks if fast_blocks is None else fast_blocks
    asked, found, *_ = _core.replay_pool(blocks, fast, block_bytes, requests.ids_at, requests.ids, counted, seed)
    return found / asked if asked else 0.0


@dataclass(frozen=True)
class Point:
    """One pool size.

    `hit_rate`: tokens of prompts that nobody computed again, found in engines' own blocks or in the pool;
    `pool_hit_rate`: of the pool alone. Bytes by tier: read from it and written to it over the whole trace.
    """

    pool_bytes: int
    fast_bytes: int
    hit_rate: float
    pool_hit_rate: float
    served: Served
    fast_read_bytes: int
    slow_read_bytes: int
    fast_written_bytes: int
    slow_written_bytes: int

    def plain(self) -> dict[str, Any]:
        return {
            "pool_bytes": self.pool_bytes,
            "fast_bytes": self.fast_bytes,
            "hit_rate": self.hit_rate,
            "pool_hit_rate": self.pool_hit_rate,
            "tiers": {
                "dram": {"read_bytes": self.fast_read_bytes, "written_bytes": self.fast_written_bytes},
                "flash": {"read_bytes": self.slow_read_bytes, "written_bytes": self.slow_written_bytes},
            },
            **self.served.plain(),
        }


@dataclass(frozen=True)
class PoolCosts:
    """Of the tiers below the accelerators: bytes of a token, and bytes per second of a replica's way to each tier."""

    token_bytes: float
    dram_bytes: int
    dram_bytes_per_s: float
    flash_bytes_per_s: float
    latency_s: float = 20e-6


def curve(
    requests: Requests,
    engine: Engine,
    times: _core.StepTimes,
    sizes: Sequence[int],
    costs: PoolCosts,
    *,
    replicas: int = 1,
    routing: Routing = "least_load",
    entry_s: float = 0.0,
    clients: int = 0,
    parts: int = 1,
    decode_replicas: int = 0,
    hand_over_s_token: float = 0.0,
) -> list[Point]:
    """A point for each size in bytes; 0 is without a pool. What is beyond `dram_bytes` of a size lies on flash.

    The pool is of the replicas that compute prompts; `decode_replicas` come on top.
    """
    if not len(requests.ids):
        raise BadInput("the trace names no blocks (hash_ids): without them nobody can tell what a pool would bring")
    if not 1 <= parts <= replicas:
        raise BadInput(
            f"{parts} pools of {replicas} replicas: give from 1, for one pool of all, to one for each replica"
        )
    block_bytes = max(1, round(costs.token_bytes * requests.block_tokens))
    made = []
    for size in sizes:
        blocks, fast = size // block_bytes // parts, min(size, costs.dram_bytes) // block_bytes // parts
        pool = None
        if blocks:
            pool = Pool(
                blocks,
                fast,
                block_bytes,
                costs.token_bytes / costs.dram_bytes_per_s,
                costs.token_bytes / costs.flash_bytes_per_s,
                costs.latency_s,
                parts,
            )
        served = serve(
            requests,
            replace(engine, prefixes=True),
            times,
            replicas=replicas,
            routing=routing,
            entry_s=entry_s,
            clients=clients,
            pool=pool,
            decode_replicas=decode_replicas,
            hand_over_s_token=hand_over_s_token,
        )
        counts = served.pool
        slow = counts["slow"]
        made.append(
            Point(
                size,
                min(size, costs.dram_bytes),
                float(served.plain().get("found_share", 0.0)),
                counts["found"] / max(1, counts["asked"]),
                served,
                (counts["found"] - slow) * block_bytes,
                slow * block_bytes,
                (counts["stored"] + slow) * block_bytes,
                counts["demoted"] * block_bytes,
            )
        )
    return made
