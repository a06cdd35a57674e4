"""Time to first token with transformers: four workers that share a pool, against four that each have their own cache.

Every prompt is a long beginning that many share and a short question. Without the pool a worker keeps the caches of the
beginnings that it saw last, as transformers' guide does it (a DynamicCache, copied for each request): it has computed
none when it is new, and all too few when there are more than it has room for. Random weights; what is computed does not
depend on them. One thread a worker.
"""

from __future__ import annotations

import copy
import os
import statistics
import tempfile
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kit.side_by_side import Report, Row, arguments, p99
from openshelf import KVPool, Space
from processes.worker import Process

WORKERS = 4
QUESTION = 32  # tokens
BEGINNINGS = 4  # in all, of which a worker has room for:
ROOM = 2
VOCABULARY = 8192
PRELOAD = ("transformers.models.llama.modeling_llama", "openshelf.adapters.transformers")


@dataclass(frozen=True)
class Size:
    tokens: int
    hidden: int
    layers: int
    requests: int  # of each worker when throughput is measured


FULL, QUICK = Size(4096, 512, 8, 4), Size(1024, 256, 8, 4)


class Answer(NamedTuple):
    seconds: float
    hit: int  # tokens that were not computed
    tokens: list[int]


class Worker:
    """In its own process: a model, the pool, and the caches that it keeps for itself."""

    def __init__(self, size: Size) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        from openshelf.adapters.transformers import layout_of

        torch.set_num_threads(1)
        torch.manual_seed(1)
        heads = size.hidden // 64
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=size.hidden, intermediate_size=size.hidden * 11 // 4,
            num_hidden_layers=size.layers, num_attention_heads=heads, num_key_value_heads=heads // 2,
            max_position_embeddings=2 * size.tokens, initializer_range=0.1, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        self.torch, self.size = torch, size
        self.model = LlamaForCausalLM(config).eval()
        self.own: OrderedDict[int, Any] = OrderedDict()
        self.caches: dict[str, Any] = {"pool": self.from_pool, "own": self.from_own, "none": lambda *_: (None, 0)}
        self.space = Space.open("ttft")
        self.pool = KVPool(self.space, layout_of(self.model))
        self.model.generate(torch.arange(64)[None], max_new_tokens=2, do_sample=False)  # warm

    def beginning(self, number: int) -> Any:
        return self.torch.from_numpy(np.random.default_rng(number).integers(0, VOCABULARY, (1, self.size.tokens)))

    def ask(self, number: int, question: int, cached: str, new: int = 1) -> Answer:
        """With a cache from the "pool", its "own", or "none" that was there before."""
        start = self.beginning(number)
        asked = np.random.default_rng(1000 + question).integers(0, VOCABULARY, (1, QUESTION))
        ids = self.torch.cat([start, self.torch.from_numpy(asked)], 1)
        began = time.perf_counter()
        cache, hit = self.caches[cached](number, start, ids)
        out = self.model.generate(ids, past_key_values=cache, max_new_tokens=new, do_sample=False)
        return Answer(time.perf_counter() - began, hit, out[0, ids.shape[1] :].tolist())

    def from_pool(self, number: int, start: Any, ids: Any) -> tuple[Any, int]:
        from openshelf.adapters.transformers import PooledCache

        cache = PooledCache(self.pool, self.model, ids)
        return cache, cache.hit_tokens

    def from_own(self, number: int, start: Any, ids: Any) -> tuple[Any, int]:
        from transformers import DynamicCache

        kept = self.own.get(number)
        hit = kept is not None
        if kept is None:
            kept = DynamicCache()
            with self.torch.no_grad():
                self.model.model(start, past_key_values=kept)
            self.own[number] = kept
            if len(self.own) > ROOM:
                self.own.popitem(last=False)
        self.own.move_to_end(number)
        return copy.deepcopy(kept), self.size.tokens if hit else 0

    def serve(self, first: int, cached: str) -> list[Answer]:
        """One request after another, over all beginnings in turn."""
        count = self.size.requests
        return [self.ask((first + at) % BEGINNINGS, first + at, cached, new=4) for at in range(count)]


def worker_of(size: Size) -> Process:
    return Process(Worker, size, preload=PRELOAD)


def row(id: str, case: str, pooled: list[float], plain: list[float], bar: str = "", note: str = "") -> Row:
    """How much sooner, best of each; median and p99 are seconds with the pool."""
    ratio = min(plain) / min(pooled)
    note = f"{min(plain):.3g} s without{', ' if note else ''}{note}"
    spread = min(pooled[1::2]) / min(pooled[::2]) if len(pooled) > 1 else None
    return Row(id, case, ratio, "x", "own caches", ratio, spread, statistics.median(pooled), p99(pooled), bar, note)


def serve(workers: list[Process], cached: str) -> tuple[float, list[Answer]]:
    began = time.perf_counter()
    for first, worker in enumerate(workers):
        worker.start("serve", first, cached)
    answers = [answer for worker in workers for answer in worker.finish()]
    return len(answers) / (time.perf_counter() - began), answers


def run(report: Report, size: Size, rounds: int) -> None:
    workers = [worker_of(size) for _ in range(WORKERS)]
    for worker in workers:
        worker.finish()
    tokens, first, others = f"{size.tokens:,}", workers[0], workers[1:]

    plain = [first.call("ask", 0, 0, "none") for _ in range(rounds)]  # a new worker has computed nothing
    seconds = [answer.seconds for answer in plain]
    cold = first.call("ask", 0, 0, "pool")
    fresh = [worker.call("ask", 0, 0, "pool") for worker in others]
    first.kill()
    workers[0] = worker_of(size)
    workers[0].finish()
    again = workers[0].call("ask", 0, 0, "pool")
    assert cold.hit == 0
    assert all(answer.hit >= size.tokens for answer in [*fresh, again]), "a hit was expected"
    same = sum(answer.tokens == plain[0].tokens for answer in [cold, *fresh, again])
    case = f"first token of a prompt of {tokens} + {QUESTION} tokens"
    pooled = [answer.seconds for answer in fresh]
    report.add(row("kv.ttft", f"{case}, a new worker", pooled, seconds, ">= 3", f"{same} of 5 tokens equal"))
    report.add(row("kv.ttft_restart", f"{case}, a worker restarted after kill -9", [again.seconds], seconds, ">= 3"))
    report.add(row("kv.ttft_miss", f"{case}, the pool has nothing", [cold.seconds], seconds, "", "stores the prompt"))

    others[0].call("ask", 0, 0, "own")  # from now on in its own memory, too
    warm = [others[0].call("ask", 0, 0, cached) for _ in range(2 * rounds + 2) for cached in ("pool", "own")]
    pooled, seconds = ([answer.seconds for answer in warm[side::2]] for side in (0, 1))
    report.add(row("kv.ttft_warm", f"{case}, a worker that has it itself", pooled, seconds, "", "a copy of its own"))

    for number in range(1, BEGINNINGS):
        workers[number].call("ask", number, 0, "pool")
    with_pool, ours = serve(workers, "pool")
    without, theirs = serve(workers, "own")
    hits = sum(answer.hit >= size.tokens for answer in ours)
    same = sum(mine.tokens == other.tokens for mine, other in zip(ours, theirs, strict=True))
    case = f"{BEGINNINGS} beginnings of {tokens} tokens, a worker keeps {ROOM}"
    # Medians: the best of many at once is that of a worker which the others had left alone.
    pooled, seconds = ([statistics.median(answer.seconds for answer in side)] for side in (ours, theirs))
    report.add(row("kv.ttft_beyond", f"{case}: a request", pooled, seconds, ">= 3"))
    ratio = with_pool / without
    own_hits = sum(answer.hit > 0 for answer in theirs)
    note = f"{with_pool:.3g} requests/s, {without:.3g} without; {hits} and {own_hits} of {len(ours)} hit, {same} equal"
    report.add(
        Row("kv.throughput", f"{case}: {WORKERS} workers", ratio, "x", "own caches", ratio, None, bar=">= 3", note=note)
    )
    for worker in workers:
        worker.stop()


def main() -> None:
    options = arguments(__doc__ or "")
    size = QUICK if options.quick else FULL
    os.environ["OMP_NUM_THREADS"] = "1"
    report = Report("Time to first token with transformers (ratios: how much sooner with the pool)")
    with tempfile.TemporaryDirectory(prefix="openshelf-bench-", dir="/dev/shm") as home:
        os.environ["OPENSHELF_DIR"] = home
        room = (BEGINNINGS + 1) * size.tokens * size.layers * size.hidden * 4 * 3 // 2
        with Space.create("ttft", room + (64 << 20)):
            run(report, size, 1 if options.quick else 3)
    report.finish(options.json)


if __name__ == "__main__":
    main()
