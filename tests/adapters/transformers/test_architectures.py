"""Architectures and ways to scale positions: with the pool each answers as without it, or is refused with a reason."""

# ruff: noqa: E402 (what is skipped must not be imported)
from __future__ import annotations

import re
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from openshelf import KVPool, Space
from openshelf.adapters.transformers import PooledCache, layout_of
from openshelf.errors import BadInput
from tests.adapters.transformers.architectures import SCALINGS, NotBuilt, build, kinds, outcome
from tests.adapters.transformers.models import BLOCK, answer, assert_same, model_of, pool_of, prompt

CHANGING = ("dynamic", "longrope")


def rotated(kind: str) -> Any:
    """A Llama for which calls of more than 64 tokens are long."""
    longest = 64 if kind == "dynamic" else 256
    parameters = {"rope_type": kind, "rope_theta": 10000.0, **({} if kind == "default" else SCALINGS[kind])}
    return model_of("llama", rope_parameters=parameters, num_attention_heads=8, max_position_embeddings=longest)


@pytest.mark.parametrize("kind", ["default", *SCALINGS])
def test_short_and_long_prompts_answer_as_without_a_pool(space: Space, kind: str) -> None:
    model = rotated(kind)
    pool = pool_of(space, model)
    plain = rotated(kind)
    for length in (50, 120, 40, 63, 64, 65, 100, 50):
        tokens = prompt(length)
        ours = answer(model, pool, tokens, new=4, keep=length < 60)
        assert_same(ours, answer(plain, None, tokens, new=4))
        if kind in CHANGING and length > 64:
            assert (ours.hit, ours.stored) == (0, 0)  # other keys than those of a short call
    assert PooledCache(pool, model, prompt(50)).hit_tokens == 48
    far = PooledCache(pool, model, prompt(120))
    assert far.hit_tokens == (0 if kind in CHANGING else 112)


@pytest.mark.parametrize("kind", CHANGING)
def test_what_is_generated_beyond_a_models_reach_is_not_stored(space: Space, kind: str) -> None:
    model = rotated(kind)
    pool = pool_of(space, model)
    ids = torch.from_numpy(prompt(40))[None]
    cache = PooledCache(pool, model, ids)
    out = model.generate(ids, past_key_values=cache, max_new_tokens=80, do_sample=False)
    (stored,) = cache.store(out)
    assert stored.blocks * BLOCK <= 64
    turn = out[0, :62].numpy()
    ours = answer(model, pool, turn, new=1)
    assert ours.hit == 48
    assert_same(ours, answer(rotated(kind), None, turn, new=1))


def test_rotations_that_are_not_known_are_refused() -> None:
    model = model_of("llama")
    model.model.rotary_emb.rope_type = "by the moon"
    with pytest.raises(BadInput, match="the type 'by the moon' are not known"):
        layout_of(model)
    model.model.rotary_emb.rope_type = {"full_attention": "default", "other": "by the sun"}
    with pytest.raises(BadInput, match="the type 'by the sun' are not known"):
        layout_of(model)


RIGHT = (
    "bloom", "gemma", "glm", "gpt_neox", "gptj", "granite", "mixtral", "moshi", "olmoe", "opt", "phi3", "stablelm",
    "starcoder2",
)  # fmt: skip
REFUSED = {
    "deepseek_v4": "DeepseekV4HCACache", "openai-gpt": "neither keys and values nor states",
}  # fmt: skip


@pytest.mark.parametrize("kind", RIGHT)
def test_architectures_answer_as_without_a_pool(space: Space, kind: str) -> None:
    assert outcome(space, build(kind)) == "right"


@pytest.mark.parametrize("kind", REFUSED)
def test_architectures_that_cannot_share_are_refused(space: Space, kind: str) -> None:
    assert re.search(REFUSED[kind], outcome(space, build(kind)))


def test_positions_that_are_counted_by_padding_must_be_given(space: Space) -> None:
    model = build("roberta", pad_token_id=1)
    assert outcome(space, model) == "right"  # generate gives them
    with KVPool(space, layout_of(model), BLOCK, name="alone", capacity="1MiB") as pool:
        tokens = torch.from_numpy(prompt(40) % 90)[None]
        with pytest.raises(BadInput, match="not given position_ids"):
            model(tokens, past_key_values=PooledCache(pool, model, {"input_ids": tokens}))
        assert pool.stats()["blocks"] == 0


def test_generation_without_a_cache_is_refused(space: Space) -> None:
    assert re.search("use_cache=True", outcome(space, build("mpt")))  # by its default


@pytest.mark.soak
@pytest.mark.parametrize("scaling", [None, *SCALINGS])
@pytest.mark.parametrize("kind", kinds())
def test_every_architecture_is_right_or_refused(space: Space, kind: str, scaling: str | None) -> None:
    try:
        assert outcome(space, build(kind, scaling))
    except (NotBuilt, ImportError) as error:
        pytest.skip(f"no tiny model of it runs: {error}")
