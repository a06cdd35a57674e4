"""Random models: small ones, of a dozen operators each, that follow from a number.

A model is made while it runs: an operator is drawn, tried on the tensors that are there, and kept if torch takes it and
what comes out is finite. Called again with the same number, `random_model` makes the same model anew: a twin.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import warnings
from typing import Any

import torch

from tests.offload.fuzz.random_operators import OPERATORS, Step

MOST = 6000  # elements of a tensor, but in models that are to use several threads


class RandomModel(torch.nn.Module):  # type: ignore[misc]
    """What `draw` makes of it. `trains`: torch can compute gradients."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.draw, self.steps, self.returns = draw, list[Step](), list[int]()
        self.tied: dict[int, str] = {}
        self.form, self.trains, self.values = draw.choice(["tuple", "dict", "list", "one"]), True, list[Any]()

    def forward(self, *inputs: Any) -> Any:
        values = list(inputs)
        for step in self.steps:
            values += _tensors(step(self, values))
        found = [values[at] for at in self.returns]
        if self.form == "dict":
            return {f"result {number}": one for number, one in enumerate(found)}
        return found[0] if self.form == "one" else tuple(found) if self.form == "tuple" else found

    def operand(self, like: Any) -> int:
        """Another tensor, one of the same shape if there is."""
        alike = [at for at, one in enumerate(self.values) if one.shape == like.shape]
        return self.draw.choice(alike if self.draw.random() < 0.7 else range(len(self.values)))

    def parameter(self, shape: tuple[int, ...], dtype: Any) -> str:
        name = f"p{len(self.steps)}_{len(self._parameters)}"
        value = torch.randn(shape).to(dtype) * 0.7
        if self.draw.random() < 0.1 and len(shape) == 2:
            value = torch.randn(shape[::-1]).to(dtype).t()  # not contiguous
        graded = value.is_floating_point() and self.draw.random() < 0.85
        self.register_parameter(name, torch.nn.Parameter(value, requires_grad=graded))
        return name

    def buffer(self, value: Any) -> str:
        name = f"b{len(self.steps)}_{len(self._buffers)}"
        self.register_buffer(name, value, persistent=self.draw.random() < 0.8)
        return name

    def buffers_of(self, like: Any) -> list[str]:
        return [name for name, one in self._buffers.items() if (one.shape, one.dtype) == (like.shape, like.dtype)]

    def layer(self, made: Any) -> str:
        name = f"m{len(self.steps)}_{len(self._modules)}"
        self.add_module(name, made)
        if self.draw.random() < 0.1:
            made.requires_grad_(False)
        return name


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A model, batches of its inputs, and what else is drawn: how it is to be trained."""

    model: Any
    batches: list[tuple[Any, ...]]
    draw: random.Random


def random_model(seed: int) -> Drawn:
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        for attempt in itertools.count():
            draw = random.Random(f"{seed}.{attempt}")
            model, shapes = RandomModel(draw).train(draw.random() < 0.6), _shapes(draw)
            batches = [tuple(_input(kind, shape) for kind, shape in shapes) for _ in range(3)]
            _fill(model, batches[0], draw.randint(3, 14))
            if all(_runs(model, batch) for batch in batches):
                break
        model.trains = all(_trains(model, batch) for batch in batches)
    return Drawn(model, batches, random.Random(seed))


def loss_of(result: Any) -> Any:
    """Of all floating-point tensors in a model's result."""
    return sum(
        one.float().mul(0.3 + number).mean() for number, one in enumerate(tensors_of(result)) if one.is_floating_point()
    )


def tensors_of(result: Any) -> list[Any]:
    return [one for one in torch.utils._pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]


def _shapes(draw: random.Random) -> list[tuple[str, tuple[int, ...]]]:
    """One to three inputs; some empty, some of one element, some so large that several threads work on them."""
    sizes = draw.choice([(1, 2, 3), (2, 4, 8), (5, 7, 9), (1, 16, 33), (3, 4, 6)])
    shape = tuple(draw.choice(sizes) for _ in range(draw.randint(1, 4)))
    if draw.random() < 0.05:
        shape = (draw.choice([0, 1]), *shape[1:])
    if draw.random() < 0.04:
        shape = (draw.choice([257, 300]), 131)
    kinds = ["float32"] * 6 + ["float64"] * 2 + ["bfloat16", "float16"]
    found = [(draw.choice(kinds), shape)]
    for _ in range(draw.choice([0, 1, 1, 2])):
        found.append((draw.choice([found[0][0], "int64", "bool"]), shape[draw.randint(0, len(shape) - 1) :]))
    return found


def _input(kind: str, shape: tuple[int, ...]) -> Any:
    if kind == "int64":
        return torch.randint(0, 11, shape)
    return torch.rand(shape) < 0.5 if kind == "bool" else torch.randn(shape).to(getattr(torch, kind))


def _fill(model: RandomModel, batch: tuple[Any, ...], steps: int) -> None:
    draw, model.values = model.draw, [one.clone() for one in batch]
    for _ in range(8 * steps):
        if len(model.steps) == steps:
            break
        if not _try_one(model, draw):  # it may have changed some in place
            model.values = [one.clone() for one in batch]
            for step in model.steps:
                model.values += _tensors(step(model, model.values))
    made = range(len(batch), len(model.values))
    last = [at for at in made if model.values[at].is_floating_point()][-2:]
    others = draw.sample(range(len(model.values)), min(len(model.values), draw.randint(0, 2)))
    model.returns = [*(last or [0]), *others]
    if model.form == "one":
        model.returns = model.returns[:1]
    model.values = []


def _try_one(model: RandomModel, draw: random.Random) -> bool:
    recent = max(len(model.values) - 4, 0) if draw.random() < 0.6 else 0
    at = draw.randrange(recent, len(model.values))
    tables = (model._parameters, model._buffers, model._modules)
    before, tied = [dict(table) for table in tables], dict(model.tied)
    try:
        step = draw.choice(OPERATORS)(model, at, model.values[at])
        found = _tensors(step(model, model.values)) if step is not None else []
        good = bool(found) and all(_is_good(one, model) for one in (*found, *model.values))
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError, NotImplementedError):
        good = False
    if good and step is not None:
        model.steps.append(step)
        model.values += found
        return True
    for table, known in zip(tables, before, strict=True):  # what was registered for nothing
        if draw.random() < 0.9:  # or is a parameter that nobody uses
            for name in set(table) - set(known):
                del table[name]
    model.tied = tied
    return False


def _is_good(tensor: Any, model: RandomModel) -> bool:
    limit = max(MOST, *(4 * one.numel() for one in model.values))
    return tensor.layout == torch.strided and tensor.numel() <= limit and bool(torch.isfinite(tensor).all())


def _tensors(result: Any) -> list[Any]:
    return [
        one for one in (result if isinstance(result, (tuple, list)) else (result,)) if isinstance(one, torch.Tensor)
    ]


def _runs(model: RandomModel, batch: tuple[Any, ...]) -> bool:
    """Whether torch takes these values, too."""
    try:
        model(*(one.clone() for one in batch))
    except (RuntimeError, IndexError):
        return False
    return bool(model.steps)


def _trains(model: RandomModel, batch: tuple[Any, ...]) -> bool:
    buffers = {name: one.clone() for name, one in model.named_buffers()}
    try:
        with contextlib.suppress(AttributeError):
            loss_of(model(*(one.clone() for one in batch))).backward()
            return any(one.grad is not None for one in model.parameters())
    except RuntimeError:
        return False
    finally:
        model.zero_grad()
        with torch.no_grad():
            for name, one in model.named_buffers():
                one.copy_(buffers[name])
    return False
