"""Decoding with the KV cache in a tier below: logits and tokens of transformers, bit for bit, in every bucket."""

from __future__ import annotations

import gc
import re
import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from openshelf import offload  # noqa: E402
from openshelf.errors import BadInput, Closed, NoRoom  # noqa: E402
from tests.offload.models import VOCABULARY, llama, made, same  # noqa: E402
from tests.offload.rates import RATES  # noqa: E402

OPTIONS: dict[str, Any] = {"fabric": RATES, "cache": False, "time_limit": 0.1}
# Sectors of 64 tokens, of 2 heads; the smallest bucket has 256.
HEADS = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16}


pytestmark = pytest.mark.usefixtures("own_cache", "one_thread")


def prompt(batch: int, length: int, seed: int = 0) -> Any:
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


class Plain:
    """transformers with a cache of its own, fed the same pieces."""

    def __init__(self, model: Any) -> None:
        self.model, self.cache = model, transformers.DynamicCache()

    def feed(self, ids: Any) -> Any:
        with torch.no_grad():
            result = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        return result.logits[:, -1]


def generated(run: offload.Decoder, plain: Plain, ids: Any, pieces: list[int], steps: int) -> None:
    """Prefill and steps of both give the same bits; the next token is the likeliest."""
    ours = run.prefill(ids)
    for piece in torch.split(ids, pieces, 1):
        theirs = plain.feed(piece)
    assert same([ours], [theirs])
    for step in range(steps):
        token = theirs.argmax(-1, keepdim=True)
        ours, theirs = run.step(token), plain.feed(token)
        assert same([ours], [theirs]), step


@pytest.mark.parametrize("kv", ["dram", "flash"])
def test_context_grows_through_buckets_larger_than_memory(kv: Any) -> None:
    model = llama(num_hidden_layers=3, **HEADS).eval()
    ids = prompt(2, 230)
    weights = sum(one.numel() * 4 for one in model.parameters())
    longest = 320
    cached = 3 * 2 * 2 * 2 * longest * 64  # layers, keys and values, sequences, heads
    with offload.decode(model, weights + cached, longest=longest, batch=2, chunk=32, kv=kv, **OPTIONS) as run:
        assert run.stays(longest - 1).get("kv", 0) < cached // 2  # activations of a piece have their room, too
        assert run.peak <= weights + cached
        generated(run, Plain(model), ids, [6, *[32] * 7], 40)  # over 256 tokens, and a sector's 64
        assert run.length == 270
        assert run.lanes()[f"{kv}_read"].nbytes > 2 * cached
        generated(run, Plain(model), prompt(2, 3, seed=1), [3], 5)  # a new context


def test_weights_stream_too_from_a_checkpoint(tmp_path: Path) -> None:
    model = made("qwen").eval()
    model.save_pretrained(tmp_path / "checkpoint")
    weights = sum(one.numel() * 4 for one in model.parameters())
    with torch.device("meta"):
        empty = transformers.Qwen3ForCausalLM(model.config).eval()
    options = {"longest": 40, "chunk": 8, "weights": tmp_path / "checkpoint", **OPTIONS}
    with offload.decode(empty, weights * 3 // 4, kv="flash", **options) as run:
        assert run.stays().get("weight", 0) < weights
        generated(run, Plain(model), prompt(1, 17), [1, 8, 8], 6)
        assert run.lanes()["flash_read"].nbytes > weights * 3


def test_generates_what_transformers_generates() -> None:
    model = made("gpt2").eval()
    model.generation_config.eos_token_id = None
    with offload.decode(model, "3MiB", longest=48, **OPTIONS) as run:
        ids = prompt(1, 11)
        ours = run.generate(ids, 20)
        assert run.peak < 2 << 20  # all stays, and more would not be used
        assert torch.equal(ours, model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0))
        stop = int(ours[0, 14])
        early = run.generate(ids[0], 20, stop=stop)
        assert torch.equal(early, ours[:, : 12 + ours[0, 11:].tolist().index(stop)])
        with pytest.raises(BadInput, match="1 to longest=48"):
            run.prefill(prompt(1, 49))
        run.prefill(prompt(1, 48))
        with pytest.raises(NoRoom, match="the context is full"):
            run.step([3])
        with pytest.raises(BadInput, match="one token"):
            run.step(prompt(1, 2))
        with pytest.raises(BadInput, match="of 1 sequences"):
            run.prefill(prompt(2, 4))
    with pytest.raises(Closed):
        run.prefill(ids)


def test_a_padded_batch_is_refused() -> None:
    model = made("llama").eval()
    model.config.pad_token_id = pad = 7
    text = prompt(2, 6).clamp(min=pad + 1)
    with offload.decode(model, "1MiB", longest=48, batch=2, **OPTIONS) as run:
        for at in (0, -1):
            padded = text.clone()
            padded[1, at] = pad
            for call in (run.prefill, lambda ids: run.generate(ids, 3)):
                with pytest.raises(BadInput, match="sequence 1 is padded with the token 7"):
                    call(padded)
        with pytest.raises(BadInput, match="2 sequences of equal length: expected sequence of length 3"):
            run.prefill([[11, 12, 13], [11, 12]])
        stopped = run.generate(text, 4, stop=pad)
        assert torch.equal(stopped[:, :6], text)
    model.config.eos_token_id = pad  # it is text, too
    with offload.decode(model, "1MiB", longest=48, batch=2, **OPTIONS) as run:
        run.prefill(padded)


@pytest.mark.parametrize("kv", ["dram", "flash"])
def test_a_token_that_fails_anywhere_can_be_made_again(kv: Any) -> None:
    model = made("llama").eval()
    with offload.decode(model, "300KiB", longest=64, kv=kv, **OPTIONS) as run:
        assert "kv" not in run.stays()  # it moves
        first = run.prefill(prompt(1, 21))
        expected = run.step([5])
        (program,) = (one for (growth, _), one in run._runs.items() if not growth.fresh)
        plain = program._instructions
        for number in range(len(plain)):
            run.prefill(prompt(1, 21))
            program._instructions = [*plain[:number], (interrupt, (), {}), *plain[number:]]
            with pytest.raises(Interrupted):
                run.step([5])
            program._instructions = plain
            if kv == "flash":
                with pytest.raises(Closed, match="half-way"):
                    run.step([5])
                break
            assert torch.equal(run.step([5]), expected)
    if kv == "flash":  # a prompt loses nothing
        with offload.decode(model, "300KiB", longest=64, kv=kv, **OPTIONS) as run:
            with pytest.raises(BadInput, match="index out of range"):
                run.prefill(torch.full((1, 21), 100_000))
            assert torch.equal(run.prefill(prompt(1, 21)), first)


def interrupt() -> None:
    raise Interrupted


class Interrupted(BaseException):
    """As Ctrl-C."""


def test_refusals() -> None:
    with pytest.raises(NoRoom, match="the least that works") as error:
        offload.decode(made("llama").eval(), "1KiB", longest=64, chunk=32, **OPTIONS)
    least = int(re.findall(r"works is (\d+) bytes", str(error.value))[0])
    with offload.decode(made("llama").eval(), least, longest=64, chunk=32, **OPTIONS) as run:
        with pytest.raises(BadInput, match="how many tokens to generate, got -1"):
            run.generate(prompt(1, 11), -1)
        with pytest.raises(NoRoom, match="11 tokens and 60 more do not fit longest=64"):
            run.generate(prompt(1, 11), 60)
        assert run.generate(prompt(1, 11), 54).shape == (1, 65)
        with pytest.raises(BadInput, match=r"not assistant_model= \(there are no assistant models\), penalty_alpha=;"):
            run.generate(prompt(1, 11), 5, assistant_model=made("llama"), penalty_alpha=0.6)
        with pytest.raises(BadInput, match=r"not input_ids= .*, max_new_tokens= \(that is `count`\); .*wrap"):
            run.generate(input_ids=prompt(1, 11), max_new_tokens=5)
        with pytest.raises(BadInput, match="needs both"):
            run.generate(prompt(1, 11))
        with pytest.raises(BadInput, match="got a BatchEncoding: give its input_ids"):
            run.prefill(transformers.BatchEncoding({"input_ids": prompt(1, 11)}))
    with pytest.raises(NoRoom, match="the least that works"):
        offload.decode(made("llama").eval(), least - 4096, longest=64, chunk=32, **OPTIONS)
    with pytest.raises(BadInput, match="a language model of transformers"):
        offload.decode(torch.nn.Linear(2, 2), "1MiB", longest=64, **OPTIONS)
    with pytest.raises(BadInput, match="'dram' or on 'flash'"):
        offload.decode(made("llama"), "1MiB", longest=64, kv="tape", **OPTIONS)  # type: ignore[arg-type]


def test_model_whose_ways_change_at_a_length_is_two_programs() -> None:
    model = llama().eval()
    plain, inner = model.lm_head.forward, model.model.forward

    def forward(hidden: Any) -> Any:
        past = model.past_key_values.get_seq_length()
        return plain(hidden) if past < 30 else plain(hidden) * 2

    def remember(*args: Any, **kwargs: Any) -> Any:
        model.past_key_values = kwargs["past_key_values"]
        return inner(*args, **kwargs)

    model.model.forward, model.lm_head.forward = remember, forward
    with offload.decode(model, "1MiB", longest=64, **OPTIONS) as run:
        generated(run, Plain(model), prompt(1, 26), [26], 6)


def test_weights_of_the_model_can_be_let_go_of() -> None:
    model = llama(num_hidden_layers=1).eval()
    expected = Plain(model).feed(prompt(1, 1))
    weight = weakref.ref(model.lm_head.weight)
    with offload.decode(model, "1MiB", longest=16, **OPTIONS) as run:
        del model
        gc.collect()
        assert weight() is None
        assert same([run.prefill(prompt(1, 1))], [expected])  # a length that was not captured before


def test_model_without_weights_is_refused_before_it_is_captured() -> None:
    with torch.device("meta"):
        model = llama().eval()
    model.forward = None  # nobody gets so far
    with pytest.raises(BadInput, match=r"'model.embed_tokens.weight' and .* on the meta device.*weights="):
        offload.decode(model, "1MiB", longest=64, **OPTIONS)
