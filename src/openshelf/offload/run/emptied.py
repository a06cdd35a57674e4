"""A model whose weights are elsewhere: its parameters have no memory, and can be given it back.

Parameters stay who they are, for an optimizer and for whoever else holds them: what they hold is exchanged for a tensor
on the meta device, and back. Their gradients and hooks wait meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from openshelf.errors import BadInput
from openshelf.offload.move.homes import Homes
from openshelf.offload.program.torch import strided, torch
from openshelf.offload.weights.packed import Packed


class Forward:
    """Who answers when a model is called: its own forward, another one for a while, or nobody."""

    def __init__(self, model: Any) -> None:
        self._table, self._others = vars(model), list[Any]()
        self._own, self._refuses = self._table.get("forward"), False

    def refuse(self, refuses: bool) -> None:
        """Whether calls are refused, but while somebody answers."""
        self._refuses = refuses
        self._set()

    @contextlib.contextmanager
    def answers(self, other: Any = None) -> Iterator[None]:
        """The model's own forward does in here, or another one."""
        self._others.append(other)
        self._set()
        try:
            yield
        finally:
            self._others.pop()
            self._set()

    def _set(self) -> None:
        alone = _refused if self._refuses else self._own
        now = (self._others[-1] or self._own) if self._others else alone
        self._table.pop("forward", None)
        if now is not None:
            self._table["forward"] = now


class Emptied:
    """Takes the memory of a model's parameters. Buffers are small, and stay. The model cannot be called meanwhile."""

    def __init__(self, model: Any, forward: Forward) -> None:
        self._model, self._forward = model, forward
        self._kept: list[tuple[str, Any, Any]] = []  # name, the parameter, what it was
        for name, parameter in model.named_parameters():
            like = torch.nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
            now, was = _exchanged(model, parameter, like)
            if was is not None:
                was.data = torch.empty(0, dtype=was.dtype)  # the memory goes, all else stays
            self._kept.append((name, now, was))
        forward.refuse(True)

    def give_back(self, value: Callable[[str], Any]) -> None:
        """The parameters hold these tensors, by name, and the model is as it was."""
        for name, parameter, was in self._kept:
            if was is None:
                _exchanged(self._model, parameter, torch.nn.Parameter(value(name), parameter.requires_grad))
            else:
                was.data = value(name)
                _exchanged(self._model, parameter, was)
        self._kept = []
        self._forward.refuse(False)


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
            storages[one.storage] = torch.from_numpy(homes.value(one.storage)).clone()  # aligned as torch's own are
        dtype = getattr(torch, one.dtype)
        return strided(storages[one.storage], dtype, one.shape, one.stride, one.offset // dtype.itemsize)

    return value
