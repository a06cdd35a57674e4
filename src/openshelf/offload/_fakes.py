"""Fake forms of operators whose own fake form in torch is stricter than the kernel that runs on a CPU."""

from __future__ import annotations

from typing import Any

from openshelf.offload._torch import torch


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
