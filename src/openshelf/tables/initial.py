"""What new rows hold. Random numbers depend on the seed, the row and the column only."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from openshelf._sizes import whole
from openshelf.errors import BadInput, Mismatch, OpenshelfError
from openshelf.tables.arguments import is_tensor

GivenInit = tuple[int, float, float, int]


@dataclass(frozen=True)
class Uniform:
    """Numbers from `low` to less than `high`, all as likely. Without a seed, a random one."""

    low: float
    high: float
    seed: int | None = None

    @property
    def given(self) -> GivenInit:
        low, high = _finite(self.low, "low"), _finite(self.high, "high")
        if not low < high:
            raise BadInput(f"low is below high, got {self.low!r} and {self.high!r}")
        return 1, low, high, _seed(self.seed)


@dataclass(frozen=True)
class Normal:
    """Normally distributed numbers. Without a seed, a random one."""

    mean: float = 0.0
    std: float = 1.0
    seed: int | None = None

    @property
    def given(self) -> GivenInit:
        mean, std = _finite(self.mean, "mean"), _finite(self.std, "std")
        if std < 0:
            raise BadInput(f"std is not negative, got {self.std!r}")
        return 2, mean, std, _seed(self.seed)


def init_of(init: Any) -> tuple[GivenInit, Any]:
    """What native code fills rows with, and the rows that a caller gave instead, if any."""
    if init is None or (isinstance(init, str) and init == "zeros"):
        return (0, 0.0, 0.0, 0), None
    if isinstance(init, Uniform | Normal):
        return init.given, None
    if isinstance(init, str):
        raise BadInput(f"init={init!r}: expected 'zeros', a Uniform, a Normal, or rows")
    return (0, 0.0, 0.0, 0), init if is_tensor(init) else _rows(init)


def _rows(rows: Any) -> Any:
    """Of a list, or what else numpy makes an array of. What can be sliced is read in slices, as it may be in a file."""
    if isinstance(getattr(rows, "shape", None), tuple) and hasattr(rows, "__getitem__"):
        return rows
    try:
        return np.asarray(rows)
    except OpenshelfError:
        raise
    except Exception as error:  # of any object's own __array__, too
        raise Mismatch(f"init= is 'zeros', a Uniform, a Normal, or rows, got {type(rows).__name__}: {error}") from None


def _finite(value: float, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise Mismatch(f"{what} is a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadInput(f"{what} is a finite number, got {value!r}")
    return number


def _seed(seed: int | None) -> int:
    if seed is None:
        return secrets.randbits(63)
    number = whole(seed, "a seed")
    if not 0 <= number < 1 << 64:
        raise BadInput(f"a seed is from 0 to 2^64 - 1, got {seed!r}")
    return number
