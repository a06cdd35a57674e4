"""Workers that are processes of their own: what one computed the others read, whoever is killed."""

# ruff: noqa: E402 (what is skipped must not be imported)
from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from openshelf import KVPool, Space
from openshelf.adapters.transformers import PooledCache, layout_of
from tests.adapters.transformers.architectures import KINDS as OTHERS
from tests.adapters.transformers.architectures import assert_close, build, logits
from tests.adapters.transformers.models import Answer, answer, assert_same, model_of, pool_of, prompt
from tests.kv.prompts import assert_sound
from tests.processes import Died, Peer, State

KINDS = ("llama", "qwen3", "gpt2")


def begin(state: State) -> None:
    """A worker starts: the same seed, the same weights; it opens the pools that are there."""
    state["space"] = Space.open("shelf")
    state["models"] = {kind: model_of(kind) for kind in KINDS}
    state["pools"] = {kind: pool_of(state["space"], model) for kind, model in state["models"].items()}


def ask(state: State, kind: str, tokens: Any, keep: bool = False) -> Answer:
    return answer(state["models"][kind], state["pools"][kind], tokens, keep=keep)


def ask_kind(state: State, kind: str, tokens: Any) -> tuple[int, Any]:
    """Of another kind of cache: how many tokens were found, and the logits of each step."""
    model = build(kind, **OTHERS[kind])
    pool = KVPool(state["space"], layout_of(model), 16, name=kind, capacity="4MiB")
    ids = torch.from_numpy(tokens)[None]
    cache = PooledCache(pool, model, ids)
    got, _ = logits(model, ids, cache, 4)
    return cache.hit_tokens, got.numpy()


def ask_on_and_on(state: State, kind: str, seed: int) -> None:
    while True:
        seed += 1
        answer(state["models"][kind], state["pools"][kind], np.concatenate([prompt(64), prompt(64, seed)]), new=2)


@pytest.fixture
def workers(space: Space) -> Iterator[tuple[Peer, Peer]]:
    """Two processes, which import torch and transformers at the same time; this one is a third."""
    with Peer() as first, Peer() as second:
        yield first, second
        if first.process.is_alive():
            first.stop()


def test_workers_share_prefixes_and_survive_each_other(space: Space, workers: tuple[Peer, Peer]) -> None:
    models = {kind: model_of(kind) for kind in KINDS}
    pools = {kind: pool_of(space, model) for kind, model in models.items()}
    first, second = workers
    first.call(begin)
    tokens = prompt(100)
    other = np.concatenate([tokens[:50], prompt(30, seed=1)])
    plain = {kind: (answer(models[kind], None, tokens), answer(models[kind], None, other)) for kind in KINDS}
    written: dict[str, Answer] = {}
    for kind in KINDS:  # cold in one process; in another one in whole and in part
        written[kind] = first.call(ask, kind, tokens, True)
        read = answer(models[kind], pools[kind], tokens)
        part = answer(models[kind], pools[kind], other)
        assert (written[kind].hit, written[kind].stored, read.hit, read.stored, part.hit) == (0, 6, 96, 0, 48)
        assert read.kv[:, :, :, :96].tobytes() == written[kind].kv[:, :, :, :96].tobytes()
        for got, expected in zip((written[kind], read, part), plain[kind][:1] + plain[kind], strict=True):
            assert_same(got, expected)

    for kind in ("mistral", "deepseek_v3", "qwen3_next"):
        few = tokens % 91 + 5
        expected, _ = logits(build(kind, **OTHERS[kind]), torch.from_numpy(few)[None], None, 4)
        for hit, (found, got) in zip(
            (0, 96), (first.call(ask_kind, kind, few), ask_kind({"space": space}, kind, few)), strict=True
        ):
            assert found == hit
            assert_close(len(few), zip(torch.from_numpy(got), expected, strict=True))

    # Both compute one new prompt at the same time: one copy of it.
    both = prompt(128, seed=2)
    first.start(ask, "llama", both)
    ours = answer(models["llama"], pools["llama"], both)
    assert_same(first.finish(), ours)
    assert_same(ours, answer(models["llama"], None, both))
    assert pools["llama"].stats()["blocks"] == 6 + 2 + 8

    # Killed while it computes and stores. What was there stays, and a worker that starts now goes on with it.
    first.start(ask_on_and_on, "llama", 1000)
    time.sleep(0.4)
    first.kill()
    with pytest.raises(Died):
        first.finish()
    second.call(begin)
    for kind in KINDS:
        again = second.call(ask, kind, tokens)
        assert again.hit == 96
        assert again.kv[:, :, :, :96].tobytes() == written[kind].kv[:, :, :, :96].tobytes()
        assert_same(again, plain[kind][0])

    # Evicted here: it computes and stores what is missing.
    pools["gpt2"].evict(tokens)
    again = second.call(ask, "gpt2", tokens)
    assert (again.hit, again.stored) == (48, 3)  # another prompt goes on from the third block
    assert_same(again, plain["gpt2"][0])
    for pool in pools.values():
        assert_sound(pool)
