"""Weights that a plan can move: plain, dense tensors of this process. Others are refused by name, before anything else.

A subclass of Tensor (torchao's, DTensor) computes by its own rules on tensors that it hides, and an object of torch's
quantised modules holds weights where nobody can move them: a plan that took them for plain tensors would be wrong.
"""

from __future__ import annotations

from typing import Any

from openshelf.errors import BadInput
from openshelf.offload.program.torch import torch

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_DISTRIBUTED = "torch.distributed."


def need_plain_weights(model: Any) -> None:
    """BadInput, which says what is there and what to do, unless all weights are plain tensors."""
    for path, module in model.named_modules():
        _need_one_process(path, module)
        for name, value in vars(module).items():
            if type(value) is torch.ScriptObject:  # not a module of torch.jit
                raise BadInput(
                    f"{path or 'the model'}, a {type(module).__name__}, has its weights in an object, {name!r}, that "
                    "cannot be moved: plan the model before it is quantised"
                )
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                _need_plain(f"{path}.{name}".lstrip("."), module, tensor)


def _need_one_process(path: str, module: Any) -> None:
    kinds = [one for one in type(module).__mro__ if one.__module__.startswith((_DISTRIBUTED, "torch.nn.parallel."))]
    if kinds:
        raise BadInput(
            f"{path or 'the model'} is a {kinds[0].__name__} ({kinds[0].__module__}), whose weights and gradients are "
            "of several processes, and a plan is of one: plan the plain model, before it is wrapped or sharded; to "
            "share its weights between processes use plan.load(path, share=True)"
        )


def _need_plain(name: str, module: Any, tensor: Any) -> None:
    kind = type(tensor)
    if kind.__module__.startswith(_DISTRIBUTED):
        raise BadInput(
            f"{name!r} is a {kind.__name__}, of which this process has a part, and a plan is of one process: plan the "
            "plain model, before it is sharded, or take `full_tensor()` of its parameters"
        )
    if kind not in _PLAIN and not torch.nn.parameter.is_lazy(tensor) and not _is_fake(tensor):
        raise BadInput(
            f"{name!r} of a {type(module).__name__} is a {kind.__module__}.{kind.__qualname__}, no plain tensor: it "
            "computes by rules of its own, on what it holds inside. Plan the model as it was before (not quantised), "
            "or call `dequantize()` on it where it has that"
        )
    if tensor.layout != torch.strided or tensor.is_quantized:
        form = "quantised" if tensor.is_quantized else str(tensor.layout)
        raise BadInput(f"{name!r} is {form}, and weights are moved as dense tensors: plan the model with dense ones")


def _is_fake(tensor: Any) -> bool:
    """It is refused elsewhere, with what to do."""
    return isinstance(tensor, torch._subclasses.fake_tensor.FakeTensor)
