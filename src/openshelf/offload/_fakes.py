"""Fake forms of operators whose own fake form in torch is stricter than the kernel that runs on a CPU."""

from __future__ import annotations

from typing import Any

from openshelf.offload._torch import torch


def grouped_mm(
    mat_a: Any, mat_b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None, **_: Any
) -> Any:
    """`_grouped_mm`, whose fake form knows bfloat16 only. Rows begin at multiples of 16 bytes, as in torch."""
    if mat_a.dim() == 2 and mat_b.dim() == 2:
        shape = (offs.shape[0], mat_a.shape[0], mat_b.shape[1])
    elif mat_a.dim() == 2:
        shape = (mat_a.shape[0], mat_b.shape[-1])
    elif mat_b.dim() == 2:
        shape = (mat_a.shape[1], mat_b.shape[1])
    else:
        shape = (mat_a.shape[0], mat_a.shape[1], mat_b.shape[-1])
    dtype = out_dtype or mat_a.dtype
    per_16 = 16 // dtype.itemsize
    row = -(-shape[-1] // per_16) * per_16
    strides = (row, 1) if len(shape) == 2 else (shape[1] * row, row, 1)
    return torch.empty_strided(shape, strides, dtype=dtype, device=mat_a.device)


FAKES: dict[Any, Any] = {torch.ops.aten._grouped_mm.default: grouped_mm}
