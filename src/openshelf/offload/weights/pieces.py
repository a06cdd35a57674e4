"""Pieces of what operators make: which pieces of their arguments these take.

The operators here only move elements, or look at each on its own. Any other one is computed as a whole, and the piece
is cut out of it: right, with more memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from openshelf.offload.program.torch import torch

Box = tuple[tuple[int, int], ...]  # of each dimension, where it begins and how long it is
Rule = Callable[["Made", Box], Any]  # the piece; None if it is not known how

_aten: Any = torch.ops.aten
_tree: Any = torch.utils._pytree


class Part(Protocol):
    """A tensor that is not there, of which a piece can be had."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def piece(self, box: Box) -> Any: ...

    def said(self) -> Any:
        """How it is made, for `json`: the same for the same bytes of the same files."""


@dataclasses.dataclass(frozen=True, eq=False)
class Made:
    """A result of an operator, whose arguments may be Parts; `at`: which result, if there are several."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    at: int | None
    shape: tuple[int, ...]

    def piece(self, box: Box) -> Any:
        rule = _RULES.get(self.func)
        found = rule(self, box) if rule is not None else None
        return self._of_all(box) if found is None else found

    def said(self) -> Any:
        return [str(self.func), self.at, *map(_said, _tree.tree_leaves((self.args, self.kwargs)))]

    def argument(self, at: int, name: str, default: Any) -> Any:
        return self.args[at] if len(self.args) > at else self.kwargs.get(name, default)

    def _of_all(self, box: Box) -> Any:
        args, kwargs = _tree.tree_map(_all, (self.args, self.kwargs))
        result = self.func(*args, **kwargs)
        return cut(result if self.at is None else result[self.at], box)


def cut(tensor: Any, box: Box) -> Any:
    for dim, (at, count) in enumerate(box):
        tensor = tensor.narrow(dim, at, count)
    return tensor


def _all(value: Any) -> Any:
    return value.piece(tuple((0, one) for one in value.shape)) if hasattr(value, "piece") else value


def _said(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    return value.said() if hasattr(value, "said") else repr(value)


def _with(box: Box, dim: int, *parts: tuple[int, int]) -> Box:
    """The box with these in the place of one dimension."""
    return (*box[:dim], *parts, *box[dim + 1 :])


def _cat(made: Made, box: Box) -> Any:
    tensors, dim = made.args[0], made.argument(1, "dim", 0) % len(box)
    if any(len(one.shape) != len(box) for one in tensors):
        return None
    (at, count), pieces = box[dim], []
    for one in tensors:
        begin, end = max(at, 0), min(at + count, one.shape[dim])
        if begin < end:
            pieces.append(one.piece(_with(box, dim, (begin, end - begin))))
        at -= one.shape[dim]
    return torch.cat(pieces, dim) if pieces else None


def _stack(made: Made, box: Box) -> Any:
    tensors, dim = made.args[0], made.argument(1, "dim", 0) % len(box)
    at, count = box[dim]
    return torch.stack([one.piece(_with(box, dim)) for one in tensors[at : at + count]], dim) if count else None


def _transpose(made: Made, box: Box) -> Any:
    one, two = (dim % len(box) for dim in made.args[1:])
    moved = list(box)
    moved[one], moved[two] = box[two], box[one]
    return made.args[0].piece(tuple(moved)).transpose(one, two)


def _t(made: Made, box: Box) -> Any:
    return made.args[0].piece(box[::-1]).t()


def _permute(made: Made, box: Box) -> Any:
    dims = [dim % len(box) for dim in made.args[1]]
    return made.args[0].piece(tuple(box[dims.index(dim)] for dim in range(len(box)))).permute(dims)


def _shifted(made: Made, box: Box, dim: int, by: int) -> Any:
    at, count = box[dim]
    return made.args[0].piece(_with(box, dim, (at + by, count)))


def _split(made: Made, box: Box) -> Any:
    sizes, dim = made.args[1], made.argument(2, "dim", 0) % len(box)
    assert made.at is not None
    return _shifted(made, box, dim, sum(sizes[: made.at]) if isinstance(sizes, (list, tuple)) else sizes * made.at)


def _slice(made: Made, box: Box) -> Any:
    dim, start = made.argument(1, "dim", 0) % len(box), made.argument(2, "start", None) or 0
    if made.argument(4, "step", 1) != 1:
        return None
    length = made.args[0].shape[dim]
    return _shifted(made, box, dim, min(max(start + length if start < 0 else start, 0), length))


def _select(made: Made, box: Box) -> Any:
    return _taken(made, box, made.args[1], made.args[2])


def _unbind(made: Made, box: Box) -> Any:
    return _taken(made, box, made.argument(1, "dim", 0), made.at)


def _taken(made: Made, box: Box, dim: int, index: Any) -> Any:
    shape = made.args[0].shape
    dim %= len(shape)
    return made.args[0].piece((*box[:dim], (index % shape[dim], 1), *box[dim:])).squeeze(dim)


def _unsqueeze(made: Made, box: Box) -> Any:
    dim = made.args[1] % len(box)
    return made.args[0].piece(_with(box, dim)).unsqueeze(dim)


def _of_each(made: Made, box: Box) -> Any:
    return made.func(made.args[0].piece(box), *made.args[1:], **made.kwargs)


def _view(made: Made, box: Box) -> Any:
    """Dimensions at the front that are the same before and after; the others as a whole."""
    before, same = made.args[0].shape, 0
    while same < min(len(before), len(box)) and before[same] == made.shape[same]:
        same += 1
    if not same:
        return None
    piece = made.args[0].piece((*box[:same], *((0, one) for one in before[same:])))
    lengths = [count for _, count in box[:same]]
    whole = piece.reshape(*lengths, *made.shape[same:])
    return cut(whole, (*((0, one) for one in lengths), *box[same:]))


_RULES: dict[Any, Rule] = {
    _aten.cat.default: _cat,
    _aten.stack.default: _stack,
    _aten.transpose.int: _transpose,
    _aten.t.default: _t,
    _aten.permute.default: _permute,
    _aten.split.Tensor: _split,
    _aten.split_with_sizes.default: _split,
    _aten.slice.Tensor: _slice,
    _aten.select.int: _select,
    _aten.unbind.int: _unbind,
    _aten.unsqueeze.default: _unsqueeze,
    _aten.clone.default: _of_each,
    _aten._to_copy.default: _of_each,
    _aten.detach.default: _of_each,
    _aten.alias.default: _of_each,
    _aten.view.default: _view,
    _aten._unsafe_view.default: _view,
}
