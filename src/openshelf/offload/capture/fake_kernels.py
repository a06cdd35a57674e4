"""Fake forms of operators, where torch's own are stricter than the kernel that runs on a CPU, or have other strides.

Some fake forms lay their results out otherwise than the kernel does (`copysign` and `floor_divide` of tensors that are
not contiguous, `channel_shuffle` and others of images by channels). Measuring operators finds that out. Then whoever
asked for the capture has its KernelStrides learn the strides, and captures the model again.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from openshelf.offload.program.call import anywhere
from openshelf.offload.program.torch import torch

Strides = tuple[int, ...]


class KernelStrides:
    """How kernels lay out their results, where fake forms do otherwise: it is told, and keeps to it from then on."""

    def __init__(self) -> None:
        self._known: dict[Any, dict[int, Strides]] = {}  # a call -> its results -> their strides

    def learn(self, found: Mapping[Any, dict[int, Strides]]) -> bool:
        """Fake forms of these calls have these strides from now on. False if they should have had them already."""
        new = {key: strides for key, strides in found.items() if key not in self._known}
        self._known.update(new)
        return bool(new)

    def laid_out(self, func: Any, taken: Any, result: Any) -> Any:
        """The result of a fake form, with the strides that were learned."""
        if not self._known:
            return result
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        for number, strides in self._known.get(anywhere(func, taken), {}).items():
            like = results[number]
            results[number] = torch.empty_strided(like.shape, strides, dtype=like.dtype, device="cpu")
        return tuple(results) if isinstance(result, (list, tuple)) else results[0]


OF_THIS_PROCESS = KernelStrides()  # what captures go by if they are given no other: kernels are the process's, too


def grouped_mm(mat_a: Any, mat_b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """`_grouped_mm`, whose fake form refuses what is not bfloat16."""
    return torch._meta_registrations._create_grouped_mm_output_tensor(mat_a, mat_b, offs, out_dtype)


def log_sigmoid_forward(self: Any) -> Any:
    """On a CPU both results are contiguous, whatever the input is."""
    return tuple(torch.empty_like(self, memory_format=torch.contiguous_format) for _ in range(2))


def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, zero_infinity: bool = False
) -> Any:
    """`_ctc_loss` of lengths that are numbers: if targets are one after the other, the longest gives the shape."""
    time, batch = log_probs.shape[0], log_probs.shape[1] if log_probs.dim() == 3 else 1
    longest = max(target_lengths, default=0) if targets.dim() == 1 else targets.shape[1]
    return log_probs.new_empty(batch), log_probs.new_empty(batch, time, 2 * longest + 1)


def ctc_loss_backward(grad: Any, log_probs: Any, *_: Any, **__: Any) -> Any:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


@functools.cache
def _rnn_workspace(shapes: Any, numbers: Any) -> int:
    """Bytes of the workspace that oneDNN has for a layer in training: it says when it runs."""
    tensors = [torch.zeros(shape) for shape in shapes]
    with torch.enable_grad():
        return int(torch.ops.aten.mkldnn_rnn_layer.default(*tensors, *numbers)[3].numel())


def mkldnn_rnn_layer(*args: Any) -> Any:
    """A layer of an LSTM. torch's own fake form has no workspace, which backward reads."""
    made = list(torch.ops.aten.mkldnn_rnn_layer.default(*args))
    if torch.is_grad_enabled():
        tensors, numbers = args[:7], args[7:]
        with torch.utils._python_dispatch._disable_current_modes():
            size = _rnn_workspace(
                tuple(tuple(one.shape) for one in tensors),
                tuple(tuple(one) if isinstance(one, list) else one for one in numbers),
            )
        made[3] = made[0].new_empty(size, dtype=torch.uint8)
    return tuple(made)


FAKES: dict[Any, Any] = {
    torch.ops.aten._grouped_mm.default: grouped_mm,
    torch.ops.aten.log_sigmoid_forward.default: log_sigmoid_forward,
    torch.ops.aten._ctc_loss.default: ctc_loss,
    torch.ops.aten._ctc_loss_backward.default: ctc_loss_backward,
    torch.ops.aten._ctc_loss_backward.Tensor: ctc_loss_backward,
    torch.ops.aten.mkldnn_rnn_layer.default: mkldnn_rnn_layer,
}
