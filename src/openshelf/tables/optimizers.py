"""Optimizers of tables. Native code (`native/simd/bags.hpp`) applies them, to the rows of a batch only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from openshelf.errors import BadInput, Mismatch

Settings = tuple[float, float, float, float]
"""Learning rate, eps, and Adam's two betas, as the table's head has them."""


def _float32(value: Any, what: str) -> float:
    """What native code computes with."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise Mismatch(f"{what} is a number, got {value!r}")
    with np.errstate(over="ignore", under="ignore"):
        try:
            return float(np.float32(float(value)))
        except OverflowError:
            return math.inf


def _check(lr: float, eps: float) -> None:
    rate, least = _float32(lr, "a learning rate"), _float32(eps, "eps")
    if not (math.isfinite(rate) and rate > 0):
        raise BadInput(f"a learning rate is positive and finite as float32, got lr={lr!r}")
    if not (math.isfinite(least) and least >= 0) or (least == 0 and eps != 0):
        raise BadInput(f"eps is not negative and finite as float32, and 0 only if it is given so, got {eps!r}")


@dataclass(frozen=True)
class SGD:
    """row -= lr * gradient. No state."""

    lr: float

    def __post_init__(self) -> None:
        _check(self.lr, 0)

    @property
    def settings(self) -> Settings:
        return float(self.lr), 0.0, 0.0, 0.0


@dataclass(frozen=True)
class Adagrad:
    """As torch.optim.Adagrad: the state is a sum of squares for each number."""

    lr: float
    eps: float = 1e-10

    def __post_init__(self) -> None:
        _check(self.lr, self.eps)

    @property
    def settings(self) -> Settings:
        return float(self.lr), float(self.eps), 0.0, 0.0


@dataclass(frozen=True)
class RowwiseAdagrad:
    """As FBGEMM's EXACT_ROWWISE_ADAGRAD: the state is one number a row, a sum of mean squares."""

    lr: float
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check(self.lr, self.eps)

    @property
    def settings(self) -> Settings:
        return float(self.lr), float(self.eps), 0.0, 0.0


@dataclass(frozen=True)
class Adam:
    """As FBGEMM's ADAM: torch.optim.Adam's formula for the rows of a batch; states of other rows do not decay.

    The number of the step is the table's: how many updates it had, by anybody.
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check(self.lr, self.eps)
        if not isinstance(self.betas, tuple | list) or len(self.betas) != 2:
            raise Mismatch(f"betas are two numbers, got {self.betas!r}")
        if not all(0 <= _float32(beta, "a beta") < 1 for beta in self.betas):
            raise BadInput(f"betas are from 0 to less than 1 as float32, got {self.betas!r}")

    @property
    def settings(self) -> Settings:
        first, second = self.betas
        return float(self.lr), float(self.eps), float(first), float(second)


Optimizer = SGD | Adagrad | RowwiseAdagrad | Adam
KINDS: tuple[type[Optimizer], ...] = (SGD, Adagrad, RowwiseAdagrad, Adam)
NAMES = ("sgd", "adagrad", "rowwise_adagrad", "adam")


def from_settings(kind: int, settings: Settings) -> Optimizer | None:
    """What a table was made with; None: no learning rate was given."""
    lr, eps, first, second = settings
    if not lr:
        return None
    if kind == 0:
        return SGD(lr)
    return Adam(lr, (first, second), eps) if kind == 3 else (Adagrad if kind == 1 else RowwiseAdagrad)(lr, eps)
