"""What PooledCache refuses, and how it says so."""

# ruff: noqa: E402 (what is skipped must not be imported)
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

from openshelf import KVPool, Layout, Space
from openshelf.adapters.transformers import PooledCache, layout_of
from openshelf.adapters.transformers.layout import check_config
from openshelf.errors import BadInput, Mismatch, OpenshelfError
from tests.adapters.transformers.models import BLOCK, answer, model_of, pool_of, prompt
from tests.junk import raw_errors

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (lambda: transformers.T5Config(), "encoder_outputs=encode"),
        (lambda: transformers.DeepseekV4Config(), "layers of the type .*, which is not known here"),
        (lambda: {"num_hidden_layers": 2}, "model.config"),
    ],
)
def test_caches_that_cannot_be_shared_are_refused(config: Any, text: str) -> None:
    with pytest.raises(OpenshelfError, match=text):
        check_config(config())


@pytest.mark.parametrize("model", ["model.config", "nothing"])
def test_a_cache_needs_the_model_itself(pooled: KVPool, llama: Any, model: str) -> None:
    with pytest.raises(Mismatch, match="a model of transformers is needed"):
        PooledCache(pooled, llama.config if model == "model.config" else object(), prompt(20))


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        ({"attention_mask": [[1, 1]]}, BadInput, "input_ids"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1, 0]]}, BadInput, "on the left"),
        ({"input_ids": [[1, 2, 3]], "attention_mask": [[1, 0, 1]]}, BadInput, "on the left"),
        ({"input_ids": [[1, 2]], "attention_mask": [[0, 0]]}, BadInput, "on the left"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1, 1, 1]]}, BadInput, "give one for each"),
        ({"input_ids": [[1, 2]], "token_type_ids": [[0, 1]]}, BadInput, "token_type_ids"),
        ({"input_ids": [[1, 2]], "token_type_ids": [[0, 0]]}, BadInput, "token_type_ids"),  # GPT-2 adds to each token
        ({"input_ids": [[1, 2]], "pixel_values": [0.5]}, BadInput, "pixel_values"),
        ([[1, 2], [3]], BadInput, "same length"),
        ([], BadInput, "at least one token"),
        ([[[1]]], BadInput, "shape"),
        ([1.5, 2.0], Mismatch, "integers"),
        ("text", OpenshelfError, "token"),
        ([-1, 2, 3], OpenshelfError, "token"),
    ],
)
def test_prompts_that_are_no_rows_of_tokens_are_refused(
    pooled: KVPool, llama: Any, inputs: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        PooledCache(pooled, llama, inputs)


def test_a_harmless_mask_is_taken(pooled: KVPool, llama: Any) -> None:
    inputs = {"input_ids": torch.ones((1, 4), dtype=torch.int64), "attention_mask": torch.ones((1, 4))}
    assert PooledCache(pooled, llama, {**inputs, "token_type_ids": None}).prompt_tokens == 4


def test_padding_that_generate_would_mask_is_refused(space: Space) -> None:
    model = model_of("llama", pad_token_id=0)
    pool = pool_of(space, model)
    with pytest.raises(BadInput, match="padding token 0"):
        PooledCache(pool, model, [0, 0, 5, 6])
    assert PooledCache(pool, model, {"input_ids": [0, 0, 5, 6], "attention_mask": [0, 0, 1, 1]}).prompt_tokens == 4
    assert PooledCache(pool, model, {"input_ids": [0, 5], "attention_mask": [1, 1]}).prompt_tokens == 2


def test_a_pool_of_another_model_is_refused(space: Space, pooled: KVPool, llama: Any) -> None:
    for other in (model_of("gpt2"), model_of("llama", seed=2), model_of("llama").double()):
        with pytest.raises(Mismatch, match=r"the pool is for the model llama-\w+, this one is \w+-\w+"):
            PooledCache(pooled, other, prompt(20))
    named = KVPool(space, layout_of(llama, name="mine"), BLOCK, name="named", capacity="1MiB")
    with pytest.raises(Mismatch, match="the model has 2 layers, the pool's layout 3"):
        PooledCache(named, model_of("llama", num_hidden_layers=2), prompt(20))
    with pytest.raises(Mismatch, match="layer 0 have 4 heads of 16, the pool's layout 2 of 16"):
        answer(model_of("gpt2"), named, prompt(20))
    with pytest.raises(Mismatch, match=r"torch.float64, the pool's layout of float32"):
        answer(model_of("llama").double(), named, prompt(20))
    other = model_of("llama", seed=2)
    layout_of(other)
    with pytest.raises(Mismatch, match="the pool is for the model 'mine' and the adapter '', layout_of"):
        PooledCache(named, other, prompt(20))
    by_hand = KVPool(
        space,
        Layout(pooled.layout.model, layers=3, heads=2, head_dim=16, dtype="float32"),
        BLOCK,
        name="by hand",
        capacity="1MiB",
    )
    with pytest.raises(Mismatch, match="'kthd'"):
        PooledCache(by_hand, llama, prompt(20))
    with pytest.raises(Mismatch, match="KVPool"):
        PooledCache(space, llama, prompt(20))  # type: ignore[arg-type]
    assert pooled.stats()["blocks"] == 0


def test_other_inputs_than_the_cache_was_made_for_are_refused(pooled: KVPool, llama: Any) -> None:
    ids = torch.from_numpy(prompt(40))[None]
    with pytest.raises(BadInput, match="a prompt of 40 tokens, the model was given 41"):
        llama(torch.cat([ids, ids[:, :1]], 1), past_key_values=PooledCache(pooled, llama, ids))
    with pytest.raises(BadInput, match="made for 2 prompts, the model was given 1"):
        llama(ids, past_key_values=PooledCache(pooled, llama, torch.cat([ids, ids])))


def test_other_tokens_than_the_cache_was_made_with_are_refused(pooled: KVPool, llama: Any) -> None:
    answer(llama, pooled, prompt(40))
    ids = torch.from_numpy(prompt(40))[None]
    other = ids.clone()
    other[0, 37] = (other[0, 37] + 1) % 256
    with pytest.raises(BadInput, match=r"other tokens than its PooledCache was made with: \d+ instead of \d+ at 37"):
        llama.generate(other, past_key_values=PooledCache(pooled, llama, ids), max_new_tokens=2, do_sample=False)
    rest = {"input_ids": ids[:, 32:]}
    for given, text in (
        ({"inputs_embeds": torch.zeros(1, 8, 64)}, "inputs_embeds"),
        ({**rest, "attention_mask": torch.tensor([[0] + 39 * [1]])}, "padded"),
        ({**rest, "position_ids": torch.arange(8)[None]}, "from 32"),
    ):
        with pytest.raises(BadInput, match=text):
            llama(**given, past_key_values=PooledCache(pooled, llama, ids))
    llama(**rest, position_ids=torch.arange(32, 40)[None], past_key_values=PooledCache(pooled, llama, ids))
    assert len(llama._forward_pre_hooks) == 1


def test_a_shorter_prompt_is_never_stored_as_the_one_that_was_told(pooled: KVPool, llama: Any) -> None:
    told, options = torch.from_numpy(prompt(40))[None], {"max_new_tokens": 10, "do_sample": False}
    with pytest.raises(BadInput, match="at 35"):
        llama.generate(told[:, :35], past_key_values=PooledCache(pooled, llama, told), **options)
    without_hook = model_of("llama")
    for tokens in (told, told[:, :35]):
        with pytest.raises(BadInput, match="outside of a call of the model"):
            without_hook.generate(tokens, past_key_values=PooledCache(pooled, llama, told), **options)
    assert pooled.stats()["blocks"] == 0


def test_assisted_decoding_is_refused(pooled: KVPool, llama: Any) -> None:
    ids = torch.from_numpy(np.tile(prompt(20), 3))[None]
    with pytest.raises(BadInput, match="assisted decoding"):
        llama.generate(
            ids, past_key_values=PooledCache(pooled, llama, ids), prompt_lookup_num_tokens=3, max_new_tokens=9
        )


def test_only_what_came_of_the_prompt_is_stored(pooled: KVPool, llama: Any) -> None:
    ids = torch.from_numpy(prompt(40))[None]
    cache = PooledCache(pooled, llama, ids)
    with pytest.raises(BadInput, match="holds 0 sequences, got 1"):
        cache.store(ids)
    out = llama.generate(ids, past_key_values=cache, max_new_tokens=10, do_sample=False)
    with pytest.raises(BadInput, match="does not begin with the prompt"):
        cache.store(out + 1)
    with pytest.raises(BadInput, match="does not begin with the prompt"):
        cache.store(out[:, 40:])
    other = out.clone()
    other[0, 45] = (other[0, 45] + 1) % 256
    with pytest.raises(BadInput, match="what followed"):
        cache.store(other)
    with pytest.raises(BadInput, match="holds 1 sequences, got 2"):
        cache.store(torch.cat([out, out]))
    assert cache.store(np.asarray(out))[0].blocks == 3
    cache.crop(-1)
    with pytest.raises(BadInput, match="cropped"):
        cache.store(out)
    cache.reset()
    with pytest.raises(BadInput, match="reset"):
        cache.store(out)


def test_weights_that_are_not_loaded_have_no_fingerprint() -> None:
    with torch.device("meta"):
        model = model_of("llama")
    with pytest.raises(BadInput, match="name="):
        layout_of(model)
    assert layout_of(model, name="llama@1").model == "llama@1"


def test_whatever_is_given_is_taken_or_refused_by_name(space: Space) -> None:
    model = model_of("llama")
    pool, inputs = pool_of(space, model), {"input_ids": prompt(2 * BLOCK)}
    assert raw_errors(lambda junk: PooledCache(junk, model, inputs)) == []
    assert raw_errors(lambda junk: PooledCache(pool, junk, inputs)) == []
    assert raw_errors(lambda junk: PooledCache(pool, model, junk)) == []
    assert raw_errors(lambda junk: PooledCache(pool, model, inputs, ttl=junk)) == []
    assert raw_errors(lambda junk: PooledCache(pool, model, inputs, store=junk)) == []
    with pytest.raises(BadInput, match="store is True or False, got 'no'"):
        PooledCache(pool, model, inputs, store="no")  # type: ignore[arg-type]
