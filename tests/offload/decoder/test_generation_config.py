"""What a model's generation config says of tokens: some are forced, one may stand for padding."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from openshelf import offload  # noqa: E402
from tests.offload.rates import RATES  # noqa: E402

OPTIONS: dict[str, Any] = {"fabric": RATES, "cache": False, "time_limit": 0.05, "longest": 16}
IDS = torch.tensor([[11, 7, 23, 41, 5]])

pytestmark = pytest.mark.usefixtures("own_cache", "one_thread")


def test_first_and_last_tokens_are_forced_where_transformers_forces_them() -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "vocab_size": 64, "max_position_embeddings": 32}
    parts = {
        f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in (("layers", 1), ("ffn_dim", 16))
    }
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = transformers.BartConfig(**sizes, **parts, **heads, forced_bos_token_id=0, forced_eos_token_id=2)
    model = transformers.BartForConditionalGeneration(config).eval()
    model.generation_config.forced_bos_token_id, model.generation_config.forced_eos_token_id = 9, 3
    expected = model.generate(IDS, max_new_tokens=5, do_sample=False, num_beams=1)
    assert expected[0, 1] == 9
    assert expected[0, -1] == 3
    with offload.decode(model, "1GiB", **OPTIONS) as run:
        assert torch.equal(run.generate(IDS, 5), expected)


def test_a_model_that_looks_for_padding_is_decoded() -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=16, n_head=2, n_layer=1, n_positions=32, vocab_size=64)
    config.bos_token_id = config.eos_token_id = 1
    config.pad_token_id = 0
    model = transformers.GPT2LMHeadModel(config).eval()
    looks = transformers.PreTrainedModel.warn_if_padding_and_no_attention_mask
    with offload.decode(model, "1GiB", **OPTIONS) as run:
        expected = model.generate(IDS, max_new_tokens=4, min_new_tokens=4, do_sample=False)
        assert torch.equal(run.generate(IDS, 4), expected)
    assert transformers.PreTrainedModel.warn_if_padding_and_no_attention_mask is looks
