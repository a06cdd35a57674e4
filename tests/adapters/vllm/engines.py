"""vLLM engines in processes of their own (tests.processes.Peer), with a pool or without, and what they answer."""

from __future__ import annotations

import importlib
from concurrent.futures import Future
from typing import Any, NamedTuple

from openshelf.errors import Closed
from tests.adapters.vllm.models import BLOCK, BLOCK_BYTES, prompt
from tests.processes import Peer, State

STARTING = 900.0  # seconds: importing vLLM alone takes ten, and more when several do at once

# Float32 sums in another order: see tests/kv/models.py. Of the two best tokens, above which both must choose the same.
MARGIN = 2e-4


class Answer(NamedTuple):
    """`cached`: tokens that were not computed, from the engine's own cache or from the pool."""

    cached: int
    tokens: list[int]
    margins: list[float]


def begin(
    state: State, model: str, options: dict[str, Any] | None, blocks: int, policy: str = "recompute", more: Any = None
) -> None:
    """Starts an engine with so many blocks of its own, and a pool if there are options for it. `more`: vLLM's."""
    vllm: Any = importlib.import_module("vllm")
    given: dict[str, Any] = {
        "skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True, "block_size": BLOCK,
        "max_model_len": 1024, "max_num_batched_tokens": 256, "kv_cache_memory_bytes": blocks * BLOCK_BYTES,
        "enable_lora": True, "max_loras": 2, "max_lora_rank": 8, **(more or {}),
    }  # fmt: skip
    if options is not None:
        given["kv_transfer_config"] = {
            "kv_connector": "OpenshelfConnector",
            "kv_connector_module_path": "openshelf.adapters.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": policy,
            "kv_connector_extra_config": options,
        }
    state["engine"] = vllm.LLM(model, **given)


def ask(
    state: State, prompts: list[list[int]], adapter: tuple[str, str] | None = None, salt: str = "", new: int = 8
) -> list[Answer]:
    """Greedy, all prompts at once. `adapter`: name and folder; `salt`: vLLM's cache_salt."""
    vllm: Any = importlib.import_module("vllm")
    lora: Any = importlib.import_module("vllm.lora.request")
    numbers = state.setdefault("adapters", {})
    request = None
    if adapter is not None:
        number = numbers.setdefault(adapter, len(numbers) + 1)
        request = lora.LoRARequest(adapter[0], number, adapter[1])
    given: list[dict[str, Any]] = [{"prompt_token_ids": tokens} for tokens in prompts]
    if salt:
        given = [{**one, "cache_salt": salt} for one in given]
    how = vllm.SamplingParams(temperature=0, max_tokens=new, logprobs=2, detokenize=False, ignore_eos=True)
    outputs = state["engine"].generate(given, how, lora_request=request, use_tqdm=False)
    return [_answer(output) for output in outputs]


def _answer(output: Any) -> Answer:
    best = [sorted((one.logprob for one in step.values()), reverse=True) for step in output.outputs[0].logprobs]
    return Answer(
        output.num_cached_tokens, list(output.outputs[0].token_ids), [first - second for first, second, *_ in best]
    )


def ask_on_and_on(state: State, seed: int) -> None:
    """Stores and loads, until it is killed: 42 blocks in all."""
    while True:
        for more in range(40):
            ask(state, [prompt(2 * BLOCK, seed) + prompt(BLOCK + 8, seed + more)], new=2)
            drop_own_cache(state)


def drop_own_cache(state: State) -> None:
    """The engine forgets all prefixes that it had itself; the pool stays."""
    assert state["engine"].reset_prefix_cache()


def lose_next_load(state: State, how: str = "gone") -> None:
    """What is found next is gone when it is to be read, or partly gone, or cannot be read."""
    module: Any = importlib.import_module("openshelf.adapters.vllm.worker")
    pool = module.Worker._pool

    class Losing:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def match(self, tokens: Any) -> Any:
            hit = self.inner.match(tokens[: len(tokens) // 2] if how == "part" else tokens)
            return Unreadable(hit.length) if how == "unreadable" else hit

    def lost(self: Any, copy: Any) -> Any:
        module.Worker._pool, state["lost"] = pool, True
        if how == "gone":
            raise Closed("lost by a test")
        return Losing(pool(self, copy))

    module.Worker._pool = lost


class Unreadable:
    """A hit whose every read fails, after it wrote something."""

    def __init__(self, length: int) -> None:
        self.length = length

    def read_pages_async(self, number: int, pages: Any, table: list[int], start: int) -> Future[None]:
        pages[table] = 7.0
        failed: Future[None] = Future()
        failed.set_exception(Closed("lost by a test"))
        return failed


def has_lost(state: State) -> bool:
    return bool(state.pop("lost", False))


def one(engine: Peer, tokens: list[int], *more: Any) -> Answer:
    (answer,) = engine.call(ask, [tokens], *more)
    assert isinstance(answer, Answer)
    return answer


def assert_same(ours: Answer, plain: Answer) -> None:
    """Tokens equal, up to the first whose choice is too close to call."""
    for got, expected, margin in zip(ours.tokens, plain.tokens, plain.margins, strict=True):
        if margin <= MARGIN:
            return
        assert got == expected, f"{ours.tokens} instead of {plain.tokens}"
