"""Models that generate: by `offload.decode`, and with a pooled cache, against transformers alone."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any

import pytest

from openshelf import KVPool, Space, offload
from openshelf.adapters.transformers import encode, layout_of
from openshelf.errors import BadInput, OpenshelfError
from tests.models.built import Built, NotCompared, Wrong
from tests.offload.models import same
from tests.offload.rates import RATES

torch: Any = importlib.import_module("torch")
pooled: Any = importlib.import_module("tests.adapters.transformers.architectures")

PROMPT, NEW, LONGEST = 11, 6, 32


def decode(made: Built) -> None:
    """A prompt and some tokens: the logits of each step are those of the model's own `generate`."""
    model, ids = made.model, made.batch(0)["input_ids"][:1, :PROMPT]
    steps = _logits(model, ids)
    options: dict[str, Any] = {"longest": LONGEST, "fabric": RATES, "cache": False, "time_limit": 0.05}
    with offload.decode(model, "1GiB", **options) as run:
        for number, (tokens, theirs) in enumerate(steps):
            ours = run.prefill(tokens) if number == 0 else run.step(tokens)
            if not same([ours], [theirs]):
                raise Wrong(f"the logits of step {number} differ")


def _logits(model: Any, ids: Any) -> list[tuple[Any, Any]]:
    """What transformers is given at each step, and the logits that follow."""
    how = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "use_cache": True}
    try:
        out = model.generate(ids, **how, output_logits=True, return_dict_in_generate=True)
    except Exception as error:
        raise NotCompared(f"plain PyTorch does not generate: {type(error).__name__}: {error}") from error
    new = out.sequences[:, -NEW:]
    return [(new[:, at - 1 : at] if at else ids, logits) for at, logits in enumerate(out.logits)]


def pool(made: Built) -> None:
    """Prompts with and without a pool answer alike; of a model with an encoder, what that made comes from the pool."""
    made.model.generation_config.use_cache = True  # MPT's is False, and a PooledCache says that it needs it
    with (
        tempfile.TemporaryDirectory(prefix="openshelf-models-", dir="/dev/shm") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("OPENSHELF_DIR", str(Path(folder)))
        try:
            with Space.create("models", "64MiB") as space:
                encodes = getattr(made.model.config, "is_encoder_decoder", False)
                found = _encoded(space, made) if encodes else pooled.outcome(space, made.model)
        except pooled.NotBuilt as error:
            raise NotCompared(f"plain PyTorch does not generate: {error}") from error
        except AssertionError as error:
            raise Wrong(str(error)) from error
    if found != "right":
        raise BadInput(found)


def _encoded(space: Space, made: Built) -> str:
    """'right', or why it was refused: three inputs twice, bit for bit as `generate` alone answers."""
    model, rows = made.model, [made.batch(seed)["input_ids"][:1] for seed in range(3)]
    how = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "output_logits": True}
    how["return_dict_in_generate"] = True
    expected = []
    for row in rows:
        try:
            expected.append(model.generate(row, attention_mask=torch.ones_like(row), **how).logits)
        except Exception as error:
            raise NotCompared(f"plain PyTorch does not generate: {type(error).__name__}: {error}") from error
    hits = 0
    try:
        layout = layout_of(model)
    except OpenshelfError as error:
        return str(error)
    with KVPool(space, layout, 16, name=layout.model, capacity="2MiB") as kv:
        for number, (row, logits) in enumerate(2 * list(zip(rows, expected, strict=True))):
            try:
                encoded = encode(kv, model, row)
            except OpenshelfError as error:
                return str(error)
            hits += encoded.shared_rows
            got = model.generate(row, attention_mask=torch.ones_like(row), encoder_outputs=encoded, **how).logits
            if not same(list(got), list(logits)):
                raise Wrong(f"the logits of input {number} differ")
    return "right" if hits == len(rows) else f"{hits} of {len(rows)} inputs were found again"
