"""A model whose weights are elsewhere: its parameters have no memory, and can be given it back.

Parameters stay who they are, for an optimizer and for whoever else holds them: what they hold is exchanged for a tensor
on the meta device, and back. Their gradients and hooks wait meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from openshelf.errors import BadInput
from openshelf.offload._homes import Homes
from openshelf.offload._packed import Packed
from openshelf.offload._torch import torch


class Emptied:
    """Takes the memory of a model's parameters. Buffers are small, and stay. The model cannot be called meanwhile."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._kept: list[tuple[str, Any, Any]] = []  # name, the parameter, what it was
        for name, parameter in model.named_parameters():
            like = torch.nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
            self._kept.append((name, *_exchanged(model, parameter, like)))
            if self._kept[-1][2] is not None:
                self._kept[-1][2].data = torch.empty(0, dtype=parameter.dtype)  # the memory goes, all else stays
        self._refuse()

    def give_back(self, value: Callable[[str], Any]) -> None:
        """The parameters hold these tensors, by name, and the model is as it was."""
        for name, parameter, was in self._kept:
            if was is None:
                _exchanged(self._model, parameter, torch.nn.Parameter(value(name), parameter.requires_grad))
            else:
                was.data = value(name)
                _exchanged(self._model, parameter, was)
        self._kept = []
        vars(self._model).pop("forward", None)

    @contextlib.contextmanager
    def callable(self, forward: Any = None) -> Iterator[None]:
        """The model's own forward can be called in here, or another one in its place."""
        vars(self._model).pop("forward", None)
        if forward is not None:
            vars(self._model)["forward"] = forward
        try:
            yield
        finally:
            self._refuse()

    def _refuse(self) -> None:
        vars(self._model)["forward"] = _refused


def _refused(*_: Any, **__: Any) -> Any:
    raise BadInput(
        "the weights of this model are in a wrapper that runs it: call what offload.wrap returned, or give the weights "
        "back with its unwrap()"
    )


def _exchanged(model: Any, parameter: Any, other: Any) -> tuple[Any, Any]:
    """The parameter that is in the model now, and what it was; None if that is nobody's any more."""
    try:
        torch.utils.swap_tensors(parameter, other)
    except RuntimeError:  # somebody has a weak reference, or a view of it: the model gets another one
        for module in model.modules():
            for name, one in module._parameters.items():
                if one is parameter:
                    module._parameters[name] = other
        return other, None
    return parameter, other


def values_of(packed: Packed) -> Callable[[str], Any]:
    """The tensors of a packed file by name, read when they are asked for; those that share a storage still do."""
    homes = Homes()
    storages: dict[int, Any] = {}

    def value(name: str) -> Any:
        one = packed.tensors[name]
        if one.storage not in storages:
            homes.packed(one.storage, packed, name)
            storages[one.storage] = torch.from_numpy(homes.value(one.storage))
        dtype = getattr(torch, one.dtype)
        if 0 in one.shape:
            return torch.empty_strided(one.shape, one.stride, dtype=dtype)
        return torch.as_strided(storages[one.storage].view(dtype), one.shape, one.stride, one.offset // dtype.itemsize)

    return value
