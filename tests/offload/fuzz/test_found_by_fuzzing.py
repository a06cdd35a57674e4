"""What random models did otherwise than plain PyTorch, each as the shortest model that shows it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from openshelf import offload  # noqa: E402
from openshelf.errors import BadInput, CaptureFailed  # noqa: E402
from openshelf.offload.planner.plan import make_plan  # noqa: E402
from openshelf.offload.program.lifetimes import lifetimes  # noqa: E402
from tests.offload.rates import RATES  # noqa: E402

nn, F = torch.nn, torch.nn.functional
SHARES = (0.0, 0.2, 0.5, 1.0)


@pytest.fixture(autouse=True)
def seeded(own_cache: Path) -> None:
    torch.manual_seed(0)


class Does(nn.Module):  # type: ignore[misc, name-defined]
    """A linear layer, a buffer, and what `does` does with them."""

    def __init__(self, does: Callable[..., Any], size: int = 8) -> None:
        super().__init__()
        self.layer = nn.Linear(size, size)
        self.other = nn.Linear(size, size)
        self.register_buffer("seen", torch.zeros(size))
        self.does = does

    def forward(self, *args: Any) -> Any:
        return self.does(self, *args)


def planned(model: Any, inputs: tuple[Any, ...], share: float = 0.3, stay: bool = True, **more: Any) -> Any:
    full = offload.plan(model, inputs, "1GiB", fabric=RATES, cache=False, time_limit=0.02, **more)
    known = lifetimes(full.captured.program)
    budget = known.least + int((known.live_peak - known.least) * share)
    made = make_plan(full.captured.program, budget, RATES, stay=stay, time_limit=0.05, cache=False)
    return offload.ModelPlan(full.captured, made, (inputs, {}))


def bits(tensor: Any) -> Any:
    return tensor.dtype, tuple(tensor.shape), tensor.detach().contiguous().numpy().tobytes()


def assert_trains_as_plain(plan: Any, model: Any, batches: list[Any], loss: Any, options: Any) -> None:
    """Asserts that losses, and parameters after all batches, are those of plain PyTorch."""
    plain = copy.deepcopy(model)
    theirs = options(plain.parameters())
    with plan.load(model) as run:
        for batch in batches:
            torch.manual_seed(1)
            (found,) = run(*batch)
            torch.manual_seed(1)
            theirs.zero_grad()
            expected = loss(plain(*batch))
            expected.backward()
            theirs.step()
            assert bits(found) == bits(expected)
        state = run.state_dict()
        assert all(bits(state[name]) == bits(one) for name, one in plain.named_parameters() if name in state)


def adam(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=0.01)


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("stay", [True, False])
def test_losses_write_nothing_but_their_result(loss: Any, share: float, stay: bool) -> None:
    model = Does(lambda self, x, y: loss(self.other(self.layer(x)), y), 64)
    batches = [(torch.randn(512, 64), torch.randn(512, 64)) for _ in range(2)]
    plan = planned(model, batches[0], share, stay, optimizer=adam(model.parameters()), loss=lambda one: one)
    assert_trains_as_plain(plan, model, batches, lambda one: one, adam)


@pytest.mark.parametrize("share", SHARES)
def test_kernels_that_ask_for_aliases_are_told_the_truth(share: float) -> None:
    model, x = Does(lambda self, x: torch.linalg.qr(self.layer(x))), torch.randn(8, 8)
    with planned(model, (x,), share).load(model) as run, torch.no_grad():
        assert list(map(bits, run(x))) == list(map(bits, model(x)))


@pytest.mark.parametrize("share", SHARES)
def test_logsigmoid_of_a_transposed_tensor(share: float) -> None:
    model, x = Does(lambda self, x: self.other(F.logsigmoid(self.layer(x).t()).t()).sum()), torch.randn(6, 8)
    plan = planned(model, (x,), share, stay=False, optimizer=adam(model.parameters()), loss=lambda one: one)
    assert_trains_as_plain(plan, model, [(x,)] * 2, lambda one: one, adam)


def test_every_run_of_a_plan_counts_its_own_steps() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    plan = planned(model, (x,), optimizer=adam(model.parameters()), loss=torch.sum)
    for _ in range(2):
        assert_trains_as_plain(plan, model, [(x,)] * 3, torch.sum, adam)


def test_buffer_that_is_given_another_tensor_is_kept() -> None:
    def does(self: Any, x: Any) -> Any:
        self.seen = 0.9 * self.seen + x.mean(0)
        return self.layer(x) + self.seen

    model, x = Does(does), torch.randn(4, 8)
    plain = copy.deepcopy(model)
    with planned(model, (x,)).load(model) as run, torch.no_grad():
        for _ in range(3):
            assert bits(run(x)) == bits(plain(x))
        assert bits(run.state_dict()["seen"]) == bits(plain.seen)
    assert not model.seen.any()


def test_state_beside_parameters_and_buffers_is_refused() -> None:
    def counts(self: Any, x: Any) -> Any:
        self.counter.add_(1)
        return self.layer(x) + self.counter

    def remembers(self: Any, x: Any) -> Any:
        self.counter = self.layer(x).sum() + self.counter
        return self.counter

    for does in (counts, remembers):
        model = Does(does)
        model.counter = torch.zeros(())
        with pytest.raises(CaptureFailed, match="register_buffer"):
            planned(model, (torch.randn(4, 8),))
        assert type(model.counter) is torch.Tensor


def test_what_a_model_notes_of_a_call_is_no_fake_afterwards() -> None:
    def does(self: Any, x: Any) -> Any:
        self.last = self.layer(x)
        return self.last + 1

    model = Does(does)
    planned(model, (torch.randn(4, 8),))
    assert not hasattr(model, "last")


def test_parameter_that_is_used_from_a_list_is_refused_in_training() -> None:
    model = Does(lambda self, x: self.layer(x @ self.kept[0]).sum())
    model.kept = [model.other.weight]
    with pytest.raises(CaptureFailed, match="requires gradients"):
        planned(model, (torch.randn(4, 8),), train=True, loss=lambda one: one)
    assert model.other.weight.grad is None


def test_checkpoint_around_dropout_is_refused() -> None:
    def does(self: Any, x: Any, p: float) -> Any:
        def inner(one: Any) -> Any:
            return F.dropout(self.layer(one), p, p > 0)

        return F.dropout(torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False), 0.5).sum()

    model, x = Does(does), torch.randn(4, 8)
    with pytest.raises(CaptureFailed, match="checkpoint"):
        planned(model, (x, 0.5), train=True, loss=lambda one: one)
    plan = planned(model, (x, 0.0), optimizer=adam(model.parameters()), loss=lambda one: one)
    assert_trains_as_plain(plan, model, [(x, 0.0)] * 2, lambda one: one, adam)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(8), nn.BatchNorm1d(8).eval()])
def test_norm_as_the_first_layer_trains(layer: Any) -> None:
    model, x = nn.Sequential(layer, nn.Linear(8, 8)), torch.randn(4, 8)
    plan = planned(model, (x,), optimizer=adam(model.parameters()), loss=torch.sum)
    assert_trains_as_plain(plan, model, [(x,)] * 2, torch.sum, adam)


def test_norm_of_a_transposed_batch_trains() -> None:
    model, x = Does(lambda self, x: self.norm(self.layer(x).t()).sin().sum(), 16), torch.randn(33, 16)
    model.norm = nn.BatchNorm1d(33, track_running_stats=False)
    plan = planned(model, (x,), optimizer=adam(model.parameters()), loss=lambda one: one)
    assert_trains_as_plain(plan, model, [(x,)] * 3, lambda one: one, adam)


def test_results_that_a_kernel_leaves_out() -> None:
    for model in (nn.LSTM(8, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()):
        x = torch.randn(2, 3, 8)
        with planned(model, (x,)).load(model) as run, torch.no_grad():
            leaves = torch.utils._pytree.tree_leaves
            assert list(map(bits, leaves(run(x)))) == list(map(bits, leaves(model(x))))


def test_parameters_without_elements_are_in_the_state() -> None:
    model, x = Does(lambda self, x: torch.cat([self.none, self.layer(x)])), torch.randn(4, 8)
    model.none = nn.Parameter(torch.zeros(0, 8))
    with planned(model, (x,)).load(model) as run:
        assert run.state_dict()["none"].shape == (0, 8)


def test_arguments_of_another_type_are_others() -> None:
    model, x = Does(lambda self, x, scale: x * scale), torch.arange(8)
    with planned(model, (x, 1)).load(model) as run:
        for other in (1.0, True, torch.ones(8)):
            with pytest.raises(BadInput, match="captured for the argument"):
                run(x, other)
    wrapped = offload.wrap(model, "1MiB", fabric=RATES, cache=False, time_limit=0.05)
    for scale in (1.0, 1, True):
        assert bits(wrapped(x, scale)) == bits(x * scale)


def test_options_that_need_other_states_are_refused() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with planned(model, (x,), optimizer=optimizer, loss=torch.sum).load(model) as run:
        for option in ("weight_decay", "momentum"):
            run(x)
            optimizer.param_groups[0][option] = 0.1
            with pytest.raises(BadInput, match="other options"):
                run(x)
            optimizer.param_groups[0][option] = 0.0


def test_planning_draws_nothing_from_the_models_own_generator() -> None:
    generator = torch.Generator().manual_seed(1)
    model, x = Does(lambda self, x: self.layer(x) + torch.rand(8, generator=generator)), torch.randn(4, 8)
    with planned(model, (x,)).load(model) as run, torch.no_grad():
        found = run(x)
        generator.manual_seed(1)
        assert bits(found) == bits(model(x))


def test_norm_of_mixed_dtypes_is_added_up_as_torch_does() -> None:
    model = Does(lambda self, x: (self.layer(x.half()).float() + self.other(x)).pow(2).mean())
    model.layer.half()
    plain, x = copy.deepcopy(model), torch.randn(4, 8)
    with planned(model, (x,), train=True, loss=lambda one: one, clip=0.1).load(model) as run:
        _, norm = run(x)
    plain(x).backward()
    assert bits(norm) == bits(nn.utils.clip_grad_norm_(plain.parameters(), 0.1))


def test_wrap_keeps_weights_that_the_first_call_does_not_use() -> None:
    model = Does(lambda self, x, first: (self.layer if first else self.other)(x))
    plain, x = copy.deepcopy(model), torch.randn(4, 8)
    wrapped = offload.wrap(model, "1MiB", fabric=RATES, cache=False, time_limit=0.05)
    with torch.no_grad():
        for first in (True, False, True):
            assert bits(wrapped(x, first)) == bits(plain(x, first))


def test_wrap_refuses_another_shape_where_state_would_be_lost() -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    more = {"optimizer": optimizer, "loss": lambda one: one.pow(2).mean()}
    wrapped = offload.wrap(model, "1MiB", fabric=RATES, cache=False, time_limit=0.05, **more)
    losses = [float(wrapped(torch.ones(4, 8))[0]) for _ in range(2)]
    with pytest.raises(BadInput, match="would be lost"):
        wrapped(torch.ones(3, 8))
    assert float(wrapped(torch.ones(4, 8))[0]) < losses[1] < losses[0]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("stay", [True, False])
def test_results_that_are_read_on_and_inputs_that_are_changed_come_back(share: float, stay: bool) -> None:
    def does(self: Any, x: Any) -> Any:
        x.mul_(2)
        first = self.layer(x)
        second = self.other(first)
        for _ in range(3):
            second = self.layer(second).tanh()
        return first, second + first, x * second

    model, x = Does(does, 16), torch.randn(64, 16)
    with planned(model, (x,), share, stay).load(model) as run, torch.no_grad():
        for scale in (1, 2):
            assert list(map(bits, run(x * scale))) == list(map(bits, model(x * scale)))


def test_values_without_vectors_are_computed_without_them() -> None:
    def does(self: Any, x: Any) -> Any:
        square = self.layer(x).T @ x
        return (
            torch.linalg.svdvals(square),
            torch.linalg.svd(square)[1],
            torch.linalg.eigvalsh(square + square.T),
            torch.linalg.eigh(square + square.T)[0],
            torch.linalg.matrix_norm(square, "nuc"),
        )

    model = Does(does)
    for _ in range(5):
        x = torch.randn(9, 8)
        with planned(model, (x,)).load(model) as run, torch.no_grad():
            assert list(map(bits, run(x))) == list(map(bits, model(x)))
        plan = planned(model, (x,), train=True, loss=lambda all_: sum(one.sum() for one in all_))
        with plan.load(model) as run:
            found, expected = run(x)[0], sum(one.sum() for one in model(x))
            assert bits(found) == bits(expected)


def test_gradient_of_the_largest_has_no_negative_zeros() -> None:
    for reduce in (torch.max, torch.min, torch.median):
        model, x = Does(lambda self, x, reduce=reduce: x.sum() - reduce(self.layer.weight)), torch.randn(4, 8)
        model.zero_grad()
        model(x).backward()
        with planned(model, (x,), train=True, loss=lambda one: one).load(model) as run:
            run(x)
            assert all(bits(one) == bits(model.get_parameter(name).grad) for name, one in run.gradients().items())


@pytest.mark.parametrize(
    ("does", "why"),
    [
        (lambda self, x: self.layer(x).prod(), "if a factor is 0"),
        (lambda self, x: self.layer(x).prod(1).sum(), "if a factor is 0"),
        (lambda self, x: self.layer(x).cumprod(1).sum(), "if a factor is 0"),
        (lambda self, x: self.other(self.layer(x).sgn()).sum(), "use sign"),
        (lambda self, x: self.layer(x).t().sgn().sum(), "use sign"),
        (
            lambda self, x: F.cross_entropy(self.layer(x), x.argmax(1), self.seen, label_smoothing=0.1),
            "not ignored",
        ),
    ],
)
def test_what_plain_torch_does_by_value_is_refused_though_tracing_has_another_way(does: Any, why: str) -> None:
    with pytest.raises(CaptureFailed, match=why):
        planned(Does(does), (torch.randn(4, 8),), train=True, loss=lambda one: one)


def test_what_is_registered_when_a_model_is_called_is_refused() -> None:
    def buffer(self: Any, x: Any) -> Any:
        if not hasattr(self, "count"):
            self.register_buffer("count", torch.zeros(8), persistent=False)
        return self.layer(x) + self.count.add_(1)

    def layer(self: Any, x: Any) -> Any:
        if not hasattr(self, "count"):
            self.count = nn.Linear(8, 8)
        return self.count(self.layer(x))

    def value(self: Any, x: Any) -> Any:
        self.late = x.mean(0) if self.late is None else self.late + 1
        return self.layer(x) + self.late

    for does in (buffer, layer, value):
        model, x = Does(does), torch.randn(4, 8)
        model.register_buffer("late", None)
        names = list(model.state_dict())
        with pytest.raises(CaptureFailed, match="call it once before"):
            planned(model, (x,))
        assert list(model.state_dict()) == names
        assert not hasattr(model, "count")
        assert model.late is None
        with torch.no_grad():
            model(x)
            plain = copy.deepcopy(model)
            with planned(model, (x,)).load(model) as run:
                assert [bits(run(x)) for _ in range(3)] == [bits(plain(x)) for _ in range(3)]


def test_what_a_model_keeps_in_a_list_is_no_fake_afterwards() -> None:
    def does(self: Any, x: Any) -> Any:
        self.kept.append(self.layer(x))
        self.named["last"] = self.kept[-1]
        return self.kept[-1]

    model = Does(does)
    model.kept, model.named = [1], {"first": 2}
    kept = model.kept
    planned(model, (torch.randn(4, 8),))
    assert kept is model.kept
    assert (model.kept, model.named) == ([1], {"first": 2})


@pytest.mark.filterwarnings("ignore:An output")
@pytest.mark.parametrize("size", [(0,), (4, 1), (8, 8)])
def test_out_that_is_resized_is_refused(size: tuple[int, ...]) -> None:
    model = Does(lambda self, x: torch.mul(x, 2, out=torch.empty(size)) + 1)
    with pytest.raises(CaptureFailed, match="the size of a tensor"):
        planned(model, (torch.randn(4, 8),))


def test_parameters_that_have_no_shape_yet_are_refused() -> None:
    model, x = nn.LazyLinear(8), torch.randn(4, 8)
    with pytest.raises(BadInput, match="call the model once"):
        planned(model, (x,))
    model(x)
    with planned(model, (x,)).load(model) as run, torch.no_grad():
        assert bits(run(x)) == bits(model(x))


@pytest.mark.parametrize(
    "does",
    [
        lambda self, x: torch.copysign(x, self.seen),
        lambda self, x: torch.div(x * 100, self.other.bias + 1, rounding_mode="floor"),
        lambda self, x: F.channel_shuffle(x, 2),
        lambda self, x: F.pad(x, (1, 1, 1, 1), "reflect"),
        lambda self, x: F.batch_norm(x, None, None, training=True),
        lambda self, x: F.rrelu(x, training=True) + 0.1,
    ],
)
def test_results_lie_as_kernels_lay_them_out_not_as_fake_forms_do(does: Any) -> None:
    """An image by channels: a sum adds up in the order of memory."""
    model = Does(lambda self, x: (does(self, x * self.layer.weight[0]) * 1.3).mean() + self.layer.bias.mean())
    x = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
    batches = [(x,), (x * 1.1,), (x * 1.3,)]
    plan = planned(model, batches[0], 0.0, optimizer=adam(model.parameters()), loss=lambda one: one)
    assert_trains_as_plain(plan, model, batches, lambda one: one, adam)
