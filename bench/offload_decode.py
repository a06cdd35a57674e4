"""Decoding with the KV cache in host memory, below a budget: a token against the bound.

Two decoders of the same Llama shape, random weights, two threads, float32: one whose budget holds a quarter of the KV
cache, and one that holds all. `offload.decode` is a token of the first against the longer of its two parts, measured
in turn with it: the same token with all in the arena, and the same transfers with nothing else. Nothing is ever moved
within an arena, and that is checked: what stays is brought there when a bucket of lengths is entered, and not once
while a token is timed. Both give the same logits, or it fails.

Copies take processor time here, of the two cores that compute: a device that copies by itself would hide more.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kit.side_by_side import Report, Row, arguments, p99
from openshelf import offload
from openshelf.offload import Prefetch
from openshelf.space import format_size

VOCABULARY = 2048


def model_of(layers: int, heads: int, kv_heads: int, longest: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64 * heads, intermediate_size=172 * heads, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=64, max_position_embeddings=longest,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def both(model: Any, longest: int, chunk: int | None, need: int) -> tuple[offload.Decoder, offload.Decoder, int]:
    """A decoder with room for a quarter of the KV cache, one with room for all, and the bytes of the cache.

    Both have `need` bytes for all that is neither weights nor cache.
    """
    config = model.config
    weights = sum(one.numel() * 4 for one in model.parameters())
    cache = config.num_hidden_layers * 2 * config.num_key_value_heads * 64 * 4 * longest
    options: dict[str, Any] = {"longest": longest, "chunk": chunk, "time_limit": 1.0}
    small = offload.decode(model, weights + cache // 4 + need, **options)
    full = offload.decode(model, weights + cache + need, **options)
    assert full.stays(longest - 1)["kv"] >= cache, "the larger budget has to hold all"
    return small, full, cache


def in_turn(calls: list[Callable[[], float]], rounds: int) -> list[list[float]]:
    for call in calls:
        call()
    times: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        for at in range(len(calls)):
            which = (at + number) % len(calls)
            times[which].append(calls[which]())
    return times


def spread(times: list[float]) -> float:
    """The best of one half of the rounds against the best of the other."""
    return min(times[1::2]) / min(times[::2])


def stepping(run: offload.Decoder, length: int, results: list[Any]) -> Callable[[], float]:
    """Seconds of a token at a length, always the same one: the length is put back."""
    token = torch.tensor([7])

    def step() -> float:
        run.length = length
        begin = time.perf_counter()
        logits = run.step(token)
        seconds = time.perf_counter() - begin
        results.append(logits)
        return seconds

    return step


def transfers(run: offload.Decoder, length: int) -> Callable[[], float]:
    """Seconds of the transfers of one token alone."""
    steps = [step for step in run.plan(length).steps if isinstance(step, Prefetch)]
    kinds = run.plan(length).program.storages
    reads = [step for step in steps if kinds[step.storage].kind != "input"]

    memory = run._memory
    assert memory is not None

    def move() -> float:
        begin = time.perf_counter()
        for step in reads:
            memory.begin_read(step.storage, step.offset)
        for step in reads:
            memory.wait(step.storage)
        return time.perf_counter() - begin

    return move


def token_against_bound(report: Report, quick: bool) -> None:
    longest = 4096 if quick else 16384
    model = model_of(layers=8 if quick else 16, heads=16, kv_heads=2, longest=longest)
    small, full, cache = both(model, longest, chunk=16, need=2 << 20)
    length = longest - 8
    for run in (small, full):
        run.prefill(torch.arange(64) % VOCABULARY)  # the rest of the context stays zeros: only times are wanted
    results: tuple[list[Any], list[Any]] = ([], [])
    step, resident = stepping(small, length, results[0]), stepping(full, length, results[1])
    step()
    before, settled = small.lanes(), small.settled
    step()
    moved = sum(lane.nbytes - before[name].nbytes for name, lane in small.lanes().items())
    mine, compute, transfer = in_turn([step, resident, transfers(small, length)], 30 if quick else 100)
    assert small.settled == settled, "something was moved within the arena"
    assert all(torch.equal(one, results[1][0]) for one in (*results[0], *results[1])), "other logits"
    bound = max(min(compute), min(transfer))
    report.add(
        Row(
            "offload.decode",
            f"Llama, {length} tokens, KV cache {format_size(cache)}, room for {format_size(cache // 4)} in the arena",
            min(mine) / bound, "x", "the longer of computing and transfers", bound / min(mine), spread(mine),
            statistics.median(mine), p99(mine), "<= 1.2",
            f"{min(mine) * 1e3:.1f} ms; computing {min(compute) * 1e3:.1f}, moving {format_size(moved)} "
            f"{min(transfer) * 1e3:.1f}; 0 defragmentations",
        )
    )  # fmt: skip
    small.close()
    full.close()


def main() -> None:
    options = arguments(__doc__ or "")
    torch.set_num_threads(2)
    report = Report("decoding with the KV cache in host memory")
    token_against_bound(report, options.quick)
    report.finish(options.json)


if __name__ == "__main__":
    main()
