"""Caches that are not keys and values of all tokens: each answers as without a pool, whatever the pool had."""

# ruff: noqa: E402 (what is skipped must not be imported)
from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from openshelf import KVPool, Space
from openshelf.adapters.transformers import PooledCache, layout_of
from openshelf.errors import BadInput
from tests.adapters.transformers.architectures import KINDS, assert_close, build
from tests.adapters.transformers.models import BLOCK, model_of, prompt
from tests.kv.prompts import assert_sound

STATES = ("qwen3_next", "lfm2", "mamba")
TOKENS = prompt(100) % 91 + 5


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {kind: build(kind, **changes) for kind, changes in KINDS.items()}


def pool_of(space: Space, model: Any, blocks: int = 400) -> KVPool:
    layout = layout_of(model)
    capacity = 130 * 1024 + blocks * (layout.block_bytes(BLOCK) + 1000)
    return KVPool(space, layout, BLOCK, name=f"kv {layout.model} {blocks}", capacity=capacity)


def generate(model: Any, inputs: dict[str, Any], cache: Any, new: int, **options: Any) -> Any:
    """Logits of each step, and what came out."""
    if cache is not None:
        options["cache_params" if model.config.model_type == "mamba" else "past_key_values"] = cache
    out = model.generate(
        **inputs, max_new_tokens=new, do_sample=False, output_logits=True, return_dict_in_generate=True, **options
    )
    return torch.stack(out.logits, 1), out.sequences


def ask(pool: KVPool, model: Any, tokens: Any, new: int = 3, keep: bool = False) -> tuple[int, Any]:
    """Asserts that the answer is that without a pool. The tokens that were found, and what came out."""
    inputs = {"input_ids": torch.from_numpy(np.asarray(tokens))[None]}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    expected, _ = generate(model, inputs, None, new)
    cache = PooledCache(pool, model, inputs)
    got, out = generate(model, inputs, cache, new)
    assert_close(len(tokens), zip(got[0], expected[0], strict=True))
    if keep:
        cache.store(out)
    return cache.hit_tokens, out[0].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_answers_as_without_a_pool(space: Space, models: dict[str, Any], kind: str) -> None:
    model = models[kind]
    with pool_of(space, model) as pool:
        assert ask(pool, model, TOKENS[:40])[0] == 0
        hit, out = ask(pool, model, TOKENS, new=16, keep=True)
        assert hit == (0 if kind == "mamba" else 32)  # it would have to compute 68 tokens one by one
        assert ask(pool, model, TOKENS)[0] == 96
        turn = np.concatenate([out, TOKENS[:5]])
        assert ask(pool, model, turn)[0] == 112  # what was generated, too
        for seed, states in ((1, 32), (2, 64)):  # states are saved where another prompt was seen to end
            other = np.concatenate([TOKENS[:70], prompt(20, seed) % 91 + 5])
            hit, _ = ask(pool, model, other)
            assert hit == (64 if kind not in STATES else 0 if kind == "mamba" else states)
        assert_sound(pool)


@pytest.mark.parametrize("kind", ["mistral", "deepseek_v3", "qwen3_next"])
def test_a_pool_that_evicts_serves_on(space: Space, models: dict[str, Any], kind: str) -> None:
    model = models[kind]
    with pool_of(space, model, blocks=8) as pool:
        for seed in (3, 4, 5):
            other = np.concatenate([TOKENS[:50], prompt(60, seed) % 91 + 5])
            ask(pool, model, other, keep=True)
            ask(pool, model, other)
        assert pool.stats()["evicted_blocks"]
        assert_sound(pool)


def test_blocks_before_a_window_that_were_evicted_are_not_made_up(space: Space, models: dict[str, Any]) -> None:
    model = models["mistral"]
    with pool_of(space, model) as pool:
        ask(pool, model, TOKENS)
        inputs = {"input_ids": torch.from_numpy(TOKENS)[None]}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        cache = PooledCache(pool, model, inputs)
        assert cache.hit_tokens == 96
        while pool.present(TOKENS):  # held while it is read in the background
            pool.clear()
        _, out = generate(model, inputs, cache, 3)
        assert cache.stored[0].declined == cache.store(out)[0].declined == 6  # it has tokens from 64 on
        assert pool.stats()["blocks"] == 0


@pytest.mark.parametrize("kind", ["mistral", "qwen3_next"])
def test_beams_go_on_from_a_prefix_of_any_kind(space: Space, models: dict[str, Any], kind: str) -> None:
    model = models[kind]
    ids = torch.from_numpy(TOKENS[:60])[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with pool_of(space, model) as pool:
        ask(pool, model, TOKENS[:60])
        cache = PooledCache(pool, model, inputs)
        assert cache.hit_tokens == 48
        how = {"num_beams": 2, "max_new_tokens": 5, "do_sample": False}
        assert torch.equal(model.generate(**inputs, **how, past_key_values=cache), model.generate(**inputs, **how))
        cache = PooledCache(pool, model, inputs)
        _, out = generate(model, {key: torch.cat([of, of]) for key, of in inputs.items()}, cache, 2)
        assert [done.blocks for done in cache.store(out)] == [3, 3]  # several answers, none at the end of a block


@pytest.mark.parametrize("kind", ["llama", "mistral", "deepseek_v3", "qwen3_next"])
def test_padded_prompts_share_with_those_that_are_not(space: Space, models: dict[str, Any], kind: str) -> None:
    model = models[kind] if kind in models else build(kind)
    rows, pads = torch.from_numpy(np.tile(TOKENS[:60], (3, 1))), (0, 7, 30)
    mask = torch.ones_like(rows)
    for row, pad in enumerate(pads):
        rows[row, pad:] = torch.from_numpy(TOKENS[: 60 - pad])
        rows[row, :pad] = 5
        mask[row, :pad] = 0
    inputs = {"input_ids": rows, "attention_mask": mask}
    with pool_of(space, model) as pool:
        expected, _ = generate(model, inputs, None, 4)
        for hit in (0, 0 if kind in STATES else 55):  # 48 tokens behind 7 of padding; 25 of 32 behind 30
            cache = PooledCache(pool, model, inputs)
            assert cache.hit_tokens == min(hit, 46)
            got, out = generate(model, inputs, cache, 4)
            for row in range(3):
                assert_close(60, zip(got[row], expected[row], strict=True))
            cache.store(out)
        assert ask(pool, model, TOKENS[:60])[0] == (0 if kind in STATES else 48)


def test_padding_that_is_counted_is_refused(space: Space, models: dict[str, Any]) -> None:
    model = models["mistral"]
    inputs = {"input_ids": torch.from_numpy(TOKENS[:40])[None], "attention_mask": torch.tensor([3 * [0] + 37 * [1]])}
    pool = pool_of(space, model)
    cache = PooledCache(pool, model, inputs)
    with pytest.raises(BadInput, match="not given position_ids"):
        model(**inputs, past_key_values=cache)
    with pytest.raises(BadInput, match="position_ids must count from the prompt's start, padding left out"):
        model(**inputs, position_ids=torch.arange(40)[None], past_key_values=cache)
    with pytest.raises(BadInput, match=r"padded by \[3\] tokens"):
        model(inputs["input_ids"], attention_mask=torch.ones(1, 40), past_key_values=cache)
    bart = build("bart")
    with pytest.raises(BadInput, match="bart is not the same for padded prompts"):
        PooledCache(pool_of(space, bart), bart, inputs)


def test_a_state_is_gone_on_from_as_the_model_can(space: Space, models: dict[str, Any]) -> None:
    model = models["mamba"]
    with pool_of(space, model) as pool:
        ids = torch.from_numpy(TOKENS[:40])[None]
        ask(pool, model, TOKENS[:40])
        cache = PooledCache(pool, model, ids)
        assert cache.hit_tokens == 32
        with pytest.raises(BadInput, match="mamba forgets its state in a call of several tokens"):
            model(ids[:, 32:], cache_params=cache)
        with pytest.raises(BadInput, match="states were asked for outside of a call"):
            cache.get_conv_state(0)


def test_a_removed_space_is_a_miss_and_said_once(space: Space) -> None:
    model = model_of("llama")
    other = Space.create("removed", dram="16MiB")
    pool = KVPool(other, layout_of(model), BLOCK, capacity="2MiB")
    ids = torch.from_numpy(prompt(40))[None]
    before = PooledCache(pool, model, ids)
    Space.remove("removed")
    with pytest.warns(RuntimeWarning, match="nothing is shared any more: the space 'removed' was removed"):
        cache = PooledCache(pool, model, ids)
    plain = model.generate(ids, max_new_tokens=3, do_sample=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in (cache, PooledCache(pool, model, ids), before):
            assert (each.hit_tokens, each.stored) == (0, ())
            out = model.generate(ids, past_key_values=each, max_new_tokens=3, do_sample=False)
            assert torch.equal(out, plain)
            assert each.store(out) == ()


def test_what_is_kept_must_be_tried(models: dict[str, Any]) -> None:
    with torch.device("meta"):
        model = build("deepseek_v3", **KINDS["deepseek_v3"])
    with pytest.raises(BadInput, match="known when it has run once: load its weights"):
        layout_of(model, name="deepseek@1")
    llama = model_of("llama")
    llama.model.rope_deltas = None
    with pytest.raises(BadInput, match="model keeps how far the last call's images moved positions"):
        layout_of(llama)


@pytest.mark.parametrize(("kind", "changes"), [("doge", {"keep_window_size": 64}), ("moshi", {"sliding_window": 64})])
def test_models_that_see_other_tokens_in_long_calls_share_short_prompts(
    space: Space, kind: str, changes: dict[str, Any]
) -> None:
    model = build(kind, **changes)
    with pool_of(space, model) as pool:
        for length, hit in ((40, 0), (60, 32), (100, 0), (60, 48)):
            assert ask(pool, model, TOKENS[:length])[0] == hit
