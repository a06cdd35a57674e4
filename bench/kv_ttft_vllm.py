"""Time to first token with vLLM: four engines that share a pool, against four that each have their own prefix cache.

Prompts and rows are those of kv_ttft.py. Every engine has vLLM's own prefix cache, on by default, with room for two of
the four beginnings; those of the one side have the pool besides. Engines compute eagerly, with one thread, in one
process each. Starting them takes most of the time, and vLLM has to be installed: make bench-vllm.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kit.side_by_side import Report, Row, arguments
from kv_ttft import BEGINNINGS, QUESTION, ROOM, VOCABULARY, Answer, row
from openshelf import Space
from processes.worker import Process

BLOCK = 128  # tokens: vLLM's default on CPUs
HEAD_DIM = 64
PRELOAD = (
    "vllm.entrypoints.llm",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
    "openshelf.adapters.vllm",
)


@dataclass(frozen=True)
class Size:
    tokens: int
    hidden: int
    layers: int
    workers: int
    requests: int  # of each worker when throughput is measured

    @property
    def token_bytes(self) -> int:
        """Of the KV cache, in float32."""
        return self.layers * 2 * (self.hidden // 2) * 4


FULL, QUICK = Size(4096, 512, 8, 4, 4), Size(1024, 512, 8, 2, 4)


def save_model(folder: Path, size: Size) -> None:
    """A Llama with random weights; what is computed does not depend on them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    heads = size.hidden // HEAD_DIM
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=size.hidden, intermediate_size=size.hidden * 11 // 4,
        num_hidden_layers=size.layers, num_attention_heads=heads, num_key_value_heads=heads // 2,
        max_position_embeddings=2 * size.tokens, initializer_range=0.1, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


class Worker:
    """In its own process: an engine, with the pool or without."""

    def __init__(self, folder: str, size: Size, pooled: bool) -> None:
        from vllm import LLM, SamplingParams

        transfer = {
            "kv_connector": "OpenshelfConnector",
            "kv_connector_module_path": "openshelf.adapters.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"space": "ttft"},
        }
        room = (ROOM * size.tokens // BLOCK + 4) * BLOCK * size.token_bytes
        more: dict[str, Any] = {"kv_transfer_config": transfer} if pooled else {}
        self.size, self.sampling = size, SamplingParams
        self.engine = LLM(
            folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, kv_cache_memory_bytes=room,
            max_model_len=size.tokens + 2 * BLOCK, max_num_batched_tokens=2048, max_num_seqs=4, **more,
        )  # fmt: skip
        self._generate(list(range(64)), 2)  # warm

    def _generate(self, tokens: list[int], new: int) -> Any:
        how = self.sampling(temperature=0, max_tokens=new, detokenize=False, ignore_eos=True)
        return self.engine.generate([{"prompt_token_ids": tokens}], how, use_tqdm=False)[0]

    def ask(self, number: int, question: int, new: int = 1) -> Answer:
        start = np.random.default_rng(number).integers(0, VOCABULARY, self.size.tokens)
        asked = np.random.default_rng(1000 + question).integers(0, VOCABULARY, QUESTION)
        tokens = np.concatenate([start, asked]).tolist()
        began = time.perf_counter()
        out = self._generate(tokens, new)
        return Answer(time.perf_counter() - began, out.num_cached_tokens, list(out.outputs[0].token_ids))

    def ask_anew(self, number: int, question: int) -> Answer:
        """As an engine that has just started."""
        assert self.engine.reset_prefix_cache()
        return self.ask(number, question)

    def serve(self, first: int) -> list[Answer]:
        """One request after another, over all beginnings in turn."""
        return [self.ask((first + at) % BEGINNINGS, first + at, 4) for at in range(self.size.requests)]


def start(count: int, *given: Any) -> list[Process]:
    """Engines, one after another: each takes a core and more to start."""
    workers = []
    for _ in range(count):
        workers.append(Process(Worker, *given, preload=PRELOAD))
        workers[-1].finish()
    return workers


def serve(workers: list[Process]) -> tuple[float, list[Answer]]:
    began = time.perf_counter()
    for first, worker in enumerate(workers):
        worker.start("serve", first)
    answers = [answer for worker in workers for answer in worker.finish()]
    return len(answers) / (time.perf_counter() - began), answers


def run(report: Report, folder: str, size: Size, rounds: int) -> None:
    alone, sharing = start(size.workers, folder, size, False), start(size.workers, folder, size, True)
    first, others = sharing[0], sharing[1:]
    found = size.tokens // BLOCK * BLOCK  # whole blocks
    case = f"vLLM, first token of a prompt of {size.tokens:,} + {QUESTION} tokens"

    cold = first.call("ask", 0, 0)
    plain, fresh = [], []
    for at in range(rounds):
        plain.append(alone[at % len(alone)].call("ask_anew", 0, 0))
        fresh += [worker.call("ask_anew", 0, 0) for worker in others]
    first.kill()
    (sharing[0],) = start(1, folder, size, True)
    again = sharing[0].call("ask", 0, 0)
    assert cold.hit == 0
    assert all(answer.hit == 0 for answer in plain)
    assert all(answer.hit >= found for answer in [*fresh, again]), "a hit was expected"
    same = [answer.tokens == plain[0].tokens for answer in [cold, *fresh, again]]
    seconds, pooled = ([answer.seconds for answer in side] for side in (plain, fresh))
    note = f"{sum(same)} of {len(same)} tokens equal"
    report.add(row("kv.ttft", f"{case}, a new worker", pooled, seconds, ">= 3", note))
    report.add(row("kv.ttft_restart", f"{case}, a worker restarted after kill -9", [again.seconds], seconds, ">= 3"))
    report.add(row("kv.ttft_miss", f"{case}, the pool has nothing", [cold.seconds], seconds, "", "stores the prompt"))

    alone[0].call("ask", 0, 0)
    pairs = [(others[0].call("ask", 0, 0), alone[0].call("ask", 0, 0)) for _ in range(2 * rounds + 2)]
    pooled, seconds = ([pair[side].seconds for pair in pairs] for side in (0, 1))
    report.add(row("kv.ttft_warm", f"{case}, a worker that has it itself", pooled, seconds))

    for number in range(1, BEGINNINGS):
        sharing[number % len(sharing)].call("ask", number, 0)
    with_pool, ours = serve(sharing)
    without, theirs = serve(alone)
    hits, own_hits = (sum(answer.hit >= found for answer in side) for side in (ours, theirs))
    equal = sum(mine.tokens == other.tokens for mine, other in zip(ours, theirs, strict=True))
    case = f"vLLM, {BEGINNINGS} beginnings of {size.tokens:,} tokens, an engine keeps {ROOM}"
    # Medians: the best of many at once is that of a worker which the others had left alone.
    pooled, seconds = ([statistics.median(answer.seconds for answer in side)] for side in (ours, theirs))
    report.add(row("kv.ttft_beyond", f"{case}: a request", pooled, seconds, ">= 3"))
    ratio = with_pool / without
    note = f"{with_pool:.3g} requests/s, {without:.3g} without; {hits} and {own_hits} of {len(ours)} hit, {equal} equal"
    case = f"{case}: {size.workers} workers"
    report.add(Row("kv.throughput", case, ratio, "x", "own caches", ratio, None, bar=">= 3", note=note))
    for worker in [*alone, *sharing]:
        worker.kill()  # an engine takes its time to end


def main() -> None:
    options = arguments(__doc__ or "")
    size = QUICK if options.quick else FULL
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    report = Report("Time to first token with vLLM (ratios: how much sooner with the pool)")
    with tempfile.TemporaryDirectory(prefix="openshelf-bench-", dir="/dev/shm") as home:
        os.environ["OPENSHELF_DIR"] = home
        save_model(Path(home) / "model", size)
        with Space.create("ttft", (BEGINNINGS + 1) * size.tokens * size.token_bytes * 3 // 2 + (64 << 20)):
            run(report, f"{home}/model", size, 1 if options.quick else 3)
    report.finish(options.json)


if __name__ == "__main__":
    main()
