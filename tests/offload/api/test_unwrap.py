"""A wrapped model is used as the model is, and can be had back; hooks that would not run are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from openshelf import offload  # noqa: E402
from openshelf.errors import BadInput, CaptureFailed  # noqa: E402
from openshelf.offload.run.by_module import ByModule  # noqa: E402
from tests.offload.models import same, twins  # noqa: E402
from tests.offload.rates import RATES  # noqa: E402
from tests.offload.tiny import made, prompt  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache", "one_thread")
OPTIONS: dict[str, Any] = {"fabric": RATES, "cache": False, "time_limit": 0.1}


class Tied(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Weights that are tied, that share a storage, and that no call uses; looks at values if it is told to."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.last, self.unused = (torch.nn.Linear(8, 8) for _ in range(3))
        self.last.weight = self.first.weight
        both = torch.randn(2, 8)
        self.up, self.down = torch.nn.Parameter(both[0]), torch.nn.Parameter(both[1])
        self.norm, self.looks = torch.nn.BatchNorm1d(8), looks

    def forward(self, x: Any) -> Any:
        x = self.norm(self.first(x) * self.up + self.down)
        if self.looks and x.sum() > 1e9:
            x = x + 1
        return self.last(x)


@pytest.mark.parametrize("looks", [False, True])
def test_unwrapped_model_is_as_it_would_be_without(looks: bool) -> None:
    model = Tied(looks)
    plain, x = copy.deepcopy(model), torch.randn(4, 8)
    model.unused.weight.grad = torch.ones(8, 8)
    before = dict(model.named_parameters(remove_duplicate=False))
    wrapped = offload.wrap(model, "64KiB", fallback="modules", **OPTIONS)
    with torch.no_grad():
        for _ in range(2):
            assert same([wrapped(x)], [plain(x)])
            state = wrapped.state_dict()
            assert list(state) == list(plain.state_dict())
            assert same(state.values(), plain.state_dict().values())
        assert (wrapped.by_module is not None) == looks
        assert all(one.is_meta for one in model.parameters())
        with pytest.raises(BadInput, match=r"call what offload\.wrap returned"):
            model(x)
        with pytest.raises(BadInput, match="unwrap"):
            wrapped.load_state_dict(state)
        assert wrapped.unwrap() is model
        assert same(model.state_dict().values(), plain.state_dict().values())
        after = dict(model.named_parameters(remove_duplicate=False))
        assert all(one is after[name] for name, one in before.items())  # an optimizer that holds them still does
        assert model.up.untyped_storage().data_ptr() == model.down.untyped_storage().data_ptr()
        assert model.unused.weight.grad.sum() == 64
        assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
        assert same([model(x)], [plain(x)])
        assert same([wrapped(x)], [plain(x)])  # wraps it anew


def test_weights_after_training_are_given_back() -> None:
    model, plain = twins("llama")
    ids = prompt(8)
    optimizer, ours = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (plain, model))
    wrapped = offload.wrap(model, "8MiB", optimizer=ours, **OPTIONS)
    for _ in range(2):
        (loss,) = wrapped(input_ids=ids, labels=ids)
        theirs = plain(input_ids=ids, labels=ids).loss
        theirs.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert same([loss], [theirs])
    assert same(wrapped.unwrap().state_dict().values(), plain.state_dict().values())


def test_unwrap_before_the_first_call_changes_nothing() -> None:
    model = Tied(False)
    expected = {name: one.clone() for name, one in model.state_dict().items()}
    wrapped = offload.wrap(model, "64KiB", **OPTIONS)
    assert same(wrapped.state_dict().values(), expected.values())
    wrapped.load_state_dict(expected)
    assert wrapped.unwrap() is model
    assert same(model.state_dict().values(), expected.values())


@pytest.mark.parametrize("kind", ["gemma2", "jamba"])
def test_wrapped_model_generates_and_has_what_the_model_has(kind: str) -> None:
    model = made(kind)
    plain, ids = copy.deepcopy(model), prompt(10)
    wrapped = offload.wrap(model, "2MiB", fallback="modules", **OPTIONS)
    assert wrapped.config is model.config
    with pytest.raises(AttributeError):
        wrapped.nothing_like_it  # noqa: B018
    options = {"max_new_tokens": 3, "do_sample": False, "use_cache": True}
    expected = plain.generate(ids, **options)
    for _ in range(2):
        assert torch.equal(wrapped.generate(ids, **options), expected)
    assert wrapped._is_empty()
    assert torch.equal(wrapped.unwrap().generate(ids, **options), expected)


def _look(*_: Any) -> None:
    pass


HOOKS = {
    "forward": lambda model: model.first.register_forward_hook(_look),
    "pre": lambda model: model.first.register_forward_pre_hook(_look),
    "backward": lambda model: model.first.register_full_backward_hook(_look),
    "backward pre": lambda model: model.first.register_full_backward_pre_hook(_look),
    "everywhere": lambda model: torch.nn.modules.module.register_module_forward_hook(_look),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_that_would_not_run_are_refused_with_their_names(kind: str) -> None:
    model, x = Tied(False).eval(), torch.randn(4, 8)
    wrapped = offload.wrap(model, "64KiB", **OPTIONS)
    with torch.no_grad():
        expected = wrapped(x)
        hook = HOOKS[kind](model)
        try:
            for refused in (wrapped, lambda x: offload.plan(Tied(False) if kind == "everywhere" else model, x, "1MiB")):
                with pytest.raises(CaptureFailed, match=r"_look.*never again"):
                    refused(x)
        finally:
            hook.remove()
        assert same([wrapped(x)], [expected])


def test_hooks_on_parameters_are_refused_in_training() -> None:
    model = Tied(False)
    model.up.register_post_accumulate_grad_hook(_look)
    with pytest.raises(CaptureFailed, match="'up' has a hook"):
        offload.plan(model, torch.randn(4, 8), "1MiB", train=True, loss=torch.sum, **OPTIONS)


def test_hooks_run_module_by_module_and_backward_ones_are_refused() -> None:
    model, x, seen = Tied(False).eval(), torch.randn(4, 8), []
    plain = copy.deepcopy(model)
    model.first.register_forward_pre_hook(lambda module, _: seen.append(float(module.weight.sum())))
    wrapped = offload.wrap(model, "64KiB", fallback="modules", **OPTIONS)
    with torch.no_grad():
        for _ in range(3):
            assert same([wrapped(x)], [plain(x)])
        assert seen == [float(plain.first.weight.sum())] * 3
        wrapped.unwrap().first.register_full_backward_hook(_look)
        with pytest.raises(BadInput, match="no gradients"):
            wrapped(x)


class Hands(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Hands a weight of one of its parts to another one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = torch.nn.Embedding(9, 8), torch.nn.Bilinear(8, 8, 4)
        self.head.forward = lambda x, other: torch.nn.functional.linear(x, other)

    def forward(self, ids: Any) -> Any:
        return self.head(self.words(ids), self.words.weight)


def test_weight_that_is_handed_to_another_module_is_there() -> None:
    model, ids = Hands(), torch.tensor([[1, 2]])
    with torch.no_grad():
        expected, run = model(ids), ByModule(model, 1 << 16, None)
        for _ in range(3):
            assert same([run(ids)], [expected])


def test_norms_and_parametrizations_of_torch_are_captured() -> None:
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 8)), torch.nn.Linear(8, 8)
    ).eval()
    torch.nn.utils.parametrize.register_parametrization(model[1], "weight", torch.nn.Tanh())
    plain, x = copy.deepcopy(model), torch.randn(2, 8)
    with torch.no_grad():
        wrapped = offload.wrap(model, "64KiB", **OPTIONS)
        for _ in range(2):
            assert same([wrapped(x)], [plain(x)])
        run = ByModule(wrapped.unwrap(), 1 << 16, None)
        for _ in range(2):
            assert same([run(x)], [plain(x)])
