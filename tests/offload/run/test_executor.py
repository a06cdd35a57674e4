"""Pieces of updates, and counts of what ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from openshelf.offload.capture.capture import capture, capture_training  # noqa: E402
from openshelf.offload.capture.optimizer import GRAIN, pieces  # noqa: E402
from openshelf.offload.program.steps import Prefetch  # noqa: E402
from openshelf.offload.run.executor import Executor  # noqa: E402
from tests.offload.ends import least, stay  # noqa: E402
from tests.offload.in_memory import Copier, homes_in  # noqa: E402


def linear() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def test_a_mover_that_does_not_move_is_found_out() -> None:
    class Idle(Copier):
        def begin_read(self, storage: int, offset: int) -> None:
            pass

    model = linear()
    captured = capture(model, (torch.ones(2, 8),))
    steps, size = stay(captured.program)
    arena = torch.zeros(size, dtype=torch.uint8)
    run = Executor(captured, steps, arena, Idle(arena, homes_in(captured, model)))
    with pytest.raises(AssertionError, match="planned"):
        run(torch.ones(2, 8))


def test_the_least_plan_has_a_smaller_arena_and_moves_more() -> None:
    model = linear()
    captured = capture_training(
        model, (torch.ones(2, 8),), loss=torch.sum, optimizer=torch.optim.Adam(model.parameters())
    )
    (long, small), (short, large) = least(captured.program), stay(captured.program)
    assert small < large
    assert sum(isinstance(one, Prefetch) for one in long) > sum(isinstance(one, Prefetch) for one in short)


@given(st.integers(0, 40 * GRAIN), st.integers(1, 9))
def test_pieces_cover_all_and_end_where_torch_may_end(count: int, threads: int) -> None:
    found = list(pieces(count, threads))
    assert [begin for begin, _ in found] == [0, *(end for _, end in found[:-1])][: len(found)]
    assert (found[-1][1] if found else 0) == count
    ranges = min(threads, -(-count // GRAIN)) if count >= GRAIN else 1
    length = -(-count // ranges)
    for begin, end in found:
        assert (begin - begin // length * length) % GRAIN == 0  # a multiple from the beginning of a thread's range
        assert begin // length == (end - 1) // length
        assert end - begin <= threads * GRAIN


@pytest.mark.parametrize("count", [5, GRAIN - 1, GRAIN + 7, 2 * GRAIN + 77, 5 * GRAIN + 12345])
def test_updates_in_pieces_are_those_of_torch_on_the_whole(count: int) -> None:
    class Weights(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(count, generator=torch.Generator().manual_seed(0)))

        def forward(self, x: Any) -> Any:
            return self.weight * x

    makers: list[Callable[[Any], Any]] = [
        lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=0.1),
        lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
    ]
    for make in makers:
        model, plain = Weights(), Weights()
        x = torch.randn(count, generator=torch.Generator().manual_seed(1))
        optimizer = make(plain.parameters())
        captured = capture_training(model, (x,), loss=torch.sum, optimizer=make(model.parameters()))
        steps, size = least(captured.program)
        arena = torch.zeros(size, dtype=torch.uint8)
        run = Executor(captured, steps, arena, Copier(arena, homes_in(captured, model)))
        for _ in range(3):
            plain(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run(x)
        assert model.weight.detach().numpy().tobytes() == plain.weight.detach().numpy().tobytes()
