"""How a call runs in an arena: its results are where the plan says, not where torch's allocator would put them.

Many operators have a second form that writes into tensors that are given (`out=`), and with the strides that torch
would have chosen it writes the same bytes. The others run as they are, then their result is copied into place: what
torch takes for that is outside the arena, and counted. Some forms named `out` do just that; they are not used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from openshelf.errors import CaptureFailed
from openshelf.offload.program.call import Call, OwnKernel, View, anywhere, map_views, span
from openshelf.offload.program.torch import torch

aten: Any = torch.ops.aten
Tensors = Callable[[View], Any]
Instruction = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

NOTHING_WRITTEN = {aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default,
                   aten.new_empty.default, aten.new_empty_strided.default}  # fmt: skip
COPIES = {aten.clone.default, aten._to_copy.default, aten.lift_fresh_copy.default, aten.alias.default}
FILLS = {aten.zeros.default: 0, aten.zeros_like.default: 0, aten.new_zeros.default: 0, aten.ones.default: 1,
         aten.ones_like.default: 1, aten.new_ones.default: 1}  # fmt: skip
FILLS_WITH = {aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2}  # which argument
# Their `out` forms give other results for some strides, native_batch_norm's plainly wrong ones. tests/offload/program/
# test_out_forms.py looks for others.
WRONG_OUT = {"native_batch_norm", "_native_batch_norm_legit", "linalg_lstsq"}
# Of a tensor and a number: torch makes a tensor of the number first, as its Python functions do, which have `out`.
WITH_NUMBERS = {aten.mul.Scalar: torch.mul, aten.div.Scalar: torch.div}


class OtherStrides(CaptureFailed):
    """Kernels lay results out otherwise than their fake forms: `found` says how, by call (`anywhere`) and result."""

    def __init__(self, message: str, found: Mapping[Any, dict[int, tuple[int, ...]]]) -> None:
        super().__init__(message)
        self.found = found


def workspace_of(call: Call) -> tuple[int, int]:
    """Bytes that a call needs beside the storages it touches: in the arena, and (what can be known of it) outside."""
    if isinstance(call.kernel, OwnKernel):
        return call.kernel.workspace, 0
    if all(view is None for view in call.makes) or _direct(call):
        return 0, 0
    return 0, sum(span(view) * view.dtype.itemsize for view in call.makes if view is not None)


def instruction(call: Call, tensors: Tensors, scratch: Callable[[Any, int], list[Any]]) -> Instruction | None:
    """What runs `call`: a function and its arguments, made once. None if there is nothing to do.

    `tensors` gives the tensor of a View; `scratch(dtype, n)` gives n tensors that share the workspace.
    """
    kernel = call.kernel
    if isinstance(kernel, OwnKernel):
        rooms = scratch(call.args[0].dtype, kernel.scratches)
        return kernel.bind([tensors(view) for view in call.args], rooms), (), {}
    if kernel in NOTHING_WRITTEN:
        return None
    args, kwargs = map_views((call.args, call.kwargs), tensors)
    outs: list[Any] = [None if view is None else tensors(view) for view in call.makes]
    if kernel in COPIES:
        return outs[0].copy_, (args[0],), {}
    if kernel in FILLS:
        return outs[0].fill_, (FILLS[kernel],), {}
    if kernel in FILLS_WITH:
        return outs[0].fill_, (args[FILLS_WITH[kernel]],), {}
    if kernel is aten.embedding.default and _takes_rows(call):
        # What embedding does itself, without its temporary.
        rows = outs[0].view(-1, outs[0].shape[-1])
        return torch.index_select, (args[0], 0, args[1].reshape(-1)), {"out": rows}
    if kernel is aten.embedding_dense_backward.default and _adds_rows(call):
        return _rows_added, (outs[0], args[1].reshape(-1), args[0].reshape(-1, outs[0].shape[-1])), {}
    if kernel in WITH_NUMBERS:
        return WITH_NUMBERS[kernel], args, {"out": outs[0]}
    if kernel in IN_PLACE:
        return IN_PLACE[kernel], (outs[0], *args), kwargs
    if not any(out is not None for out in outs):
        return kernel._op, args, kwargs
    out = out_form(kernel)
    if out is not None and all(made is not None for made in outs):
        form, names = out
        return form._op, args, {**kwargs, **dict(zip(names, outs, strict=True))}
    return _copying(call, outs), args, kwargs


def _direct(call: Call) -> bool:
    kernel = call.kernel
    if any(kernel in known for known in (NOTHING_WRITTEN, COPIES, FILLS, FILLS_WITH, WITH_NUMBERS, IN_PLACE)):
        return True
    if kernel is aten.embedding.default:
        return _takes_rows(call)
    if kernel is aten.embedding_dense_backward.default:
        return _adds_rows(call)
    return out_form(kernel) is not None and all(view is not None for view in call.makes)


def _takes_rows(call: Call) -> bool:
    """Whether rows and indices can be seen as flat, without a copy."""
    return _contiguous(call.args[1]) and _contiguous(call.makes[0])


def _adds_rows(call: Call) -> bool:
    """Whether an embedding's gradient is nothing but rows added up: no padding, no scaling, dense gradient."""
    padding, scale = call.args[3], call.args[4]
    flat = all(_contiguous(view) for view in call.args[:2])
    return padding < 0 and not scale and flat and _contiguous(call.makes[0])


def _contiguous(view: View | None) -> bool:
    assert view is not None
    expected = 1
    for length, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def _rows_added(total: Any, rows: Any, gradient: Any) -> None:
    """embedding_dense_backward in place: each row of the gradient is added in order, as torch does it."""
    total.zero_()
    total.index_add_(0, rows, gradient)


def _slice_backward(out: Any, grad: Any, sizes: Any, dim: int, start: int, end: int, step: int) -> None:
    out.zero_()
    aten.slice.Tensor(out, dim, start, end, step).copy_(grad)


def _select_backward(out: Any, grad: Any, sizes: Any, dim: int, index: int) -> None:
    out.zero_()
    out.select(dim, index).copy_(grad)


def _index_put(out: Any, base: Any, indices: Any, values: Any, accumulate: bool = False) -> None:
    out.copy_(base)
    aten.index_put_.default(out, indices, values, accumulate)


# What torch does for these, on the result itself.
IN_PLACE: dict[Any, Callable[..., None]] = {
    aten.slice_backward.default: _slice_backward,
    aten.select_backward.default: _select_backward,
    aten.index_put.default: _index_put,
}


def kernel_of(call: Call) -> Callable[..., Any]:
    """What runs the operator as it was captured: an LSTM has a workspace, for backward, only with gradients on."""
    kernel: Callable[..., Any] = call.kernel._op
    if call.kernel is not aten.mkldnn_rnn_layer.default or call.makes[3] is None or call.makes[3].shape == (0,):
        return kernel

    def with_workspace(*args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            return kernel(*args, **kwargs)

    return with_workspace


def _copying(call: Call, outs: list[Any]) -> Callable[..., None]:
    kernel, returns = kernel_of(call), call.kernel._schema.returns
    several = len(returns) > 1 or str(returns[0].type) != "Tensor"
    pairs = [(number, out) for number, out in enumerate(outs) if out is not None]
    checked = False

    def run(*args: Any, **kwargs: Any) -> None:
        nonlocal checked
        result = kernel(*args, **kwargs)
        if not checked:
            check_results(call, pairs, result if several else (result,))
            checked = True
        if not several:
            outs[0].copy_(result)
            return
        for number, out in pairs:
            if result[number] is not None:  # nobody asked for it, though its fake form made one
                out.copy_(result[number])

    return run


def check_results(call: Call, pairs: list[tuple[int, Any]], results: Any, *, formats: bool = False) -> None:
    """Shapes and strides follow from those of the arguments, so that once is enough.

    `formats`: also where only strides of dimensions of one element differ, if other kernels are chosen by them.
    """
    strides, why = {}, ""
    for number, out in pairs:
        made = results[number]
        if made is None:
            if number in call.unread:
                continue
            raise CaptureFailed(
                f"{call.where}: {call.name} gives no result {number} when it runs, one was captured, and another "
                "operator reads it: the operator's fake form differs from the real one"
            )
        same = (made.shape, made.dtype) == (out.shape, out.dtype)
        alike = same and _distances(made) == _distances(out) and not (formats and _format(made) != _format(out))
        if not same or (made.numel() and not alike):
            why = (
                f"{call.where}: result {number} of {call.name} has shape {tuple(made.shape)}, strides {made.stride()}, "
                f"{made.dtype}; captured were {tuple(out.shape)}, {out.stride()}, {out.dtype}: the operator's fake "
                "form differs from the real one"
            )
            if not same:
                raise CaptureFailed(why)
            strides[number] = tuple(made.stride())
    if strides:
        raise OtherStrides(why, {anywhere(call.kernel, (call.args, call.kwargs)): strides})


def _format(tensor: Any) -> Any:
    """Of images with one pixel, the strides of that pixel say whether channels come first or last."""
    return torch._prims_common.suggest_memory_format(tensor) if tensor.dim() in (4, 5) else None


def _distances(tensor: Any) -> list[int]:
    """Strides, but for dimensions of one element, where they mean nothing."""
    return [stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if length != 1]


@functools.cache
def out_form(kernel: Any) -> tuple[Any, tuple[str, ...]] | None:
    """The overload that writes its results into given tensors, and their names, if it has a kernel of its own."""
    wanted = [(one.name, str(one.type)) for one in kernel._schema.arguments]
    if kernel.namespace != "aten" or any(str(one.type) != "Tensor" for one in kernel._schema.returns):
        return None
    name = kernel._schema.name.split("::")[-1]
    if name in WRONG_OUT:
        return None
    if any(one == "reduction" for one, _ in wanted) and not name.endswith("backward"):
        return None  # mse_loss and others use the result as their temporary first: it grows over what is behind it
    packet = getattr(aten, name)
    for name in packet.overloads():
        form = getattr(packet, name)
        given = [(one.name, str(one.type)) for one in form._schema.arguments if not one.is_out]
        outs = tuple(one.name for one in form._schema.arguments if one.is_out)
        if not outs or len(outs) != len(kernel._schema.returns) or given != wanted:
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(form.name(), "CPU"):
            return form, outs
    return None
