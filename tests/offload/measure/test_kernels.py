"""Every form in which an operator runs in an arena gives the bytes that it gives outside."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from openshelf.offload.capture.capture import capture  # noqa: E402
from openshelf.offload.measure.operators import _Ring, measured  # noqa: E402
from tests.offload.ends import least, stay  # noqa: E402
from tests.offload.models import executor, same  # noqa: E402

F: Any = torch.nn.functional
INDICES = torch.tensor([[3, 1, 3, 0, 2], [4, 4, 3, 1, 0]])

CASES: dict[str, Callable[[Any], Any]] = {
    "unary": lambda x: [torch.exp(x), x.sigmoid(), F.gelu(x), F.silu(x), x.abs().sqrt(), -x],
    "binary": lambda x: [x + x.T, x * 3.5, x / 7, 2 - x, x**2, torch.where(x > 0, x, x.T)],
    "strides": lambda x: [x.T * x.T, x[::2] + 1, x.expand(3, 5, 5) * 2, x.T.contiguous(), x[:, 1:4].T @ x],
    "products": lambda x: [x @ x, x.T @ x, torch.addmm(x[0], x, x), torch.baddbmm(x, x[None], x[None]), x @ x[0]],
    "sums": lambda x: [x.sum(), x.mean(-1), x.var(0), x.amax(1, keepdim=True), x.cumsum(0), x.norm(), x.argmax(1)],
    "several results": lambda x: [*x.max(0), *x.topk(2), *x.sort(1), *torch.var_mean(x, 0), *x.split(2), *x.unbind()],
    "lists": lambda x: [
        torch.cat([x, x.T]),
        torch.stack([x, x]),
        *torch._foreach_add([x], 1),
        *torch._foreach_exp([x, x]),
    ],
    "norms": lambda x: [F.layer_norm(x, (5,)), F.rms_norm(x, (5,)), F.softmax(x, 0), F.log_softmax(x, 1)],
    "attention": lambda x: F.scaled_dot_product_attention(
        *(x.view(1, 1, 5, 5).expand(2, 3, 5, 5),) * 3, is_causal=True
    ),
    "rows": lambda x: [F.embedding(INDICES, x), F.embedding(INDICES.T, x), F.embedding(INDICES[:1].expand(3, 5), x)],
    "indices": lambda x: [x[INDICES], x.gather(1, INDICES[:, :5]), x.index_add(0, INDICES[0], x), x[x.argsort(0)[0]]],
    "fills": lambda x: [x * 0 + torch.full((5, 5), 2.5), torch.full_like(x, 7) + x, x.new_full((2,), 3) * x[0, 0]],
    "in place": lambda x: x.clone().add_(1).mul_(x).t_().relu_(),
    "parts written": lambda x: torch.zeros(6, 5).index_fill_(0, INDICES[0], 2.0)[:5].copy_(x).fill_diagonal_(4.0),
    "convolution": lambda x: F.conv2d(x.view(1, 1, 5, 5), x[:3, :3].reshape(1, 1, 3, 3), padding=1),
    "types": lambda x: [(x > 0).sum(), x.double() @ x.double(), x.long().float(), (x > 0) & (x < 1), x.to(torch.int32)],
    "nothing in it": lambda x: [x[:0] * 2, torch.cat([x[:0], x]), x[:, :0].sum(1)],
    "one number": lambda x: [x[2, 3] * 2, torch.tensor(3.0) * x.sum(), x.sum() / x.numel()],
}


class Case(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, body: Callable[[Any], Any]) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(x)


@pytest.mark.parametrize("name", CASES)
def test_results_in_an_arena_are_those_outside(name: str) -> None:
    model = Case(CASES[name])
    x = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    captured = capture(model, (torch.zeros(5, 5),))
    expected = model(x)
    expected = expected if isinstance(expected, list) else [expected]
    for planner in (stay, least):
        run = executor(captured, model, planner)
        for _ in range(2):
            ours = run(x)
            ours = ours if isinstance(ours, list) else [ours]
            assert same(ours, expected)
            assert [one.stride() for one in ours] == [one.stride() for one in expected]
    assert len(measured(captured, rounds=1).outside) == len(captured.calls)


@given(st.lists(st.dictionaries(st.integers(0, 9), st.just(0), min_size=1, max_size=4), max_size=30), st.randoms())
def test_storages_of_a_call_are_apart_in_the_ring(calls: list[dict[int, int]], random: Any) -> None:
    sizes = {storage: random.randint(1, 50) for storage in range(10)}
    ring = _Ring(2 * max((sum(sizes[storage] for storage in call) for call in calls), default=0))
    for call in calls:
        places = ring.places({storage: sizes[storage] for storage in call})
        spans = sorted((places[storage], places[storage] + sizes[storage]) for storage in call)
        assert spans[0][0] >= 0
        assert spans[-1][1] <= ring.nbytes
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))


def test_timing_ends_when_its_time_is_over_and_says_what_was_hurried() -> None:
    captured = capture(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), (torch.ones(2, 8),))
    whole, hurried = measured(captured), measured(captured, time_limit=0.0)
    assert whole.hurried == ()
    assert [one.split()[0] for one in hurried.hurried] == ["aten.addmm.default", "aten.relu.default"]
    assert hurried.outside == whole.outside
    assert all(op.seconds > 0 for op in hurried.program.ops)
