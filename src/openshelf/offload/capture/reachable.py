"""What can be reached from a value, through any object: to find tensors in it, and to put it back as it was.

Unlike `tree.py`, which hands on only what it knows, this looks into everything but modules and constants.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

from openshelf.offload.capture.tree import is_constant
from openshelf.offload.program.torch import torch


def tensors_in(value: Any) -> list[Any]:
    """All tensors that can be reached from a value, through any object but modules."""
    return [one for one in _reached(value) if isinstance(one, torch.Tensor)]


def restorer(value: Any) -> Callable[[], None]:
    """What puts all lists, dicts and objects that can be reached from a value back as they are now."""
    states = [
        (one, one.copy() if isinstance(one, (list, dict)) else dict(vars(one)))
        for one in _reached(value)
        if type(one) in (list, dict) or (hasattr(one, "__dict__") and not isinstance(one, (torch.Tensor, dict, list)))
    ]

    def restore() -> None:
        for one, before in states:
            if isinstance(one, list):
                one[:] = before
            else:
                table = one if isinstance(one, dict) else vars(one)
                table.clear()
                table.update(before)

    return restore


def _reached(value: Any) -> list[Any]:
    found: dict[int, Any] = {}
    left = [value]
    while left:
        one = left.pop()
        if id(one) in found or is_constant(one) or isinstance(one, (torch.nn.Module, types.ModuleType)):
            continue
        found[id(one)] = one
        if isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, (list, tuple, set, frozenset, collections.deque)):
            left.extend(one)
        if hasattr(one, "__dict__") and not isinstance(one, torch.Tensor):
            left.extend(vars(one).values())
    return list(found.values())
