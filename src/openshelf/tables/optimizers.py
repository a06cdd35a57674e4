"""Optimizers of tables. Native code (`native/tables/bags.hpp`) applies them, to the rows of a batch only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from openshelf.errors import BadInput

Settings = tuple[float, float, float, float]
"""Learning rate, eps, and Adam's two betas, as the table's head has them."""


def _check(lr: float, eps: float) -> None:
    if not (math.isfinite(lr) and lr > 0):
        raise BadInput(f"a learning rate is positive and finite, got lr={lr!r}")
    if not (math.isfinite(eps) and eps >= 0):
        raise BadInput(f"eps is not negative and finite, got {eps!r}")


@dataclass(frozen=True)
class SGD:
    """row -= lr * gradient. No state."""

    lr: float

    def __post_init__(self) -> None:
        _check(self.lr, 0)

    @property
    def settings(self) -> Settings:
        return self.lr, 0.0, 0.0, 0.0


@dataclass(frozen=True)
class Adagrad:
    """As torch.optim.Adagrad: the state is a sum of squares for each number."""

    lr: float
    eps: float = 1e-10

    def __post_init__(self) -> None:
        _check(self.lr, self.eps)

    @property
    def settings(self) -> Settings:
        return self.lr, self.eps, 0.0, 0.0


@dataclass(frozen=True)
class RowwiseAdagrad:
    """As FBGEMM's EXACT_ROWWISE_ADAGRAD: the state is one number a row, a sum of mean squares."""

    lr: float
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check(self.lr, self.eps)

    @property
    def settings(self) -> Settings:
        return self.lr, self.eps, 0.0, 0.0


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
        if not all(0 <= beta < 1 for beta in self.betas):
            raise BadInput(f"betas are from 0 to less than 1, got {self.betas!r}")

    @property
    def settings(self) -> Settings:
        return self.lr, self.eps, *self.betas


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
