"""Models that generate: by `offload.decode`, and with a pooled cache, against transformers alone."""

from __future__ import annotations

import importlib
import inspect
import tempfile
from pathlib import Path
from typing import Any

import pytest

from openshelf import Space, offload
from openshelf.errors import BadInput
from tests.models.built import Built, NotCompared, Wrong
from tests.offload.models import same
from tests.offload.rates import RATES

torch: Any = importlib.import_module("torch")
pooled: Any = importlib.import_module("tests.adapters.transformers.architectures")

PROMPT, NEW, LONGEST = 11, 6, 32


def decode(made: Built) -> None:
    """A prompt and some tokens: the logits of each step are those of the model with its own cache.

    Of models with an encoder, the tokens are those of the model's own `generate`.
    """
    model, ids = made.model, made.batch(0)["input_ids"][:1, :PROMPT]
    encodes = bool(getattr(model.config, "is_encoder_decoder", False))
    steps = [] if encodes else _logits(model, ids)
    expected = _tokens(model, ids) if encodes else None
    options: dict[str, Any] = {"longest": LONGEST, "fabric": RATES, "cache": False, "time_limit": 0.05}
    with offload.decode(model, "1GiB", **options) as run:
        for number, (tokens, theirs) in enumerate(steps):
            ours = run.prefill(tokens) if number == 0 else run.step(tokens)
            if not same([ours], [theirs]):
                raise Wrong(f"the logits of step {number} differ")
        if encodes and not torch.equal(run.generate(ids, NEW), expected):
            raise Wrong("other tokens are generated")


def _logits(model: Any, ids: Any) -> list[tuple[Any, Any]]:
    """What transformers is given, and the logits that follow: of the last token only, where that can be asked for."""
    takes = inspect.signature(type(model).forward).parameters
    name = "past_key_values" if "past_key_values" in takes else "cache_params"
    last = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
    found, cache, tokens = [], None, ids
    try:
        with torch.no_grad():
            for _ in range(NEW):
                result = model(input_ids=tokens, use_cache=True, **{name: cache}, **last)
                found.append((tokens, result.logits[:, -1]))
                cache, tokens = result[name], found[-1][1].argmax(-1, keepdim=True)
    except Exception as error:
        raise NotCompared(f"plain PyTorch does not generate: {type(error).__name__}: {error}") from error
    return found


def _tokens(model: Any, ids: Any) -> Any:
    try:
        return model.generate(ids, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
    except Exception as error:
        raise NotCompared(f"plain PyTorch does not generate: {type(error).__name__}: {error}") from error


def pool(made: Built) -> None:
    """Prompts with and without a pool answer alike."""
    with (
        tempfile.TemporaryDirectory(prefix="openshelf-models-", dir="/dev/shm") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("OPENSHELF_DIR", str(Path(folder)))
        try:
            with Space.create("models", "64MiB") as space:
                found = pooled.outcome(space, made.model)
        except pooled.NotBuilt as error:
            raise NotCompared(f"plain PyTorch does not generate: {error}") from error
        except AssertionError as error:
            raise Wrong(str(error)) from error
    if found != "right":
        raise BadInput(found)
