"""Fake forms of operators, where torch's own are stricter than the kernel that runs on a CPU, or have other strides.

Some fake forms lay their results out otherwise than the kernel does (`copysign` and `floor_divide` of tensors that are
not contiguous, `channel_shuffle` and others of images by channels). That is seen when operators are measured; strides
are learned then, for as long as the process lives, and the model is captured again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from openshelf.errors import CaptureFailed
from openshelf.offload.program.call import View, map_views
from openshelf.offload.program.torch import torch

Strides = tuple[int, ...]
_learned: dict[Any, dict[int, Strides]] = {}  # a call -> its results -> their strides


class OtherStrides(CaptureFailed):
    """Kernels lay results out otherwise than their fake forms: `found` says how."""

    def __init__(self, message: str, found: Mapping[Any, dict[int, Strides]]) -> None:
        super().__init__(message)
        self.found = found


def learn(found: Mapping[Any, dict[int, Strides]]) -> bool:
    """Fake forms of these calls have these strides from now on. False if they should have had them already."""
    new = {key: strides for key, strides in found.items() if key not in _learned}
    _learned.update(new)
    return bool(new)


def laid_out(func: Any, taken: Any, result: Any) -> Any:
    """The result of a fake form, with the strides that were learned."""
    if not _learned:
        return result
    results = list(result) if isinstance(result, (list, tuple)) else [result]
    for number, strides in _learned.get(key_of(func, taken), {}).items():
        results[number] = torch.empty_strided(results[number].shape, strides, dtype=results[number].dtype, device="cpu")
    return tuple(results) if isinstance(result, (list, tuple)) else results[0]


def key_of(func: Any, taken: Any) -> Any:
    """Equal for calls that do the same on other storages."""
    numbers: dict[int, int] = {}

    def anywhere(view: View) -> View:
        return dataclasses.replace(view, storage=numbers.setdefault(view.storage, len(numbers)))

    return str(func), repr(map_views(taken, anywhere))


def grouped_mm(mat_a: Any, mat_b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """`_grouped_mm`, whose fake form refuses what is not bfloat16."""
    return torch._meta_registrations._create_grouped_mm_output_tensor(mat_a, mat_b, offs, out_dtype)


def log_sigmoid_forward(self: Any) -> Any:
    """On a CPU both results are contiguous, whatever the input is."""
    return tuple(torch.empty_like(self, memory_format=torch.contiguous_format) for _ in range(2))


FAKES: dict[Any, Any] = {
    torch.ops.aten._grouped_mm.default: grouped_mm,
    torch.ops.aten.log_sigmoid_forward.default: log_sigmoid_forward,
}
