"""A wrapped model is called as before: any shape, equal results, weights out of memory."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from openshelf import offload  # noqa: E402
from openshelf.errors import NoRoom  # noqa: E402
from tests.offload.models import batch, same, twins  # noqa: E402
from tests.offload.rates import RATES  # noqa: E402

OPTIONS: dict[str, Any] = {"fabric": RATES, "cache": False, "time_limit": 0.1}


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_wrapped_model_takes_any_shape(name: str) -> None:
    model, plain = (one.eval() for one in twins(name))
    wrapped = offload.wrap(model, "256KiB", **OPTIONS)
    inputs = batch(name)
    for length in (19, 7, 19, 12, 7):
        ids = inputs["input_ids"][:, :length]
        with torch.no_grad():
            assert same([wrapped(ids).logits], [plain(ids).logits]), length
    assert all(parameter.is_meta for parameter in model.parameters())
    assert wrapped.plan_of(ids).peak <= 256 << 10


def test_arguments_may_have_names() -> None:
    model, plain = (one.eval() for one in twins("vit"))
    wrapped = offload.wrap(model, "256KiB", **OPTIONS)
    with torch.no_grad():
        assert same([wrapped(**batch("vit")).loss], [plain(**batch("vit")).loss])


def test_budget_that_is_too_small_leaves_the_model_alone() -> None:
    model, plain = (one.eval() for one in twins("llama"))
    with pytest.raises(NoRoom, match="the least that works"):
        offload.wrap(model, "8KiB", **OPTIONS)(batch("llama")["input_ids"])
    assert same(model.state_dict().values(), plain.state_dict().values())
