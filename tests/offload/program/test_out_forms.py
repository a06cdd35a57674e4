"""Forms of operators that write into given tensors give the bytes of the plain ones: all that torch has samples for."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from openshelf.offload.program.out_forms import out_form  # noqa: E402

pytree: Any = torch.utils._pytree
REFUSES = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError)


class Compare(TorchDispatchMode):  # type: ignore[misc]
    """Runs both forms of what comes by; the given tensors hold something before."""

    def __init__(self) -> None:
        super().__init__()
        self.compared: set[str] = set()
        self.differ: dict[str, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        form = None if torch.Tag.nondeterministic_seeded in func.tags else out_form(func)
        theirs = pytree.tree_map_only(torch.Tensor, _copy, (args, kwargs))
        result = func(*args, **kwargs)
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        if form is not None and all(one.layout == torch.strided for one in results):
            outs = [_filled(one) for one in results]
            form[0](*theirs[0], **theirs[1], **dict(zip(form[1], outs, strict=True)))
            self.compared.add(str(func))
            if [_bits(one) for one in results] != [_bits(one) for one in outs]:
                self.differ[str(func)] = [(one.shape, one.stride(), one.dtype) for one in pytree.tree_leaves(args)
                                          if isinstance(one, torch.Tensor)]  # fmt: skip
        return result


def _copy(tensor: Any) -> Any:
    """With its strides; what is expanded, or not strided, is read only."""
    expanded = any(length > 1 and not stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True)) \
        if tensor.layout == torch.strided else True  # fmt: skip
    if expanded:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


def _filled(like: Any) -> Any:
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    made.untyped_storage().fill_(1)
    return made


def _bits(tensor: Any) -> Any:
    dense = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return tuple(tensor.shape), dense.flatten().view(torch.uint8).numpy().tobytes()


def _laid_out(sample: Any) -> Iterator[Any]:
    """As it is, with every second element left out, and with dimensions in another order."""
    tensors = [one for one in pytree.tree_leaves((sample.input, sample.args, sample.kwargs)) if torch.is_tensor(one)]
    if any(one.layout != torch.strided for one in tensors):
        return
    yield sample
    yield sample.noncontiguous()
    yield sample.transform(
        lambda one: (
            one.transpose(0, -1).contiguous().transpose(0, -1)
            if isinstance(one, torch.Tensor) and one.dim() > 1
            else one
        )
    )


def _graded(one: Any) -> Any:
    return one.detach().requires_grad_(one.is_floating_point()) if isinstance(one, torch.Tensor) else one


def _forth_and_back(op: Any, given: Any) -> None:
    found = pytree.tree_leaves(op(given.input, *given.args, **given.kwargs))
    graded = [one for one in found if isinstance(one, torch.Tensor) and one.requires_grad]
    if graded and not op.name.startswith("linalg"):  # some wait for ever on what is singular
        torch.stack([one.sum().double() for one in graded]).sum().backward()


@pytest.mark.soak
def test_forms_that_write_into_given_tensors_give_the_same_bytes() -> None:
    invocations = pytest.importorskip(
        "torch.testing._internal.common_methods_invocations", reason="torch's own samples need expecttest"
    )
    mode = Compare()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op, dtype in itertools.product(invocations.op_db, (torch.float32, torch.float64)):
            samples = itertools.islice(op.sample_inputs("cpu", dtype), 12) if dtype in op.dtypes else ()
            for given in itertools.chain.from_iterable(map(_laid_out, samples)):
                with contextlib.suppress(*REFUSES), mode:
                    _forth_and_back(op, given.transform(_graded))
    assert mode.differ == {}
    assert len(mode.compared) > 250
