"""Random models, run and trained by plans: all of their bits are those of plain PyTorch.

What is found here is in test_found_by_fuzzing.py afterwards, as the shortest model that shows it.
"""

from __future__ import annotations

import collections
import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from openshelf import offload  # noqa: E402
from openshelf.errors import BadInput, CaptureFailed  # noqa: E402
from openshelf.offload.planner.plan import make_plan  # noqa: E402
from openshelf.offload.program.lifetimes import lifetimes  # noqa: E402
from tests.offload.fuzz.random_models import Drawn, loss_of, random_model, tensors_of  # noqa: E402
from tests.offload.rates import RATES  # noqa: E402

SHARES = ((0.0, False), (0.0, True), (0.4, True), (0.7, False), (1.0, True))  # of the budget; what fits stays
OPTIMIZERS: list[Any] = [
    lambda params: torch.optim.SGD(params, lr=0.1),
    lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=0.01),
    lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True),
    lambda params: torch.optim.AdamW(params, lr=0.01),
]


@pytest.fixture(autouse=True)
def quiet(own_cache: Path, one_thread: None) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def bits(tensors: Any) -> list[Any]:
    found = []
    for one in tensors:
        dense = torch.empty(one.shape, dtype=one.dtype).copy_(one.detach())
        found.append((one.dtype, tuple(one.shape), dense.flatten().view(torch.uint8).numpy().tobytes()))
    return found


def runs(captured: Any, model: Any) -> Iterator[Any]:
    """The program at several budgets."""
    known = lifetimes(captured.program)
    for share, stay in SHARES:
        budget = known.least + int((known.live_peak - known.least) * share)
        plan = make_plan(captured.program, budget, RATES, stay=stay, time_limit=0.02, cache=False)
        with offload.ModelPlan(captured, plan, ((), {})).load(model) as run:
            yield run


def state_of(run: Any, plain: Any) -> tuple[list[Any], list[Any]]:
    found, expected = run.state_dict(), plain.state_dict()
    return bits(found.values()), bits(expected[name] for name in found)


def copied(batch: Any) -> tuple[Any, ...]:
    return tuple(one.clone() for one in batch)


def check_runs(seed: int) -> None:
    drawn = random_model(seed)
    plan = offload.plan(drawn.model, drawn.batches[0], "1GiB", fabric=RATES, cache=False, time_limit=0.02)
    with torch.no_grad():
        expected, plain = _ran(random_model(seed))
    for run in runs(plan.captured, drawn.model):
        for number, (batch, (tree, theirs, state)) in enumerate(zip(drawn.batches, expected, strict=True)):
            torch.manual_seed(number)
            given = copied(batch)
            result = run(*given)
            assert torch.utils._pytree.tree_structure(result) == tree
            assert bits(tensors_of(result) + list(given)) == theirs, f"call {number}"
            assert torch.equal(torch.get_rng_state(), state)
        ours, theirs = state_of(run, plain)
        assert ours == theirs


def check_trains(seed: int) -> None:
    drawn = random_model(seed)
    make, micro = drawn.draw.choice(OPTIMIZERS), drawn.draw.choice([1, 1, 2])
    clip = drawn.draw.choice([None, None, 0.1])
    more = {"optimizer": make(drawn.model.parameters()), "micro": micro, "clip": clip, "loss": loss_of}
    plan = offload.plan(drawn.model, drawn.batches[0], "1GiB", fabric=RATES, cache=False, time_limit=0.02, **more)
    expected, plain = _trained(random_model(seed), make, micro, clip)
    for run in runs(plan.captured, drawn.model):
        for step, (losses, state) in enumerate(expected):
            torch.manual_seed(step)
            found = run.step([(_batch(drawn, step, number), {}) for number in range(micro)])
            assert bits(found) == losses, f"step {step}"
            assert torch.equal(torch.get_rng_state(), state)
        ours, theirs = state_of(run, plain)
        assert ours == theirs


class PlainFails(Exception):
    """Of a model: a matrix became singular, say."""


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PlainFails from error


@_plainly()
def _ran(drawn: Drawn) -> tuple[list[Any], Any]:
    """By plain PyTorch: form and bits of results, arguments and the generator after each call; the model after all."""
    expected = []
    for number, batch in enumerate(drawn.batches):
        torch.manual_seed(number)
        given = copied(batch)
        result = drawn.model(*given)
        theirs = bits(tensors_of(result) + list(given))  # what it changes in its arguments, too
        expected.append((torch.utils._pytree.tree_structure(result), theirs, torch.get_rng_state()))
    return expected, drawn.model


@_plainly()
def _trained(drawn: Drawn, make: Any, micro: int, clip: float | None) -> tuple[list[Any], Any]:
    """By plain PyTorch: bits of losses and the generator's state after each step, and the model after all."""
    optimizer, expected = make(drawn.model.parameters()), []
    for step in range(3):
        torch.manual_seed(step)
        losses = []
        for number in range(micro):
            losses.append(loss_of(drawn.model(*copied(_batch(drawn, step, number)))))
            losses[-1].backward()
        if clip is not None:
            losses.append(torch.nn.utils.clip_grad_norm_(drawn.model.parameters(), clip))
        optimizer.step()
        optimizer.zero_grad()
        expected.append((bits(losses), torch.get_rng_state()))
    return expected, drawn.model


def _batch(drawn: Drawn, step: int, number: int) -> tuple[Any, ...]:
    return drawn.batches[(step + number) % len(drawn.batches)]


def check(seed: int) -> str:
    """What came of this model: it ran, or was refused. An error names what to call again."""
    train = random_model(seed).model.trains and seed % 3 > 0
    try:
        (check_trains if train else check_runs)(seed)
    except (CaptureFailed, BadInput, PlainFails) as error:
        return f"refused: {error}"
    except Exception as error:
        error.add_note(f"check({seed})")
        raise
    return "trained" if train else "ran"


@pytest.mark.parametrize("first", [0, 10, 20, pytest.param(1000, marks=pytest.mark.soak)])
def test_random_models_do_as_in_plain_torch(first: int) -> None:
    number = 1500 if first >= 1000 else 10
    counts = collections.Counter(check(seed).split(":")[0] for seed in range(first, first + number))
    assert counts["ran"] + counts["trained"] > 0.75 * number
    assert min(counts["ran"], counts["trained"]) > 0.1 * number
