"""transformers' caches and torch, or an error that names the extra. Untyped: type-checking them takes minutes."""

from __future__ import annotations

import importlib
from typing import Any

from openshelf._dtypes import torch_module
from openshelf.errors import MissingExtra

try:
    caches: Any = importlib.import_module("transformers.cache_utils")
except ImportError as error:
    raise MissingExtra(
        "this needs transformers, which is not installed: pip install transformers (openshelf[transformers])"
    ) from error
torch: Any = torch_module()
