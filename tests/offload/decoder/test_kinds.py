"""One model of each kind of cache: the tokens and logits of transformers' own `generate`, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from openshelf import offload  # noqa: E402
from openshelf.errors import CaptureFailed  # noqa: E402
from tests.offload import tiny  # noqa: E402
from tests.offload.models import llama, same  # noqa: E402
from tests.offload.rates import RATES  # noqa: E402

OPTIONS: dict[str, Any] = {"fabric": RATES, "cache": False, "time_limit": 0.1}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": 4 * [1.0], "long_factor": [1.0, 2.0, 3.0, 4.0],
    "factor": 4.0, "original_max_position_embeddings": 12,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 6},
    "lfm2": {
        "num_hidden_layers": 2,
        "layer_types": ["conv", "full_attention"],
    },  # a convolution's state, which keeps its shape
    "mamba": {},  # no attention at all; a prompt is another program at every length
    "deepseek_v3": {"num_key_value_heads": 4, "head_dim": 4},  # keys wider than values
    "falcon": {},  # one head of keys and values; attention is eager
    "phi3": {"rope_parameters": LONGROPE, "max_position_embeddings": 48, "original_max_position_embeddings": 12},
}

pytestmark = pytest.mark.usefixtures("own_cache", "one_thread")


def generated(model: Any, ids: Any, count: int) -> tuple[Any, list[Any]]:
    """By transformers: all tokens, and the logits that each came from."""
    model.generation_config.eos_token_id = None
    how = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True, "pad_token_id": 0}
    found = model.generate(ids, max_new_tokens=count, **how)
    return found.sequences, list(found.logits)


def compare(run: offload.Decoder, model: Any, ids: Any, count: int) -> None:
    tokens, logits = generated(model, ids, count)
    seen: list[Any] = []

    def choose(found: Any) -> Any:
        seen.append(found)
        return found.argmax(-1)

    assert torch.equal(run.generate(ids, count, choose=choose), tokens)
    assert same(seen, logits)


@pytest.mark.parametrize("kind", KINDS)
def test_any_cache_of_a_model_is_decoded(kind: str) -> None:
    model = tiny.made(kind, **{"num_hidden_layers": 1, **KINDS[kind]})
    weights = sum(one.numel() * 4 for one in model.parameters())
    with offload.decode(model, weights + (200 << 10), longest=20, **OPTIONS) as run:
        compare(run, model, tiny.prompt(9), 10)  # longer than a window, and over the end of the short frequencies
        compare(run, model, tiny.prompt(3), 4)


def test_weights_and_states_that_do_not_fit_come_from_below() -> None:
    model = tiny.made("lfm2", num_hidden_layers=2, layer_types=["conv", "full_attention"], vocab_size=2048)
    weights = sum(one.numel() * 4 for one in model.parameters())
    with offload.decode(model, weights * 3 // 4 + (96 << 10), longest=20, kv="flash", **OPTIONS) as run:
        assert run.stays().get("weight", 0) < weights
        assert run.peak < weights + (64 << 10)
        compare(run, model, tiny.prompt(7), 5)


def test_encoder_and_decoder_for_sources_of_any_length() -> None:
    config = transformers.T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, decoder_start_token_id=0
    )
    torch.manual_seed(1)
    model = transformers.T5ForConditionalGeneration(config).eval()
    with offload.decode(model, "2MiB", longest=16, **OPTIONS) as run:
        for length in (9, 4):
            compare(run, model, tiny.prompt(length), 6)
        assert run.length == 6


def test_cache_that_is_made_anew_at_each_token_is_refused() -> None:
    model = llama(num_hidden_layers=1).eval()
    update = transformers.cache_utils.DynamicLayer.update

    def anew(self: Any, keys: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        keys, values = update(self, keys, values, *args, **kwargs)
        self.keys = keys * 2
        return keys, values

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.cache_utils.DynamicLayer, "update", anew)
        with pytest.raises(CaptureFailed, match=r"makes layers\[0\].keys in its cache anew"):
            offload.decode(model, "1MiB", longest=16, **OPTIONS)
