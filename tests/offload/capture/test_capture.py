"""What capture finds in a model, and what it refuses."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from openshelf.errors import BadInput, CaptureFailed  # noqa: E402
from openshelf.offload.capture.capture import capture, capture_training  # noqa: E402
from openshelf.offload.measure.operators import measured  # noqa: E402
from tests.offload.ends import least, stay  # noqa: E402
from tests.offload.in_memory import homes_in  # noqa: E402
from tests.offload.models import batch, bits, executor, gpt2, llama, made, same, twins  # noqa: E402


def test_a_model_on_the_meta_device_is_captured_as_the_real_one_is() -> None:
    with torch.device("meta"):
        absent = llama().eval()
    real = made("llama").eval()
    captured, expected = capture(absent, (), batch("llama")), capture(real, (), batch("llama"))
    assert captured.program == expected.program
    assert all(one.is_meta for one in absent.parameters())
    ours = executor(captured, real, least, homes_in(captured, real))(**batch("llama", 3))
    with torch.no_grad():
        assert same([ours.logits], [real(**batch("llama", 3)).logits])


def test_capture_leaves_the_model_and_the_random_numbers_as_they_were() -> None:
    model, plain = twins("gpt2")
    state = torch.get_rng_state()
    capture_training(model.train(), (), batch("gpt2"), optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    assert torch.equal(state, torch.get_rng_state())
    assert same(model.state_dict().values(), plain.state_dict().values())
    assert all(one.grad is None and not one._backward_hooks for one in model.parameters())
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


def test_tied_weights_are_one_storage_with_two_names() -> None:
    captured = capture(made("gpt2").eval(), (), batch("gpt2"))
    tied = [names for names in captured.names.values() if len(names) > 1]
    assert tied == [("transformer.wte.weight", "lm_head.weight")]
    weights = [one for one in captured.program.storages if one.kind == "weight"]
    assert sum(one.nbytes for one in weights) == sum(one.nbytes for one in gpt2().parameters())


def test_a_gradient_lives_from_its_last_contribution_to_its_update() -> None:
    model = made("llama").train()
    captured = capture_training(model, (), batch("llama"), optimizer=torch.optim.AdamW(model.parameters()))
    program = captured.program
    assert len(program.storages) == len({one.name for one in program.storages})
    for update in (op for op in program.ops if op.phase == "update"):
        (gradient,) = update.reads
        uses = [op.index for op in program.ops if gradient in op.touches]
        assert uses[-1] == update.index
        assert program.storages[gradient].kind == "gradient"
        assert update.index - uses[-2] <= 3  # the other gradient of the same product comes between
    updated = [op.index for op in program.ops if op.phase == "update"]
    assert len(updated) == len(list(model.parameters()))
    assert updated[0] < len(program.ops) / 2 + 20  # not all at the end


def test_random_operators_and_changes_run_once_only() -> None:
    captured = capture_training(made("gpt2").train(), (), batch("gpt2"))
    program = captured.program
    changed = {one for op in program.ops for one in op.changes}
    drawn = [op for op in program.ops if "bernoulli" in op.name]
    assert len(drawn) == 1 + 3 * 2
    for op in program.ops:
        assert not op.again or (not op.changes and changed.isdisjoint(op.makes))
    assert not any(op.again for op in drawn)


def test_operators_say_where_they_come_from_backward_too() -> None:
    captured = capture_training(made("llama").train(), (), batch("llama"))
    products = [op for op in captured.program.ops if op.name == "aten.mm.default"]
    assert len(products) == 3 * (2 * 7 + 1)
    for op in products:
        assert op.where.startswith(("model.layers.", "lm_head ")), op
        assert "modeling_llama.py:" in op.where


def test_a_cache_comes_out_and_goes_in() -> None:
    model = made("llama").eval()
    ids = batch("llama")["input_ids"]
    first = executor(capture(model, (ids,), {"use_cache": True}), model, least)
    with torch.no_grad():
        plain = model(ids, use_cache=True).past_key_values
    ours = first(ids, use_cache=True).past_key_values
    assert type(ours) is type(plain)
    for one, two in zip(ours.layers, plain.layers, strict=True):
        assert same([one.keys, one.values], [two.keys, two.values])
    step = {"past_key_values": ours, "use_cache": True}
    run = executor(capture(model, (ids[:, :1],), step), model, least)
    logits = run(ids[:, :1], **step).logits
    with torch.no_grad():
        assert same([logits], [model(ids[:, :1], past_key_values=plain, use_cache=True).logits])


class Chooser(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Takes another path for other values, of an input or of what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: Any, mask: Any = None) -> Any:
        y = self.inner(x)
        if mask is not None:
            return y if mask.all() else y * mask
        return y if y.sum() > 0 else -y


def test_what_depends_on_computed_values_is_refused_with_module_and_line() -> None:
    with pytest.raises(CaptureFailed, match=r"test_capture.py:\d+ \(return y if y.sum\(\) > 0 else -y\)"):
        capture(torch.nn.Sequential(torch.nn.Identity(), Chooser()), (torch.ones(2, 4),))
    with pytest.raises(CaptureFailed, match=r"^module '1' cannot be captured"):
        capture(torch.nn.Sequential(torch.nn.Identity(), Chooser()), (torch.ones(2, 4),))


def test_what_depends_on_an_integer_input_is_good_for_values_of_which_the_same_follows() -> None:
    model, x = Chooser(), torch.ones(2, 4)
    some, other, every = (torch.tensor(one) for one in ([True, False], [False, True], [True, True]))
    for given, alike, unlike in ((some, other, every), (every, every, some)):
        given, alike, unlike = (one.repeat(2) for one in (given, alike, unlike))
        run = executor(capture(model, (x, given)), model, least)
        for mask in (given, alike):
            assert same([run(x, mask)], [model(x, mask)])
        with pytest.raises(BadInput, match=r"test_capture.py:\d+: what the model does depends on .*input\[0\]\[1\]"):
            run(x, unlike)


class Taking(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Takes rows by a mask: how many there are is in its values."""

    def forward(self, x: Any, mask: Any) -> Any:
        return x[mask] * 2, x[0].masked_select(mask[:4]), torch.nonzero(mask)


def test_shapes_that_follow_from_an_integer_input_are_good_for_as_many() -> None:
    model, x = Taking(), torch.randn(5, 4)
    mask, alike = torch.tensor([True, False, True, False, False]), torch.tensor([False, True, False, True, False])
    run = executor(measured(capture(model, (x, mask))), model, least)
    for given in (mask, alike):
        assert same(run(x, given), model(x, given))
    with pytest.raises(BadInput, match="depends on the values"):
        run(x, ~mask)


class Clamping(torch.nn.Module):  # type: ignore[misc, name-defined]
    """As transformers' detection models do in training; and a layer that is left out with a chance of 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        if torch.rand([]) < 0.0:
            return x
        y = self.layer(x)
        if not torch.isfinite(y).all() or torch.isnan(y).any() or torch.isinf(y).any():
            y = torch.clamp(y, -1e4, 1e4)
        return y


def test_what_is_done_to_infinite_numbers_only_is_left_out_and_looked_for() -> None:
    model, x = Clamping(), torch.randn(3, 4)
    run = executor(measured(capture(model, (x,))), model, least)
    assert same([run(x)], [model(x)])
    with pytest.raises(BadInput, match="whether numbers are finite"):
        run(x.index_fill(0, torch.tensor([1]), torch.inf))
    assert same([run(x)], [model(x)])


def test_numbers_that_python_or_numpy_draw_are_refused() -> None:
    class Drawing(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x * (random.random() if x.shape[0] == 1 else numpy.random.rand())

    for rows, whose in ((1, "Python's random"), (2, "numpy.random")):
        with pytest.raises(CaptureFailed, match=rf"draws from {whose}"):
            capture(Drawing(), (torch.ones(rows, 2),))


def test_other_arguments_than_those_captured_are_refused() -> None:
    model = torch.nn.Linear(4, 4)
    run = executor(capture(model, (torch.ones(2, 4),)), model, stay)
    with pytest.raises(BadInput, match=r"float32 \(2, 4\), got one of torch.float32 \(3, 4\)"):
        run(torch.ones(3, 4))
    with pytest.raises(BadInput, match=r"keyword arguments \(none\), got input"):
        run(input=torch.ones(2, 4))
    with pytest.raises(BadInput, match="arguments of the form"):
        run([torch.ones(2, 4)])
    for other in (torch.ones(2, 4, device="meta"), torch.ones(2, 4).to_sparse()):
        with pytest.raises(BadInput, match="dense tensors with their values"):
            run(other)


def test_keyword_arguments_may_come_in_any_order() -> None:
    model = Subtracting()
    x, y = torch.ones(2), torch.zeros(2)
    run = executor(capture(model, (), {"a": x, "b": y}), model, stay)
    assert torch.equal(run(b=y, a=x), x)
    assert torch.equal(run(a=y, b=x), -x)


@pytest.mark.parametrize("model", [lambda x: x, None, torch.nn.functional.relu])
def test_what_is_no_module_is_refused(model: Any) -> None:
    with pytest.raises(BadInput, match=r"torch\.nn\.Module"):
        capture(model, (torch.ones(2),))


def test_sparse_inputs_are_refused() -> None:
    with pytest.raises(BadInput, match=r"input\[0\]\[0\] has layout torch.sparse_coo"):
        capture(torch.nn.Linear(4, 4), (torch.ones(2, 4).to_sparse(),))


def test_optimizer_of_another_model_is_refused_and_says_which_parameters() -> None:
    model, other, x = torch.nn.Linear(4, 4), torch.nn.Linear(4, 3), torch.ones(2, 4)
    for optimizer in (torch.optim.AdamW(other.parameters()), torch.optim.SGD([*model.parameters(), other.bias], lr=1)):
        with pytest.raises(BadInput, match=r"not the model's \(number . of group 0, float32 \(3"):
            capture_training(model, (x,), loss=torch.sum, optimizer=optimizer)
    stale = torch.optim.SGD(model.parameters(), lr=1.0)
    model.weight = torch.nn.Parameter(model.weight.detach().clone())
    with pytest.raises(BadInput, match="1 of 2 parameters"):
        capture_training(model, (x,), loss=torch.sum, optimizer=stale)
    capture_training(model, (x,), loss=torch.sum, optimizer=torch.optim.SGD([model.weight], lr=1.0))  # some will do


def test_optimizers_that_are_not_known_are_refused() -> None:
    model = torch.nn.Linear(4, 4)
    for optimizer in (torch.optim.Adagrad(model.parameters()), torch.optim.SGD(model.parameters(), fused=True)):
        with pytest.raises(CaptureFailed, match=r"optimizer|leave fused out"):
            capture_training(model, (torch.ones(2, 4),), loss=torch.sum, optimizer=optimizer)
    for options in ({"lr": torch.tensor(0.1)}, {"betas": (torch.tensor(0.9), torch.tensor(0.99))}):
        adam = torch.optim.Adam(model.parameters(), **options)
        with pytest.raises(CaptureFailed, match="give a float"):
            capture_training(model, (torch.ones(2, 4),), loss=torch.sum, optimizer=adam)


class Subtracting(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, a: Any, b: Any) -> Any:
        return a - b


class Counting(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Changes a buffer in place, has a constant, returns its input and a view of what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.fixed = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, x: Any) -> Any:
        self.seen += x.sum(0)
        local = torch.tensor([5.0, 6.0, 7.0])
        local += 1
        return {"input": x, "row": (x * self.fixed + local)[1], "seen": self.seen * 1, "none": None}


@pytest.mark.parametrize("planner", [stay, least])
def test_buffers_changed_in_place_are_kept_and_constants_are_not(planner: Any) -> None:
    model, plain = Counting(), Counting()
    run = executor(capture(model, (torch.ones(2, 3),)), model, planner)
    for number in range(3):
        x = torch.full((2, 3), float(number + 1))
        ours, expected = run(x), plain(x)
        assert ours.pop("none") is None
        assert expected.pop("none") is None
        assert same(ours.values(), expected.values())
        assert bits(model.seen) == bits(plain.seen)


def test_batch_norm_in_training_updates_its_averages() -> None:
    def make() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.ReLU()).train()

    model, plain, x = make(), make(), torch.randn(2, 3, 9, 9)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    captured = capture_training(model, (x,), loss=torch.sum, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    run = executor(captured, model, least)
    for _ in range(3):
        loss = plain(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert same(run(x), [loss])
        assert same(model.state_dict().values(), plain.state_dict().values())


def test_measuring_fills_in_times_and_finds_what_is_taken_outside() -> None:
    model = made("llama").train()
    captured = capture_training(model, (), batch("llama"), optimizer=torch.optim.AdamW(model.parameters()))
    assert captured.updates is not None
    state, steps = torch.get_rng_state(), captured.updates.step
    timed = measured(captured, rounds=1)
    assert torch.equal(state, torch.get_rng_state())
    assert captured.updates.step == steps
    assert all(op.seconds > 0 for op in timed.program.ops)
    assert timed.program.key == captured.program.key
    outside = {op.name: taken for op, taken in zip(captured.program.ops, timed.outside, strict=True)}
    assert outside["aten.mm.default"] == 0
    made_outside = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    (sample, *_) = (call for call in captured.calls if call.name == made_outside)
    assert outside[made_outside] >= sum(captured.program.storages[view.storage].nbytes for view in sample.makes if view)


def test_equal_models_have_equal_keys_and_others_have_others() -> None:
    one, two = capture(made("llama"), (), batch("llama")), capture(made("llama"), (), batch("llama", 1))
    other = capture(llama(hidden_act="gelu"), (), batch("llama"))
    assert one.program == two.program
    assert one.program.key != other.program.key
