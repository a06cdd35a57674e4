"""A model that is to be tried, what it is called with, and the ways in which that ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


class NotBuilt(Exception):
    """No tiny model of it runs in plain PyTorch."""


class NotCompared(Exception):
    """Plain PyTorch itself gives other results the second time, or fails."""


class Wrong(AssertionError):
    """Results differ from plain PyTorch's."""


@dataclasses.dataclass(frozen=True)
class Built:
    """A model in evaluation mode; `batch(seed)` are arguments, `loss` makes a loss of its result."""

    model: Any
    batch: Callable[[int], dict[str, Any]]
    loss: Callable[[Any], Any] | None = None
