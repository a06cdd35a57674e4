"""Ray, or an error that names the extra. Untyped: where types are checked there may be no Ray."""

from __future__ import annotations

import importlib
from typing import Any

from openshelf.errors import MissingExtra

try:
    ray: Any = importlib.import_module("ray")
    strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] != "ray":
        raise
    raise MissingExtra(
        f"this needs Ray 2 and found no {error.name}: pip install ray (openshelf[ray]), see docs/service.md"
    ) from error
