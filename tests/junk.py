"""What callers give by mistake, and calls with it: they find exceptions that are not of this package."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openshelf.errors import OpenshelfError

JUNK: list[Any] = [
    None, True, -1, 1 << 70, -(1 << 70), 1.5, float("nan"), "", "\0", "\udc80", "a" * 5000, "~nobody-of-this-name/x",
    "bfloat16", b"x", object(), [], {}, (1, 2), [None], [object()], {"a": 1}, int, len, Path("/nonexistent/x"),
    np.zeros(2), np.array([[1.5]]), np.array(["x"], object), np.float32, torch.zeros(2),
]  # fmt: skip
LONG = (None, True, 1 << 70, 1.5)  # seconds that a test has no time for


def raw_errors(call: Callable[[Any], Any]) -> list[str]:
    """What escapes of a call with each of them."""
    found = []
    for junk in JUNK:
        try:
            call(junk)
        except OpenshelfError:
            pass
        except Exception as error:
            found.append(f"{junk!r:.40}: {type(error).__name__}: {error!s:.100}")
    return found


def raw_errors_of_methods(thing: Any, good: Mapping[str, Any], besides: tuple[str, ...] = ()) -> list[str]:
    """The same of every method and each of its arguments, while the others are good."""
    found = []
    for name in dir(type(thing)):
        static = inspect.getattr_static(type(thing), name)
        if name.startswith("_") or name in besides or not inspect.isfunction(static):
            continue
        parameters = inspect.signature(getattr(thing, name)).parameters.values()
        needed = {each.name: good[each.name] for each in parameters if each.default is each.empty}
        if any(each.name == "timeout" for each in parameters):
            needed["timeout"] = 0.01
        for each in parameters:

            def call(junk: Any, method: str = name, argument: str = each.name, others: Any = needed) -> None:
                if argument == "timeout" and any(junk is each for each in LONG):
                    return
                getattr(thing, method)(**{**others, argument: junk})

            found += [f"{name}({each.name}=) {what}" for what in raw_errors(call)]
    return found
