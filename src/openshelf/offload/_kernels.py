"""How a call runs in an arena: its results are where the plan says, not where torch's allocator would put them.

Many operators have a second form that writes into tensors that are given (`out=`), and with the strides that torch would
have chosen it writes the same bytes. The others run as they are, then their result is copied into place: what torch
takes for that is outside the arena, and counted. Some forms named `out` do just that themselves; they are not used.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from openshelf.errors import CaptureFailed
from openshelf.offload._call import Call, View, map_views
from openshelf.offload._torch import torch
from openshelf.offload._update import Update

aten: Any = torch.ops.aten
Tensors = Callable[[View], Any]
Instruction = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

NOTHING_WRITTEN = {aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default,
                   aten.new_empty_strided.default}  # fmt: skip
COPIES = {aten.clone.default, aten._to_copy.default, aten.lift_fresh_copy.default, aten.alias.default}
FILLS = {aten.zeros.default: 0, aten.zeros_like.default: 0, aten.new_zeros.default: 0, aten.ones.default: 1,
         aten.ones_like.default: 1, aten.new_ones.default: 1}  # fmt: skip


def workspace_of(call: Call) -> tuple[int, int]:
    """Bytes that a call needs beside the storages it touches: in the arena, and (what can be known of it) outside."""
    if isinstance(call.kernel, Update):
        return call.kernel.workspace, 0
    if call.changes or _direct(call):
        return 0, 0
    return 0, sum(span(view) * view.dtype.itemsize for view in call.makes if view is not None)


def instruction(call: Call, tensors: Tensors, scratch: Callable[[Any, int], list[Any]]) -> Instruction | None:
    """What runs `call`: a function and its arguments, made once. None if there is nothing to do.

    `tensors` gives the tensor of a View; `scratch(dtype, n)` gives n tensors that share the workspace.
    """
    kernel = call.kernel
    if isinstance(kernel, Update):
        rooms = scratch(call.args[0].dtype, kernel.rule.scratch)
        return kernel.bind([tensors(view) for view in call.args], rooms), (), {}
    if kernel in NOTHING_WRITTEN:
        return None
    args, kwargs = map_views((call.args, call.kwargs), tensors)
    outs = [None if view is None else tensors(view) for view in call.makes]
    if kernel in COPIES:
        return outs[0].copy_, (args[0],), {}
    if kernel in FILLS:
        return outs[0].fill_, (FILLS[kernel],), {}
    if kernel is aten.embedding.default:
        # What embedding does itself, without its temporary.
        rows = outs[0].view(-1, outs[0].shape[-1])
        return torch.index_select, (args[0], 0, args[1].reshape(-1)), {"out": rows}
    if kernel is aten.embedding_dense_backward.default and _adds_rows(call):
        return _rows_added, (outs[0], args[1].reshape(-1), args[0].reshape(-1, outs[0].shape[-1])), {}
    if not any(out is not None for out in outs):
        return kernel._op, args, kwargs
    out = out_form(kernel)
    if out is not None and all(made is not None for made in outs):
        form, names = out
        return form._op, args, {**kwargs, **dict(zip(names, outs, strict=True))}
    return _copying(call, outs), args, kwargs


def _direct(call: Call) -> bool:
    kernel = call.kernel
    if kernel in NOTHING_WRITTEN or kernel in COPIES or kernel in FILLS or kernel is aten.embedding.default:
        return True
    if kernel is aten.embedding_dense_backward.default:
        return _adds_rows(call)
    return out_form(kernel) is not None and all(view is not None for view in call.makes)


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


def _copying(call: Call, outs: list[Any]) -> Callable[..., None]:
    kernel = call.kernel._op
    expected = [(out.shape, out.stride()) if out is not None else None for out in outs]

    def run(*args: Any, **kwargs: Any) -> None:
        result = kernel(*args, **kwargs)
        results = result if isinstance(result, (list, tuple)) else (result,)
        for out, made, wanted in zip(outs, results, expected, strict=True):
            if out is None:
                continue
            if (made.shape, made.stride()) != wanted:
                raise CaptureFailed(
                    f"{call.where}: {call.name} made a tensor of shape and strides {made.shape}, {made.stride()}, "
                    f"captured was {wanted}: the operator's fake form differs from the real one"
                )
            out.copy_(made)

    return run


@functools.cache
def out_form(kernel: Any) -> tuple[Any, tuple[str, ...]] | None:
    """The overload that writes its results into given tensors, with the names of those, if it has a kernel of its own."""
    wanted = [(one.name, str(one.type)) for one in kernel._schema.arguments]
    packet = getattr(aten, kernel._schema.name.split("::")[-1], None)
    if packet is None or kernel.namespace != "aten":
        return None
    for name in packet.overloads():
        form = getattr(packet, name)
        given = [(one.name, str(one.type)) for one in form._schema.arguments if not one.is_out]
        outs = tuple(one.name for one in form._schema.arguments if one.is_out)
        if not outs or len(outs) != len(kernel._schema.returns) or given != wanted:
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(form.name(), "CPU"):
            return form, outs
    return None


def span(view: View) -> int:
    """Elements from the first to the last of a view."""
    if 0 in view.shape:
        return 0
    return 1 + sum((length - 1) * stride for length, stride in zip(view.shape, view.strides, strict=True))


def size(view: View) -> int:
    return math.prod(view.shape) * int(view.dtype.itemsize)
