"""Operators that torch takes apart in another way while a model is recorded than when it runs.

In some places torch's own code asks whether a tensor is a plain one or a dispatch mode is on, and if so goes another
way, for the sake of those who trace: one without memory that is changed in place, or without a look at values. Most of
these round alike. Those that do not are here: they are made to go the way of plain tensors, or are refused where that
way depends on values.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from typing import Any

from openshelf.errors import CaptureFailed
from openshelf.offload.program.torch import torch

aten: Any = torch.ops.aten
# torch's own, if it is new enough to hand it out; else that one is not watched.
_CROSS_ENTROPY: Any = (
    torch.library.get_kernel("aten::cross_entropy_loss", "CPU") if hasattr(torch.library, "get_kernel") else None
)

_PRODUCT = (
    "the gradient of prod and cumprod is computed in another way if a factor is 0, so it depends on the values of "
    "tensors: use exp of a sum of logarithms, or a product of select()s"
)
REFUSED_BACKWARD = {
    "ProdBackward0": _PRODUCT,
    "ProdBackward1": _PRODUCT,
    "CumprodBackward0": _PRODUCT,
    "SgnBackward0": "the gradient of sgn is a zero without memory, which has no place in an arena: use sign",
}
# Of one element of all: backward multiplies its gradient by a mask, where plain tensors are filled: -0.0, not 0.0.
MASKED_BACKWARD = {"MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"}


def _svdvals(A: Any, *, driver: str | None = None) -> Any:
    return aten._linalg_svd.default(A, False, _needs_grad(A), driver=driver)[1]


def _eigvalsh(self: Any, UPLO: str = "L") -> Any:
    return aten._linalg_eigh.default(self, UPLO, _needs_grad(self))[0]


def _cross_entropy(
    self: Any, target: Any, weight: Any = None, reduction: int = 1, ignore: int = -100, smoothing: float = 0.0
) -> Any:
    classes = not target.is_floating_point() and weight is not None
    if classes and reduction == 1 and smoothing and isinstance(target, torch._subclasses.FakeTensor):
        raise CaptureFailed(
            "the mean of cross_entropy with weights and label_smoothing is divided by the weights of targets that are "
            'not ignored, which depends on values: use reduction="sum", and divide by what you like'
        )
    keys = torch._C._dispatch_keys(self)
    return _CROSS_ENTROPY.call_boxed(keys, self, target, weight, reduction, ignore, smoothing)


def _ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: int = 1,
    zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """torch's own, whose code makes a tensor of the lengths where nobody sees it."""
    batched = log_probs.dim() == 3
    scores = log_probs if batched else log_probs.unsqueeze(1)
    found = aten._ctc_loss.default(scores, targets.long(), input_lengths, target_lengths, blank, zero_infinity)[0]
    if zero_infinity:
        found = torch.where(found == math.inf, torch.zeros((), dtype=found.dtype), found)
    if reduction == 1:
        return (found / torch.tensor(target_lengths, dtype=found.dtype).clamp_min(1)).mean()
    if reduction == 2:
        return found.sum()
    return found if batched else found.squeeze(0)


def _needs_grad(tensor: Any) -> bool:
    """Vectors are computed for backward only, and values with vectors are rounded differently from values alone."""
    return bool(torch.is_grad_enabled() and tensor.requires_grad)


@contextlib.contextmanager
def decomposed_as_when_run() -> Iterator[None]:
    """While in here, for all threads: for plain tensors nothing changes."""
    library = torch.library.Library("aten", "IMPL")
    own: dict[str, Any] = {"linalg_svdvals": _svdvals, "linalg_eigvalsh": _eigvalsh, "ctc_loss.IntList": _ctc_loss}
    if _CROSS_ENTROPY is not None:
        own["cross_entropy_loss"] = _cross_entropy
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are kernels already
            for name, kernel in own.items():
                library.impl(name, kernel, "CompositeImplicitAutograd")
        yield
    finally:
        library._destroy()


def check_backward(node: Any, where: str) -> None:
    why = REFUSED_BACKWARD.get(node.name())
    if why is not None:
        raise CaptureFailed(f"{where}: {why}")


def masks(func: Any, node: Any, args: Any) -> bool:
    return func is aten.mul.Tensor and node.name() in MASKED_BACKWARD and args[0].dtype == torch.bool
