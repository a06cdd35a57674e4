"""What a captured program computes in an arena equals plain PyTorch bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from openshelf.offload.capture.capture import capture, capture_training  # noqa: E402
from tests.offload.ends import least, stay  # noqa: E402
from tests.offload.in_memory import homes_in  # noqa: E402
from tests.offload.models import MODELS, batch, executor, same, twins  # noqa: E402

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-3, weight_decay=0.01),
    "amsgrad": lambda params: torch.optim.Adam(params, lr=1e-3, amsgrad=True, maximize=True),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-3),
    "fused adamw": lambda params: torch.optim.AdamW(params, lr=1e-3, fused=True),
    "fused adam": lambda params: torch.optim.Adam(params, lr=1e-3, amsgrad=True, weight_decay=0.01, fused=True),
    "adafactor": lambda params: torch.optim.Adafactor(params),
    "muon": lambda params: torch.optim.Muon([one for one in params if one.ndim == 2], lr=1e-3),
}


@pytest.mark.parametrize("planner", [stay, least])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_model(name: str, planner: Any) -> None:
    model, plain = (one.eval() for one in twins(name))
    captured = capture(model, (), batch(name))
    run = executor(captured, model, planner)
    for seed in (1, 2):
        ours = run(**batch(name, seed))
        with torch.no_grad():
            expected = plain(**batch(name, seed))
        assert type(ours) is type(expected)
        assert same([ours.loss, ours.logits], [expected.loss, expected.logits])
    assert same(model.state_dict().values(), plain.state_dict().values())


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_autograd(name: str) -> None:
    model, plain = (one.train() for one in twins(name))
    captured = capture_training(model, (), batch(name))
    homes = homes_in(captured, model)
    run = executor(captured, model, least, homes)
    torch.manual_seed(5)
    (loss,) = run(**batch(name, 1))
    torch.manual_seed(5)
    expected = plain(**batch(name, 1)).loss
    expected.backward()
    assert same([loss], [expected])
    graded = {key: one.grad for key, one in plain.named_parameters() if one.grad is not None}
    assert set(captured.gradients) == set(graded)
    for key, view in captured.gradients.items():
        ours = homes[view.storage].view(view.dtype).as_strided(view.shape, view.strides, view.offset)
        assert same([ours], [graded[key]]), key


def train(model: Any, optimizer: Any, name: str, steps: int, micro: int = 1, clip: float | None = None) -> list[Any]:
    """Plain torch: the losses of these steps."""
    losses = []
    for step in range(steps):
        for number in range(micro):
            loss = model(**batch(name, step * micro + number)).loss / micro
            loss.backward()
            losses.append(loss.detach())
        if clip is not None:
            losses.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip))
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "adamw") for name in MODELS]
    + [("llama", kind) for kind in OPTIMIZERS if kind != "adamw"]
    + [("gpt2", "adam")],
)
def test_parameters_after_20_steps_are_those_of_torch_optim(name: str, kind: str) -> None:
    model, plain = (one.train() for one in twins(name))
    captured = capture_training(model, (), batch(name), optimizer=OPTIMIZERS[kind](model.parameters()))
    run = executor(captured, model, least)
    torch.manual_seed(7)
    losses = [run(**batch(name, step))[0] for step in range(20)]
    torch.manual_seed(7)
    expected = train(plain, OPTIMIZERS[kind](plain.parameters()), name, 20)
    assert same(losses, expected)
    assert same(model.state_dict().values(), plain.state_dict().values())


@pytest.mark.parametrize("clip", [None, 0.3, 1e6])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_accumulation_and_clipping_are_those_of_torch(name: str, clip: float | None) -> None:
    model, plain = (one.train() for one in twins(name))
    captured = capture_training(
        model,
        (),
        batch(name),
        loss=lambda result: result.loss / 3,
        optimizer=OPTIMIZERS["adamw"](model.parameters()),
        micro=3,
        clip=clip,
    )
    run = executor(captured, model, stay)
    torch.manual_seed(7)
    losses: list[Any] = []
    for step in range(5):
        losses += run.step([((), batch(name, step * 3 + number)) for number in range(3)])
    torch.manual_seed(7)
    expected = train(plain, OPTIMIZERS["adamw"](plain.parameters()), name, 5, 3, clip)
    assert same(losses, expected)
    assert same(model.state_dict().values(), plain.state_dict().values())


@pytest.mark.parametrize("kind", ["momentum", "adamw", "fused adamw", "adafactor", "muon"])
def test_training_goes_on_from_where_torch_optim_was(kind: str) -> None:
    model, plain = (one.train() for one in twins("llama"))
    before, expected = OPTIMIZERS[kind](model.parameters()), OPTIMIZERS[kind](plain.parameters())
    train(model, before, "llama", 2)
    train(plain, expected, "llama", 2)
    captured = capture_training(model, (), batch("llama"), optimizer=before)
    run = executor(captured, model, least)
    for group in (*before.param_groups, *expected.param_groups):
        group["lr"] *= 0.5  # a schedule
    losses = [run(**batch("llama", step))[0] for step in range(2)]
    assert same(losses, train(plain, expected, "llama", 2))
    assert same(model.parameters(), plain.parameters())
