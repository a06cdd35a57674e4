"""Serving in virtual time: replicas of an engine by its own rules, with or without a KV pool, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openshelf import _core
from openshelf.errors import BadInput, NoRoom
from openshelf.twin.serve.requests import Requests

Floats = NDArray[np.float64]
Routing = Literal["in_turn", "least_load", "by_cache"]
ROUTINGS: tuple[Routing, ...] = ("in_turn", "least_load", "by_cache")


@dataclass(frozen=True)
class Engine:
    """An engine's rules, in vLLM's terms.

    `blocks`: KV blocks of a replica. `under_way` 2: the next step is planned while one runs.
    """

    blocks: int
    block_tokens: int = 16
    most_tokens: int = 2048
    most_sequences: int = 256
    under_way: int = 2
    prefixes: bool = False
    mix: bool = True

    def native(self) -> _core.EngineRules:
        rules = _core.EngineRules()
        for name in ("blocks", "block_tokens", "most_tokens", "most_sequences", "under_way", "prefixes", "mix"):
            setattr(rules, name, getattr(self, name))
        return rules


@dataclass(frozen=True)
class Pool:
    """A KV pool of all replicas, or `parts` of it; `fast_blocks` are in the first tier.

    Seconds of a token by tier, over a replica's link.
    """

    blocks: int
    fast_blocks: int
    block_bytes: int
    fast_s_token: float
    slow_s_token: float = 0.0
    fetch_s: float = 0.0
    parts: int = 1


@dataclass(frozen=True)
class Served:
    """Columns of the requests, and of replicas and pool what they did.

    A request that was never served has `first_s` -1.
    """

    arrives_s: Floats
    first_s: Floats
    last_s: Floats
    output_tokens: NDArray[np.uint32]
    input_tokens: NDArray[np.uint32]
    found_tokens: NDArray[np.uint32]
    fetched_tokens: NDArray[np.uint32]
    preempted: NDArray[np.uint32]
    replicas: list[dict[str, Any]]
    pool: Mapping[str, int] = field(default_factory=dict)

    @property
    def done(self) -> NDArray[np.bool_]:
        return (self.first_s >= 0) & (self.last_s >= self.first_s)

    @property
    def ttft_s(self) -> Floats:
        return (self.first_s - self.arrives_s)[self.done]

    @property
    def latency_s(self) -> Floats:
        return (self.last_s - self.arrives_s)[self.done]

    @property
    def tpot_s(self) -> Floats:
        """Of requests with two tokens or more."""
        more = self.done & (self.output_tokens > 1)
        return ((self.last_s - self.first_s)[more] / (self.output_tokens[more] - 1.0)).astype(np.float64)

    @property
    def span_s(self) -> float:
        done = self.done
        return float(self.last_s[done].max() - self.arrives_s.min()) if done.any() else 0.0

    def goodput(self, ttft_s: float, tpot_s: float) -> float:
        """Requests a second that keep both."""
        done = self.done
        each = np.where(
            self.output_tokens > 1, (self.last_s - self.first_s) / np.maximum(self.output_tokens - 1.0, 1.0), 0.0
        )
        kept = done & (self.first_s - self.arrives_s <= ttft_s) & (each <= tpot_s)
        return float(kept.sum()) / self.span_s if self.span_s else 0.0

    def plain(self) -> dict[str, Any]:
        """The figures that people compare, in seconds and tokens per second."""
        if not self.done.any():
            return {"requests": len(self.arrives_s), "served": 0}
        ttft, tpot, span = self.ttft_s, self.tpot_s, max(self.span_s, 1e-9)
        computed = float(self.input_tokens[self.done].sum())
        return {
            "requests": len(self.arrives_s),
            "served": int(self.done.sum()),
            "ttft_s": float(ttft.mean()),
            "ttft_p50_s": float(np.median(ttft)),
            "ttft_p99_s": float(np.quantile(ttft, 0.99)),
            "tpot_s": float(tpot.mean()) if len(tpot) else 0.0,
            "tpot_p99_s": float(np.quantile(tpot, 0.99)) if len(tpot) else 0.0,
            "latency_s": float(self.latency_s.mean()),
            "output_tokens_per_s": float(self.output_tokens[self.done].sum()) / span,
            "input_tokens_per_s": computed / span,
            "busy": float(np.mean([each["busy_s"] for each in self.replicas])) / span,
            "preemptions": int(sum(each["preemptions"] for each in self.replicas)),
            "found_share": float(np.maximum(self.found_tokens, self.fetched_tokens)[self.done].sum()) / computed,
        }


def serve(
    requests: Requests,
    engine: Engine,
    times: _core.StepTimes,
    *,
    replicas: int = 1,
    routing: Routing = "least_load",
    clients: int = 0,
    think_s: float = 0.0,
    entry_s: float = 0.0,
    pool: Pool | None = None,
    decode_engine: Engine | None = None,
    decode_times: _core.StepTimes | None = None,
    decode_replicas: int = 0,
    hand_over_s: float = 0.0,
    hand_over_s_token: float = 0.0,
    record: bool = False,
) -> Served:
    """Runs all requests.

    With `clients`, so many wait for their answers before they ask again, and times of arrival are of the first ones
    only.
    """
    if not len(requests):
        raise BadInput("there are no requests to serve")
    if replicas < 1 or routing not in ROUTINGS or clients < 0 or decode_replicas < 0:
        raise BadInput(
            f"{replicas} replicas, {decode_replicas} for decodes, {clients} clients, routing {routing!r}: "
            f"expected at least one replica, nothing below 0, "
            f"and {', '.join(ROUTINGS)}"
        )
    longest = int((requests.input_tokens.astype(np.int64) + requests.output_tokens).max())
    for each in (engine, decode_engine or engine):
        if each.blocks * each.block_tokens < longest:
            raise NoRoom(
                f"a request of {longest:,} tokens needs {-(-longest // each.block_tokens):,} KV blocks; "
                f"a replica has {each.blocks:,}: "
                "give more memory, fewer bytes of KV a token, or more accelerators a replica"
            )
    shape = pool or Pool(0, 0, 1, 0.0)
    found = _core.serve(
        np.ascontiguousarray(requests.arrives_s),
        requests.input_tokens,
        requests.output_tokens,
        requests.ids_at,
        requests.ids,
        engine.native(),
        times,
        replicas,
        (decode_engine or engine).native(),
        decode_times or times,
        decode_replicas,
        ROUTINGS.index(routing),
        clients,
        think_s,
        entry_s,
        requests.block_tokens,
        shape.parts if pool else 0,
        shape.blocks,
        shape.fast_blocks,
        shape.block_bytes,
        shape.fetch_s,
        shape.fast_s_token,
        shape.slow_s_token,
        hand_over_s,
        hand_over_s_token,
        record,
    )
    return Served(
        found["arrives"],
        found["first"],
        found["last"],
        requests.output_tokens,
        requests.input_tokens,
        found["found"],
        found["fetched"],
        found["preempted"],
        found["replicas"],
        found["pool"],
    )
