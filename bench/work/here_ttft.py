"""work.ttft_here: the time to the first token of the transformers example with the pool, cold and warm, predicted.

What is added up: the model's own pass over the tokens that are not in the pool, fitted to passes without one; the
pool's put or match and read, fitted to a pool alone; and what the adapter costs in itself, from the shortest prompt.
Fitted are the prompts of here_ledger.txt; prompts of other lengths are drawn by the seed and judge it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.side_by_side import Row
from openshelf import KVPool, Space
from openshelf.twin.ops import fit_slowness
from work.here import Law, Setting, drawn_of, homes, ledger, seed_of_run

QUESTION, JUDGED, ROUNDS = 20, 6, 7
Floats = NDArray[np.float64]


class Example:
    """The model of examples/kv_transformers.py, and a pool."""

    def __init__(self, stack: ExitStack) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        from openshelf.adapters.transformers import layout_of

        torch.set_num_threads(1)
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
            num_key_value_heads=4, max_position_embeddings=1024,
        )  # fmt: skip
        self.torch, self.model = torch, LlamaForCausalLM(config).eval()
        self.random = np.random.default_rng(3)
        self.space = Space.create("ttft", dram="256MiB")
        stack.callback(Space.remove, "ttft")
        stack.callback(self.space.close)
        self.layout = layout_of(self.model)
        self.pool = stack.enter_context(KVPool(self.space, self.layout))

    def tokens(self, count: int) -> NDArray[np.int64]:
        return self.random.integers(0, 512, count)

    def answer(self, tokens: NDArray[np.int64], cache: Callable[[Any], Any]) -> float:
        """Seconds until the first token is there."""
        inputs = {"input_ids": self.torch.from_numpy(tokens[None])}
        began = time.perf_counter()
        self.model.generate(**inputs, past_key_values=cache(inputs), max_new_tokens=1, do_sample=False)
        return time.perf_counter() - began

    def plain(self, new: int, before: int) -> float:
        """A pass over new tokens after others, with transformers' own cache."""
        from transformers import DynamicCache

        kept, tokens = DynamicCache(), self.tokens(before + new)
        if before:
            with self.torch.no_grad():
                self.model.model(self.torch.from_numpy(tokens[None, :before]), past_key_values=kept)
        return self.answer(tokens, lambda _: kept)

    def pooled(self, count: int) -> tuple[float, float]:
        """Cold and warm: the pool has nothing of the prompt, and all but the question behind it."""
        from openshelf.adapters.transformers import PooledCache

        start = self.tokens(count)
        self.pool.clear()
        times = []
        for _ in range(2):
            tokens = np.concatenate([start, self.tokens(QUESTION)])
            times.append(self.answer(tokens, lambda inputs: PooledCache(self.pool, self.model, inputs)))
        return times[0], times[1]

    def moved(self, count: int) -> tuple[float, float]:
        """The pool alone: what a put of a prompt takes, and a match with a read."""
        blocks = count // self.pool.block_tokens * self.pool.block_tokens
        tokens, out = self.tokens(blocks), np.ones(self.layout.shape(blocks), self.layout.dtype)
        self.pool.clear()
        began = time.perf_counter()
        self.pool.put(tokens, out)
        put = time.perf_counter() - began
        began = time.perf_counter()
        with self.pool.match(tokens) as hit:
            hit.read(out)
        return put, time.perf_counter() - began


def work(new: int, before: int) -> list[float]:
    return [1.0, float(new), new * (before + new / 2)]


def rows(data: Path, quick: bool) -> Iterator[Row]:
    del data
    fitted = [each for each in ledger() if each.kind == "ttft"]
    judged = drawn_of("ttft", JUDGED, seed_of_run())
    assert not {each.hash for each in judged} & {each.hash for each in fitted}
    with homes(), ExitStack() as stack:
        example = Example(stack)
        said, took = _run(example, fitted, judged, ROUNDS if quick else 3 * ROUNDS)
    errors = {key: 100 * abs(said[key] / took[key] - 1) for key in took}
    middle = {kind: float(np.median([errors[key] for key in errors if key[0] == kind])) for kind in ("cold", "warm")}
    worst = max(middle, key=lambda kind: middle[kind])
    note = ", ".join(f"{kind} {value:.1f} %" for kind, value in middle.items())
    yield Row(
        "work.ttft_here", f"the transformers example, {worst}, median of {len(judged)} prompts", middle[worst], "%",
        "measured", None, None, bar="<= 15", note=f"{note}; {len(fitted)} other prompts fitted",
    )  # fmt: skip
    for key, error in sorted(errors.items(), key=lambda each: (each[0][0], each[0][1]["tokens"])):
        yield Row(
            "work.ttft_here.row", f"{key[0]}, {key[1]['tokens']} tokens and a question of {QUESTION}", error, "%",
            f"measured {took[key] * 1e3:.2f} ms", said[key] / took[key], None, note="not fitted",
        )  # fmt: skip


Key = tuple[str, Setting]


def _run(
    example: Example, fitted: list[Setting], judged: list[Setting], rounds: int
) -> tuple[dict[Key, float], dict[Key, float]]:
    """Predicted and measured seconds, all in the same rounds."""
    passes = [(QUESTION + each["tokens"], 0) for each in fitted] + [(QUESTION, each["tokens"]) for each in fitted]
    shortest = min(fitted, key=lambda each: each["tokens"])
    own: dict[tuple[int, int], float] = {}
    pool: dict[Key, float] = {}
    took: dict[Key, float] = {}
    for _ in range(rounds):
        for one in passes:
            own[one] = min(own.get(one, np.inf), example.plain(*one))
        for each in fitted:
            for kind, spent in zip(("cold", "warm"), example.moved(each["tokens"]), strict=True):
                pool[kind, each] = min(pool.get((kind, each), np.inf), spent)
        for each in [shortest, *judged]:
            for kind, spent in zip(("cold", "warm"), example.pooled(each["tokens"]), strict=True):
                took[kind, each] = min(took.get((kind, each), np.inf), spent)
    slower = fit_slowness(np.array([np.array(work(*one)) / own[one] for one in passes]))
    laws = {kind: Law({each: pool[kind, each] for each in fitted}) for kind in ("cold", "warm")}

    def parts(kind: str, each: Setting) -> float:
        new, before = (each["tokens"] + QUESTION, 0) if kind == "cold" else (QUESTION, each["tokens"])
        return float(np.array(work(new, before)) @ slower) + laws[kind](each)

    adapter = {kind: max(0.0, took.pop((kind, shortest)) - parts(kind, shortest)) for kind in laws}
    return {key: parts(*key) + adapter[key[0]] for key in took}, took
