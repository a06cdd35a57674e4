"""A Call: one operator of torch as it was captured, its tensors named by the storage that they are views of.

A View says all there is to say of a tensor but where its storage is: dtype, shape, strides and offset, exactly as torch
had them, because some kernels add up in another order for other strides. What only makes views (`t`, `view`, `expand`)
is therefore no call: the view is in the calls that use it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from openshelf.offload.program.program import Phase


@dataclasses.dataclass(frozen=True)
class View:
    """A tensor: elements of `dtype` in a storage, `offset` elements from its beginning."""

    storage: int
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


class OwnKernel(ABC):
    """A kernel that is no operator of torch: it changes its first arguments in place, through scratch in the arena.

    `timed`: it can run on made-up values, to be measured.
    """

    timed = True

    @property
    @abstractmethod
    def scratches(self) -> int:
        """How many tensors of scratch it is given."""

    @property
    @abstractmethod
    def workspace(self) -> int:
        """Bytes of all of them."""

    @abstractmethod
    def bind(self, tensors: list[Any], scratch: list[Any]) -> Callable[[], None]:
        """What runs it: `tensors` and `scratch` stay where they are."""


@dataclasses.dataclass(frozen=True)
class Call:
    """An operator with its arguments; `makes` are its results, in order, None for those that are no new tensor.

    `kernel` is an `OpOverload` of torch, or an OwnKernel.
    """

    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    makes: tuple[View | None, ...]
    reads: tuple[int, ...]
    changes: tuple[int, ...]
    phase: Phase
    where: str
    unread: tuple[int, ...] = ()  # which results nobody reads; a kernel may leave these out

    @property
    def name(self) -> str:
        return str(self.kernel)

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal for calls that do the same on other storages. Which arguments share a storage is part of it."""
        return anywhere(self.kernel, (self.args, tuple(sorted(self.kwargs.items())), self.makes))


def anywhere(kernel: Any, parts: Any) -> tuple[str, str]:
    """Equal for a kernel with equal `parts` on other storages: these are numbered by where they first appear."""
    numbers: dict[int, int] = {}

    def renumbered(view: View) -> View:
        return dataclasses.replace(view, storage=numbers.setdefault(view.storage, len(numbers)))

    return str(kernel), repr(map_views(parts, renumbered))


def map_views(value: Any, change: Callable[[View], Any]) -> Any:
    """`value`, any nesting of lists, tuples and dicts, with each View in it changed."""
    if isinstance(value, View):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_views(one, change) for one in value)
    if isinstance(value, dict):
        return {key: map_views(one, change) for key, one in value.items()}
    return value


def views_of(value: Any) -> Iterator[View]:
    """The Views in any nesting of lists, tuples and dicts."""
    if isinstance(value, View):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from views_of(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from views_of(one)


def span(view: View) -> int:
    """Elements from the first to the last of a view."""
    if 0 in view.shape:
        return 0
    return 1 + sum((length - 1) * stride for length, stride in zip(view.shape, view.strides, strict=True))
