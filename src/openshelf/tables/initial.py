"""What new rows hold. Random numbers depend on the seed, the row and the column only."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import Any

from openshelf.errors import BadInput

GivenInit = tuple[int, float, float, int]


@dataclass(frozen=True)
class Uniform:
    """Numbers from `low` to less than `high`, all as likely. Without a seed, a random one."""

    low: float
    high: float
    seed: int | None = None


@dataclass(frozen=True)
class Normal:
    """Normally distributed numbers. Without a seed, a random one."""

    mean: float = 0.0
    std: float = 1.0
    seed: int | None = None


def init_of(init: Any) -> tuple[GivenInit, Any]:
    """What native code fills rows with, and the rows that a caller gave instead, if any."""
    if init is None or (isinstance(init, str) and init == "zeros"):
        return (0, 0.0, 0.0, 0), None
    if isinstance(init, Uniform):
        return (1, *_pair(init.low, init.high), _seed(init.seed)), None
    if isinstance(init, Normal):
        return (2, *_pair(init.mean, init.std), _seed(init.seed)), None
    if isinstance(init, str):
        raise BadInput(f"init={init!r}: expected 'zeros', a Uniform, a Normal, or rows")
    return (0, 0.0, 0.0, 0), init


def _pair(first: float, second: float) -> tuple[float, float]:
    if not (math.isfinite(first) and math.isfinite(second)):
        raise BadInput(f"new rows are made of finite numbers, got {first!r} and {second!r}")
    return float(first), float(second)


def _seed(seed: int | None) -> int:
    if seed is None:
        return secrets.randbits(63)
    if not 0 <= seed < 1 << 64:
        raise BadInput(f"a seed is from 0 to 2^64 - 1, got {seed!r}")
    return seed
