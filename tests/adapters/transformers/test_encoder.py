"""What encoders make, from a pool: answers are bit for bit those of `generate` alone, and the encoder rests."""

# ruff: noqa: E402 (what is skipped must not be imported)
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

from openshelf import KVPool, Space
from openshelf.adapters.transformers import PooledCache, encode, layout_of
from openshelf.errors import BadInput, Mismatch

ROWS = torch.arange(5, 5 + 3 * 11).reshape(3, 11)
HOW = {"max_new_tokens": 5, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}


def t5(**changes: Any) -> Any:
    config = transformers.T5Config(
        vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=1, **changes
    )
    torch.manual_seed(1)
    return transformers.T5ForConditionalGeneration(config).eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return t5()


@pytest.fixture
def pool(space: Space, model: Any) -> Iterator[KVPool]:
    with KVPool(space, layout_of(model), capacity="1MiB") as made:
        yield made


def logits(model: Any, inputs: dict[str, Any], **more: Any) -> Any:
    return torch.stack(model.generate(**inputs, **more, **HOW).logits)


def tokenized(rows: Any) -> dict[str, Any]:
    return {"input_ids": rows, "attention_mask": torch.ones_like(rows)}


def test_a_row_that_the_pool_has_is_not_encoded_again(pool: KVPool, model: Any) -> None:
    inputs = tokenized(ROWS[:2])
    expected = logits(model, inputs)
    assert encode(pool, model, inputs).shared_rows == 0
    # Counted by torch itself: a hook on the model would be refused.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        again = encode(pool, model, inputs)
    calls = [event.count for event in seen.key_averages() if event.key in ("aten::mm", "aten::addmm", "aten::bmm")]
    assert (again.shared_rows, calls) == (2, [])
    assert torch.equal(logits(model, inputs, encoder_outputs=again), expected)


def test_rows_that_are_missing_are_encoded_beside_those_that_are_there(pool: KVPool, model: Any) -> None:
    encode(pool, model, tokenized(ROWS[1:2]))
    inputs = tokenized(ROWS)
    made = encode(pool, model, inputs)
    assert made.shared_rows == 1
    expected = logits(model, inputs)
    assert torch.allclose(logits(model, inputs, encoder_outputs=made), expected, rtol=0, atol=1e-5)


def test_padding_is_part_of_a_row(pool: KVPool, model: Any) -> None:
    inputs = tokenized(ROWS)
    inputs["attention_mask"][0, 7:] = 0
    encode(pool, model, tokenized(ROWS))
    made = encode(pool, model, inputs)
    assert made.shared_rows == 2
    assert torch.allclose(logits(model, inputs, encoder_outputs=made), logits(model, inputs), rtol=0, atol=1e-5)


def test_another_model_does_not_get_it(space: Space, pool: KVPool, model: Any) -> None:
    encode(pool, model, tokenized(ROWS))
    other = t5(layer_norm_epsilon=1e-3)
    with pytest.raises(Mismatch, match="the pool is for the model"):
        encode(pool, other, tokenized(ROWS))
    with KVPool(space, layout_of(other)) as theirs:
        assert encode(theirs, other, tokenized(ROWS)).shared_rows == 0


def test_a_model_that_was_changed_is_refused(space: Space) -> None:
    model = t5()
    with KVPool(space, layout_of(model), name="changed", capacity="1MiB") as pool:
        encode(pool, model, tokenized(ROWS))
        with torch.no_grad():
            model.shared.weight += 1
        with pytest.raises(BadInput, match=r"the weight .* was changed"):
            encode(pool, model, tokenized(ROWS))


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"inputs_embeds": torch.zeros(1, 3, 32)}, "expected input_ids and attention_mask, got inputs_embeds"),
        ({**tokenized(ROWS), "token_type_ids": ROWS}, "got input_ids, attention_mask, token_type_ids"),
        ({"input_ids": ROWS, "attention_mask": torch.ones(3, 4)}, r"of the shape \(3, 11\); got the shape \(3, 4\)"),
        (torch.zeros(1, 3, dtype=torch.int64), "contains the padding token 0"),
    ],
)
def test_what_is_more_than_tokens_and_their_mask_is_refused(pool: KVPool, model: Any, inputs: Any, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        encode(pool, model, inputs)


def test_each_kind_of_model_is_sent_to_its_own_call(pool: KVPool, model: Any) -> None:
    with pytest.raises(BadInput, match="encoder_outputs=encode"):
        PooledCache(pool, model, ROWS)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4
    )
    with pytest.raises(BadInput, match="llama has no encoder: give generate a PooledCache"):
        encode(pool, transformers.LlamaForCausalLM(config).eval(), ROWS)


def test_a_pool_that_is_gone_stops_nothing(space: Space, model: Any) -> None:
    pool = KVPool(space, layout_of(model), name="gone", capacity="1MiB")
    expected = logits(model, tokenized(ROWS))
    pool.close()
    with pytest.warns(RuntimeWarning, match="nothing was read"):
        made = encode(pool, model, tokenized(ROWS))
    assert torch.equal(logits(model, tokenized(ROWS), encoder_outputs=made), expected)
