"""Buffers that no checkpoint has, of a model on the meta device: the model has to compute them once more.

transformers' models can: `_init_weights(module)` fills what a module computes for itself, the frequencies of rotary
embeddings for one. It is done twice on memory filled differently, to be sure that all of it was written.
"""

from __future__ import annotations

import copy
from typing import Any

from openshelf.errors import CaptureFailed
from openshelf.offload.program.torch import torch


def computed_buffers(model: Any) -> dict[str, Any]:
    """Name -> tensor, for all buffers that are not saved with the model."""
    found = {}
    for path, module in model.named_modules():
        names = [name for name in module._non_persistent_buffers_set if module._buffers.get(name) is not None]
        if not names:
            continue
        on_meta = any(module._buffers[name].is_meta for name in names)
        values = _computed(model, module, path, names) if on_meta else module._buffers
        found.update({f"{path}.{name}".lstrip("."): values[name].detach().clone() for name in names})
    return found


def _computed(model: Any, module: Any, path: str, names: list[str]) -> dict[str, Any]:
    filled = []
    for value in (0, 1):
        twin = copy.copy(module)
        twin._buffers = {
            name: torch.full(one.shape, value, dtype=one.dtype, device="cpu") if one is not None else None
            for name, one in module._buffers.items()
        }
        if hasattr(model, "_init_weights"):
            with torch.no_grad():
                model._init_weights(twin)
        filled.append(twin._buffers)
    for name in names:
        if not torch.equal(filled[0][name], filled[1][name]):
            raise CaptureFailed(
                f"buffer {name} of {path or 'the model'} is on the meta device, is not saved with the model, and the "
                "model cannot compute it: put it on the CPU"
            )
    found: dict[str, Any] = filled[0]
    return found
