"""Models that no program can hold run module by module: the same results, weights within the budget."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from openshelf import offload  # noqa: E402
from openshelf.errors import BadInput, CaptureFailed, NoRoom  # noqa: E402
from tests.offload.rates import RATES  # noqa: E402

LAYER = 96 * 96 * 4 + 96 * 4


pytestmark = pytest.mark.usefixtures("own_cache", "one_thread")


class Wandering(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Goes where values lead it; uses a weight of another module, a tied one, and one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(96, 96) for _ in range(12))
        self.way = torch.nn.ModuleDict({"up": torch.nn.Linear(96, 96), "down": torch.nn.Linear(96, 96)})
        self.tied = torch.nn.Linear(96, 96)
        self.tied.weight = self.layers[0].weight
        self.scale = torch.nn.Parameter(torch.full((96,), 0.5))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x)) * self.scale
            if x.sum() > 0:
                x = self.way["up"](x)
            elif x.max() > 0.6:
                x = self.way["down"](x)
        return self.tied(x) @ self.layers[3].weight, self.scale


def test_results_are_the_models_whatever_way_it_goes() -> None:
    torch.manual_seed(3)
    model = Wandering()
    inputs = [torch.randn(2, 96, generator=torch.Generator().manual_seed(seed)) for seed in range(8)]
    with torch.no_grad():
        expected = [tuple(one.clone() for one in model(x)) for x in inputs]  # one is a weight, which goes to flash
    wrapped = offload.wrap(model, 5 * LAYER, fallback="modules", fabric=RATES, cache=False)
    for _ in range(2):
        for x, wanted in zip(inputs, expected, strict=True):
            found = wrapped(x)
            assert all(torch.equal(one, two) for one, two in zip(found, wanted, strict=True))
    assert wrapped.by_module is not None
    assert all(one.is_meta for one in model.parameters())
    read = wrapped.by_module.lanes()["flash_read"]
    assert read.nbytes > 15 * 7 * LAYER  # most weights were read again for each call
    assert sum(wrapped.by_module._sizes[s] for s in wrapped.by_module._at) <= wrapped.by_module._budget


def test_weights_that_fit_are_read_once() -> None:
    model = Wandering()
    wrapped = offload.wrap(model, 40 * LAYER, fallback="modules", fabric=RATES, cache=False)
    for seed in range(5):
        wrapped(torch.randn(2, 96, generator=torch.Generator().manual_seed(seed)))
    assert wrapped.by_module is not None
    assert wrapped.by_module.lanes()["flash_read"].requests <= 40


def test_exception_in_a_module_leaves_the_rest_usable() -> None:
    model = Wandering()
    x = torch.randn(2, 96)
    with torch.no_grad():
        expected = model(x)[0]
    wrapped = offload.wrap(model, 5 * LAYER, fallback="modules", fabric=RATES, cache=False)
    wrapped(x)
    with pytest.raises(RuntimeError, match="shapes"):
        wrapped(torch.randn(2, 95))
    assert torch.equal(wrapped(x)[0], expected)


def test_interrupts_leave_the_model_usable() -> None:
    torch.manual_seed(3)
    model, x = Wandering(), torch.randn(2, 96)
    with torch.no_grad():
        expected = model(x)[0]
    wrapped = offload.wrap(model, 5 * LAYER, fallback="modules", fabric=RATES, cache=False)
    wrapped(x)
    at, calls = [0], [0]

    def interrupt(*_: Any) -> None:
        calls[0] += 1
        if calls[0] == at[0]:
            raise KeyboardInterrupt

    hooks = [module.register_forward_pre_hook(interrupt) for module in model.modules()]
    for at[0] in range(1, 14):
        calls[0] = 0
        with pytest.raises(KeyboardInterrupt):
            wrapped(x)
        assert torch.equal(wrapped(x)[0], expected)
    for hook in hooks:
        hook.remove()


def test_refusals() -> None:
    model, x = Wandering(), torch.randn(2, 96)
    with pytest.raises(CaptureFailed, match="test_by_module"):
        offload.wrap(model, "1MiB", fabric=RATES, cache=False)(x)
    with pytest.raises(NoRoom, match="the least that works"):
        offload.wrap(model, LAYER // 2, fallback="modules", fabric=RATES, cache=False)(x)
    assert not any(one.is_meta for one in model.parameters())
    with pytest.raises(BadInput, match="fallback is 'modules'"):
        offload.wrap(model, "1MiB", fallback="hope")  # type: ignore[arg-type]


class Careful(Wandering):
    """It sends its input to where its weights are, as Llama 4 does."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.to(self.layers[7].weight.device))


def test_code_that_goes_by_the_device_of_weights_is_refused_not_run_on_nothing() -> None:
    torch.manual_seed(3)
    model, x = Careful(), torch.randn(2, 96)
    with torch.no_grad():
        expected = model(x)[0]
    wrapped = offload.wrap(model, 5 * LAYER, fallback="modules", fabric=RATES, cache=False)
    wrapped(x)
    with pytest.raises(CaptureFailed, match="a tensor without memory"):
        wrapped(x)
    wrapped.unwrap()
    with torch.no_grad():
        assert torch.equal(model(x)[0], expected)
