"""torch, or an error that names the extra. Untyped: type-checking it takes minutes."""

from __future__ import annotations

from typing import Any

from openshelf.space._dtypes import torch_module

torch: Any = torch_module()
