"""A model for inputs of any length: captured once, a plan for each bucket, its own results without padding."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from openshelf import offload  # noqa: E402
from openshelf.errors import BadInput, CaptureFailed, NoRoom  # noqa: E402
from tests.offload.models import batch, same, twins  # noqa: E402
from tests.offload.rates import RATES  # noqa: E402

OPTIONS: dict[str, Any] = {"fabric": RATES, "cache": False, "time_limit": 0.1}


pytestmark = pytest.mark.usefixtures("own_cache", "one_thread")


def ids(length: int) -> dict[str, Any]:
    return {"input_ids": torch.zeros((2, length), dtype=torch.int64), "use_cache": False}


def test_every_length_is_the_models_own() -> None:
    name = "gpt2"
    model, plain = (one.eval() for one in twins(name))
    run = offload.buckets(model, ids, 48, "512KiB", **OPTIONS)
    tokens = torch.cat([batch(name, seed)["input_ids"] for seed in range(3)], 1)
    for length in (48, 33, 17, 16, 5, 2, 1, 40):
        with torch.no_grad():
            wanted = plain(tokens[:, :length], use_cache=False).logits
        assert same([run(input_ids=tokens[:, :length], use_cache=False).logits], [wanted]), length
    assert run.plan(48) is run.plan(33) is not run.plan(17)
    assert max(run.plan(20).peak, run.plan(40).peak) + run.outside <= run.peak <= 512 << 10
    assert same([run(use_cache=False, input_ids=tokens[:, :40]).logits], [wanted])
    run.close()
    with pytest.raises(BadInput, match="1 to 48"):
        run(input_ids=tokens[:, :49], use_cache=False)
    with pytest.raises(BadInput, match="capture"):
        run(input_ids=tokens[:1, :9], use_cache=False)


def test_no_more_is_taken_than_is_needed() -> None:
    linear = torch.nn.Linear(8, 8)
    run = offload.buckets(linear, lambda length: torch.zeros(length, 8), 64, "100TiB", **OPTIONS)
    assert run(torch.ones(3, 8)).shape == (3, 8)
    assert run.peak < 1 << 20


def test_refusals() -> None:
    linear = torch.nn.Linear(8, 8)
    with pytest.raises(NoRoom, match="the least that works is") as error:
        offload.buckets(linear, lambda length: torch.zeros(length, 8), 64, 512, **OPTIONS)
    least = int(str(error.value).rsplit(" ", 2)[-2])
    assert offload.buckets(linear, lambda length: torch.zeros(length, 8), 64, least, **OPTIONS).peak <= least
    with pytest.raises(CaptureFailed, match="the same at every length"):
        offload.buckets(linear, lambda length: torch.zeros(3, 8), 64, "1MiB", **OPTIONS)

    class Cubed(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return (x @ x.t())[..., None].expand(-1, -1, len(x)).exp().sum(0)

    with pytest.raises(CaptureFailed, match="evenly"):
        offload.buckets(Cubed(), lambda length: torch.zeros(length, 8), 64, "8MiB", **OPTIONS)


def test_what_grows_with_the_square_of_the_length_runs() -> None:
    class Squared(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return (x @ x.t()).sum(0)

    run = offload.buckets(Squared(), lambda length: torch.zeros(length, 8), 32, "1MiB", **OPTIONS)
    for length in (1, 5, 17, 32):
        x = torch.randn(length, 8)
        assert torch.equal(run(x), Squared()(x)), length
