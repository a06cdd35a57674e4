"""PooledCache in one process: generation with the pool is generation without it, whatever the pool had."""

# ruff: noqa: E402 (what is skipped must not be imported)
from __future__ import annotations

import copy
import importlib
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from openshelf import KVPool, Space
from openshelf.adapters.transformers import PooledCache, fingerprint, layout_of
from openshelf.errors import MissingExtra
from tests.adapters.transformers.models import (
    BLOCK,
    KINDS,
    LOGITS_MAY_DIFFER,
    answer,
    assert_same,
    kv_of,
    model_of,
    pool_of,
    prompt,
)
from tests.kv.prompts import assert_sound


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest) -> Any:
    return model_of(request.param)


def test_cold_partial_and_full_hits_change_nothing(space: Space, model: Any) -> None:
    pool = pool_of(space, model)
    tokens = prompt(100)
    plain = answer(model, None, tokens)
    cold, full = answer(model, pool, tokens), answer(model, pool, tokens)
    assert (cold.hit, cold.stored) == (0, 6)
    assert (full.hit, full.stored) == (96, 0)
    assert_same(cold, plain)
    assert_same(full, plain)
    other = np.concatenate([tokens[:70], prompt(50, seed=1)])
    partial = answer(model, pool, other)
    assert (partial.hit, partial.stored) == (64, 3)
    assert_same(partial, answer(model, None, other))
    assert_sound(pool)


def test_bytes_read_are_those_written(space: Space, model: Any) -> None:
    pool = pool_of(space, model)
    tokens = prompt(100)
    written = answer(model, pool, tokens).kv
    read = kv_of(PooledCache(pool, model, tokens))
    assert read.tobytes() == written[:, :, :, :96].tobytes()
    with pool.match(tokens) as hit:
        assert hit.read().tobytes() == written[:, :, :, :96].tobytes()


def test_the_last_token_is_never_taken_from_the_pool(pooled: KVPool, llama: Any) -> None:
    tokens = prompt(64)
    answer(llama, pooled, tokens)
    assert pooled.contains(tokens)
    whole = answer(llama, pooled, tokens)
    assert whole.hit == 48
    assert_same(whole, answer(llama, None, tokens))
    assert PooledCache(pooled, llama, [5]).hit_tokens == 0


def test_a_wrong_block_would_show(pooled: KVPool, llama: Any) -> None:
    """The bound of the other tests means something: one foreign block of six moves logits far beyond it."""
    tokens = prompt(100)
    good = answer(llama, pooled, tokens)
    cache = PooledCache(pooled, llama, tokens)
    for layer in cache.layers:
        layer.keys[:, :, 16:32] = layer.keys[:, :, 32:48]
    moved = llama(torch.from_numpy(tokens)[None, 96:], past_key_values=cache).logits[0, -1].detach().numpy()
    assert np.abs(moved - good.logits[0]).max() > 100 * LOGITS_MAY_DIFFER


def test_what_was_generated_serves_the_next_turn(pooled: KVPool, llama: Any) -> None:
    first = answer(llama, pooled, prompt(60), new=40, keep=True)
    assert first.stored == 6  # of 99 tokens with keys and values
    turn = np.concatenate([prompt(60), first.tokens, prompt(20, seed=1)])
    second = answer(llama, pooled, turn)
    assert second.hit == 96
    assert_same(second, answer(llama, None, turn))


def test_after_eviction_the_rest_is_computed(pooled: KVPool, llama: Any) -> None:
    tokens = prompt(100)
    plain = answer(llama, pooled, tokens)
    pooled.evict(tokens, keep=32)
    again = answer(llama, pooled, tokens)
    assert (again.hit, again.stored) == (32, 4)
    assert_same(again, plain)
    pooled.clear()
    assert answer(llama, pooled, tokens).hit == 0


def test_a_pool_with_no_room_serves_on(space: Space, llama: Any) -> None:
    block = layout_of(llama).block_bytes(BLOCK)
    with pool_of(space, llama, capacity=80 * 1024 + 8 * (block + 200)) as pool:
        for seed in range(4):
            tokens = prompt(200, seed)
            assert_same(answer(llama, pool, tokens), answer(llama, None, tokens))
            assert_same(answer(llama, pool, tokens), answer(llama, None, tokens))
        stats = pool.stats()
        assert stats["capacity_blocks"] < 12
        assert_sound(pool)


def test_what_was_evicted_after_it_was_read_is_stored_again(pooled: KVPool, llama: Any) -> None:
    tokens = prompt(100)
    plain = answer(llama, pooled, tokens)
    cache = PooledCache(pooled, llama, tokens)
    while pooled.present(tokens):  # held while it is read in the background
        pooled.clear()
    out = llama(torch.from_numpy(tokens)[None, 96:], past_key_values=cache).logits[0, -1].detach().numpy()
    assert np.abs(out - plain.logits[0]).max() < LOGITS_MAY_DIFFER
    assert cache.stored[0].stored == 6  # the whole prompt is put again: the cache has it


def test_a_batch_of_equal_lengths_hits_as_far_as_all_do(pooled: KVPool, llama: Any) -> None:
    rows = np.stack([prompt(80), np.concatenate([prompt(40), prompt(40, seed=1)])])
    answer(llama, pooled, rows[0])
    ids = torch.from_numpy(rows)
    plain = llama.generate(ids, max_new_tokens=6, do_sample=False)
    for hit in (32, 64):
        cache = PooledCache(pooled, llama, ids)
        assert cache.hit_tokens == hit
        assert torch.equal(llama.generate(ids, past_key_values=cache, max_new_tokens=6, do_sample=False), plain)
    assert [done.present for done in cache.stored] == [5, 5]


@pytest.mark.parametrize("warm", [False, True])
def test_beams_and_several_answers_share_their_prompt(pooled: KVPool, llama: Any, warm: bool) -> None:
    ids = torch.from_numpy(prompt(50))[None]
    if warm:
        answer(llama, pooled, prompt(50))
    ways: list[dict[str, Any]] = [
        {"num_beams": 3, "do_sample": False},
        {"num_return_sequences": 2, "do_sample": True},
    ]
    for way in ways:
        torch.manual_seed(3)
        plain = llama.generate(ids, max_new_tokens=20, **way)
        cache = PooledCache(pooled, llama, ids)
        torch.manual_seed(3)
        out = llama.generate(ids, past_key_values=cache, max_new_tokens=20, **way)
        assert torch.equal(out, plain)
        if "num_beams" in way:
            with pytest.raises(ValueError, match="beam search"):
                cache.store(out)
        else:
            assert [done.blocks for done in cache.store(out)] == [4, 4]
            assert PooledCache(pooled, llama, out[1]).hit_tokens == 64


def test_a_prefill_in_chunks_is_stored_whole(pooled: KVPool, llama: Any) -> None:
    tokens = prompt(100)
    first = answer(llama, pooled, tokens, prefill_chunk_size=30)
    assert first.stored == 6
    assert_same(answer(llama, pooled, tokens, prefill_chunk_size=2), answer(llama, None, tokens))
    assert answer(llama, pooled, prompt(33, seed=1), prefill_chunk_size=1).stored == 2


def test_a_copy_of_a_cache_goes_its_own_way(pooled: KVPool, llama: Any) -> None:
    tokens = prompt(64)
    answer(llama, pooled, tokens)
    ids = torch.from_numpy(tokens)[None]
    cache = PooledCache(pooled, llama, ids)
    twin = copy.deepcopy(cache)
    outs = [llama.generate(ids, past_key_values=each, max_new_tokens=9, do_sample=False) for each in (cache, twin)]
    assert torch.equal(*outs)
    assert cache.layers[0].keys.data_ptr() != twin.layers[0].keys.data_ptr()
    assert [each.stored[0].present for each in (cache, twin)] == [4, 4]


def test_the_model_itself_may_be_called(pooled: KVPool, llama: Any) -> None:
    tokens = torch.from_numpy(prompt(40))[None]
    with torch.inference_mode():
        cache = PooledCache(pooled, llama, tokens)
        plain = llama(tokens, past_key_values=cache).logits[0, -1]
        again = PooledCache(pooled, llama, tokens)
        last = llama(tokens[:, 32:], past_key_values=again).logits[0, -1]
    assert again.hit_tokens == 32
    assert (plain - last).abs().max() < LOGITS_MAY_DIFFER
    follows = llama(torch.tensor([[3]]), past_key_values=again)  # gradients on, and on what inference mode made
    assert follows.logits.requires_grad
    assert again.get_seq_length() == 41


def test_other_weights_configurations_and_adapters_never_hit(space: Space, llama: Any) -> None:
    tokens = prompt(64)
    others = [model_of("llama", seed=2), model_of("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e5})]
    layouts = [layout_of(llama), *(layout_of(other) for other in others), layout_of(llama, adapter="lora")]
    pools = [KVPool(space, layout, BLOCK, capacity="4MiB") for layout in layouts]
    for model, pool in zip([llama, *others, llama], pools, strict=True):
        assert_same(answer(model, pool, tokens), answer(model, None, tokens))
        assert answer(model, pool, tokens).hit == 48
    assert pools[0].stats()["blocks"] == 16  # one pool's room, four times the prompt
    assert PooledCache(pools[0].for_tenant("other"), llama, tokens).hit_tokens == 0


def test_a_fingerprint_sees_every_weight_and_no_name(llama: Any) -> None:
    twin = model_of("llama")
    twin.config._name_or_path = "/tmp/elsewhere"
    before = fingerprint(llama)
    assert fingerprint(twin) == before
    with torch.no_grad():
        twin.model.layers[2].mlp.down_proj.weight[5, 7] += 1e-6
    assert fingerprint(twin) != before
    assert layout_of(llama, name="mine@1").model == "mine@1"


def test_an_interrupted_prefill_leaves_nothing(pooled: KVPool, llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = prompt(64)
    act = llama.model.layers[1].mlp.act_fn
    with monkeypatch.context() as patch:
        patch.setattr(type(act), "forward", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            answer(llama, pooled, tokens)
    assert pooled.present(tokens) == 0
    assert answer(llama, pooled, tokens).stored == 4


def test_trouble_with_the_pool_does_not_stop_a_generation(space: Space, llama: Any) -> None:
    tokens = torch.from_numpy(prompt(64))[None]
    pool = pool_of(space, llama)
    cache = PooledCache(pool, llama, tokens)
    pool.close()
    with pytest.warns(RuntimeWarning, match="not stored"):
        out = llama.generate(tokens, past_key_values=cache, max_new_tokens=5, do_sample=False)
    assert torch.equal(out, llama.generate(tokens, max_new_tokens=5, do_sample=False))
    assert cache.stored == ()


def test_nothing_is_stored_unless_wanted(pooled: KVPool, llama: Any) -> None:
    tokens = torch.from_numpy(prompt(64))[None]
    cache = PooledCache(pooled, llama, tokens, store=False)
    llama.generate(tokens, past_key_values=cache, max_new_tokens=2, do_sample=False)
    reset = PooledCache(pooled, llama, tokens)
    reset.reset()
    llama.generate(tokens[:, :50], past_key_values=reset, max_new_tokens=2, do_sample=False)
    assert pooled.stats()["blocks"] == 0


def test_a_time_to_live_is_passed_on(pooled: KVPool, llama: Any) -> None:
    tokens = torch.from_numpy(prompt(64))[None]
    cache = PooledCache(pooled, llama, tokens, ttl=0.05)
    out = llama.generate(tokens, past_key_values=cache, max_new_tokens=20, do_sample=False)
    cache.store(out)
    time.sleep(0.1)
    assert PooledCache(pooled, llama, tokens).hit_tokens == 0


def test_layouts_are_those_of_the_models(model: Any) -> None:
    layout = layout_of(model)
    kind = model.config.model_type
    heads, width = {"llama": (2, 16), "qwen2": (2, 16), "qwen3": (2, 32), "gpt2": (4, 16)}[kind]
    assert (layout.layers, layout.heads, layout.head_dim) == (3, heads, width)
    assert (layout.dtype, layout.order, layout.adapter) == ("float32", "khtd", "")
    assert replace(layout, adapter="x") != layout


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.cache_utils", None)
    for name in [name for name in sys.modules if name.startswith("openshelf.adapters.transformers")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match=r"openshelf\[transformers\]"):
        importlib.import_module("openshelf.adapters.transformers")
