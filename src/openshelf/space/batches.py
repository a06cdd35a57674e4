"""Arrays in the batches of torch's DataLoader: its default_collate learns to make a tensor of them, as of ndarrays.

torch keeps a table of what it can make batches of, for others to add to. It is loaded with torch's loader, perhaps long
after this package, so the first Array that is made after it adds the entry.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

_COLLATE = "torch.utils.data._utils.collate"
_taught = False


def teach_torch(kind: type) -> None:
    """Once, when torch's loader is there: batches of this kind of Array, and of its parts, are tensors."""
    global _taught
    if _taught or _COLLATE not in sys.modules:
        return
    if (known := getattr(sys.modules[_COLLATE], "default_collate_fn_map", None)) is not None:
        known[kind] = _batch
        _taught = True


def _batch(rows: list[Any], *, collate_fn_map: Any = None) -> Any:
    tensors = [_tensor(row) for row in rows]
    return sys.modules[_COLLATE].default_collate(tensors)


def _tensor(row: Any) -> Any:
    """A view, or a copy of what is read-only: torch would warn of it."""
    if not row._is_read_only():
        return row.torch()
    torch = sys.modules["torch"]
    if row._torch_only():
        return torch.from_numpy(np.array(row.numpy("uint8"))).view(getattr(torch, row.dtype)).view(row.shape)
    return torch.from_numpy(np.array(row.numpy()))
