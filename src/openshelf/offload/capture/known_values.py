"""Values that are known while nothing is computed: positions, masks and other small tensors that follow from shapes.

Models look at some of them (is this mask all true?) to choose a kernel, and a program has to hold the choice that the
model makes. What follows from shapes and constants alone is computed beside the recording. What follows from an
integer input, a padding mask say, is known from the example. If the model asks for it, the program is good for inputs
of which the same follows, and that is a Question: it is asked again before each call. Likewise for shapes that follow
from values.

Two more things are known of numbers that nobody has. A drawn number is never below 0. And models that ask whether
activations are finite, to clamp them if not, are told that they are: the program looks, each time, whether that holds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from openshelf.offload.program.call import View, map_views, span
from openshelf.offload.program.torch import torch

aten: Any = torch.ops.aten
LARGEST = 1 << 20  # bytes of a storage whose value is worth knowing
LARGEST_ASSUMED = 64 << 20  # of whether activations are finite

# What the shape of a result follows from: positions of arguments. Of the others only the shape is needed.
SHAPED_BY: dict[Any, tuple[int, ...]] = {
    aten.masked_select.default: (1,),
    aten.nonzero.default: (0,),
    aten.index.Tensor: (1,),
    aten.repeat_interleave.Tensor: (0,),
    aten._ctc_loss.Tensor: (3,),
}
# Questions whether numbers are finite, as torch takes them apart; what they are answered.
_FINITE = {aten.isinf.default: False, aten.isnan.default: False}
_BELOW_INFINITY = {aten.ne.Scalar: True, aten.eq.Scalar: False}
_ITSELF = {aten.eq.Tensor: True, aten.ne.Tensor: False}


class Other(Exception):
    """With these inputs something else follows."""


@dataclasses.dataclass(eq=False)
class Known:
    """The value of a storage, in one dimension, and how it follows from inputs.

    `source` is the view of an input that it is; `made` is the call that makes it (with Parts for Views), the number of
    its result and the View of that. Neither: it is the same for all inputs. `assumed`: if activations are finite.
    """

    value: Any
    source: View | None = None
    made: tuple[Any, Any, int, View] | None = None
    assumed: bool = False

    @property
    def depends(self) -> bool:
        return self.source is not None or self.made is not None

    def now(self, given: Mapping[int, Any], found: dict[int, Any]) -> Any:
        """The value for other inputs; Other if its shape is another. `found` is what was computed already."""
        if not self.depends:
            return self.value
        if id(self) not in found:
            if self.source is not None:
                found[id(self)] = _flat(self.source, given[self.source.storage])
            else:
                assert self.made is not None
                func, parts, number, view = self.made
                found[id(self)] = _flat(view, _call(func, parts, number, given, found))
        return found[id(self)]


@dataclasses.dataclass(frozen=True)
class Part:
    """A view of a known value; of one that is not known, and that does not matter, zeros."""

    known: Known | None
    view: View

    def now(self, given: Mapping[int, Any], found: dict[int, Any]) -> Any:
        """For other inputs."""
        return self._of(None if self.known is None else self.known.now(given, found))

    def as_captured(self) -> Any:
        return self._of(None if self.known is None else self.known.value)

    def _of(self, value: Any) -> Any:
        return torch.zeros(self.view.shape, dtype=self.view.dtype) if value is None else _strided(value, self.view)

    def sources(self) -> dict[int, None]:
        """The input storages that it follows from."""
        found: dict[int, None] = {}
        left, seen = [self.known], set[int]()
        while left:
            one = left.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            if one.source is not None:
                found[one.source.storage] = None
            if one.made is not None:
                left += [part.known for part in _parts(one.made[1])]
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """What a model asked, at `where`, and the answer: a number, or the shape of a result."""

    where: str
    parts: Any  # of the view that was asked for, or of the call whose result has that shape
    func: Any  # that call, None for a view
    answer: Any

    def same(self, given: Mapping[int, Any], found: dict[int, Any]) -> bool:
        """Whether the answer is the same for other inputs, by their storages."""
        try:
            if self.func is None:
                return bool(_number(self.parts.now(given, found)) == self.answer)
            return bool(tuple(_call(self.func, self.parts, 0, given, found).shape) == self.answer)
        except (Other, RuntimeError, IndexError):  # with other numbers a call may fail that did not
            return False

    @property
    def sources(self) -> dict[int, None]:
        found: dict[int, None] = {}
        for part in _parts(self.parts):
            found |= part.sources()
        return found


class KnownValues:
    """The values of storages, as far as they are known, and what was asked of those that follow from inputs."""

    def __init__(self) -> None:
        self._values: dict[int, Known] = {}
        self._drawn: set[int] = set()  # storages with numbers from 0 to 1
        self.asked: dict[Any, Question] = {}

    def tell(self, view: View, value: Any, is_input: bool = False) -> None:
        """The storage of `view` holds `value`, and nothing else."""
        if value.untyped_storage().nbytes() <= LARGEST and not value.is_meta:
            with unrecorded():
                self._values[view.storage] = Known(_flat(view, value), view if is_input else None)

    def forget(self, storages: tuple[int, ...]) -> None:
        for one in storages:
            self._values.pop(one, None)
            self._drawn.discard(one)

    def follow(self, func: Any, args: Any, kwargs: Any, makes: tuple[View | None, ...]) -> None:
        """A call without side effects: if all it reads is known, so is what it makes."""
        if func in (aten.rand.default, aten.rand_like.default):
            self._drawn.add(makes[0].storage)  # type: ignore[union-attr]  # it makes one
        parts = self._apart((args, kwargs))
        told = self._told(func, args, makes) if parts is None else None
        if told is not None:
            view = makes[0]
            assert view is not None
            with unrecorded():
                self._values[view.storage] = Known(torch.full((_elements(view),), told[0]), assumed=told[1])
            return
        assumed = parts is not None and any(part.known.assumed for part in _parts(parts))
        most = LARGEST_ASSUMED if assumed else LARGEST
        small = all(view is not None and _elements(view) * view.dtype.itemsize <= most for view in makes)
        if parts is None or not small or torch.Tag.nondeterministic_seeded in func.tags:
            return
        with unrecorded():
            result = _called(func, map_parts(parts, Part.as_captured))
            depends = any(part.known.depends for part in _parts(parts))
            for number, (view, value) in enumerate(zip(makes, result, strict=True)):
                assert view is not None
                if value.untyped_storage().nbytes() <= most:  # a small result may be a view of something large
                    made = (func, parts, number, view) if depends else None
                    self._values[view.storage] = Known(_flat(view, value), None, made, assumed)

    def scalar(self, view: View, where: str) -> tuple[Any, bool] | None:
        """The one element of a view as a Python number, and whether that was assumed; None if it is not known."""
        known = self._values.get(view.storage)
        if known is None:
            return None
        with unrecorded():
            value = _strided(known.value, view).item()
        if known.depends:
            key = (id(known), view)
            self.asked.setdefault(key, Question(where, Part(known, view), None, _plain(value)))
        return value, known.assumed

    def shaped(self, func: Any, taken: tuple[Any, Any], where: str) -> Any:
        """The results of a call whose shapes follow from values, as far as these are known: else None."""
        deciding = SHAPED_BY.get(func)
        if deciding is None:
            return None
        args, kwargs = taken
        needed = self._apart([args[at] for at in deciding])
        if needed is None:
            return None
        parts = map_views((args, kwargs), lambda view: Part(self._values.get(view.storage), view))
        with unrecorded():
            result = _called(func, map_parts(parts, Part.as_captured))
        if any(part.known.depends for part in _parts(needed)):
            self.asked[len(self.asked), func] = Question(where, parts, func, tuple(result[0].shape))
        return result

    def done(self) -> tuple[Question, ...]:
        """All questions; nothing else is to be followed, so values that can be computed again are dropped."""
        left = [part.known for one in self.asked.values() for part in _parts(one.parts)]
        while left:
            known = left.pop()
            if known is not None and known.made is not None and known.value is not None:
                known.value = None
                left += [part.known for part in _parts(known.made[1])]
        return tuple(self.asked.values())

    def _told(self, func: Any, args: Any, makes: tuple[View | None, ...]) -> tuple[bool, bool] | None:
        """What is known of a comparison whatever the numbers are, and whether they have to be finite for that."""
        view = makes[0]
        if len(makes) != 1 or view is None or view.dtype != torch.bool or _elements(view) > LARGEST_ASSUMED:
            return None
        if func in _FINITE:
            return _FINITE[func], True
        if len(args) != 2 or not isinstance(args[0], View):
            return None
        one, other = args
        if func in _ITSELF and one == other and one.dtype.is_floating_point:
            return _ITSELF[func], True
        if isinstance(other, (int, float)):
            if func in _BELOW_INFINITY and other == math.inf and one.dtype.is_floating_point:
                return _BELOW_INFINITY[func], True
            if one.storage in self._drawn and other <= 0 and func in (aten.lt.Scalar, aten.ge.Scalar):
                return func is aten.ge.Scalar, False
        return None

    def _apart(self, value: Any) -> Any:
        """With Parts for Views; None if one of them is not known."""
        missing = False

        def part(view: View) -> Part:
            nonlocal missing
            missing = missing or view.storage not in self._values
            return Part(self._values.get(view.storage), view)

        parts = map_views(value, part)
        return None if missing else parts


def map_parts(value: Any, change: Any) -> Any:
    if isinstance(value, Part):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_parts(one, change) for one in value)
    if isinstance(value, dict):
        return {key: map_parts(one, change) for key, one in value.items()}
    return value


def _parts(value: Any) -> list[Any]:
    found: list[Any] = []
    map_parts(value, found.append)
    return found


def _call(func: Any, parts: Any, number: int, given: Mapping[int, Any], found: dict[int, Any]) -> Any:
    with torch.no_grad():
        return _called(func, map_parts(parts, lambda part: part.now(given, found)))[number]


def _called(func: Any, arguments: tuple[Any, Any]) -> Any:
    args, kwargs = arguments
    result = func(*args, **kwargs)
    return result if isinstance(result, (list, tuple)) else (result,)


def _flat(view: View, value: Any) -> Any:
    if tuple(value.shape) != tuple(view.shape):
        raise Other
    flat = torch.empty(_elements(view), dtype=view.dtype)
    flat.as_strided(view.shape, view.strides, view.offset).copy_(value)
    return flat


def _strided(flat: Any, view: View) -> Any:
    return flat.view(view.dtype).as_strided(view.shape, view.strides, view.offset)


def _number(tensor: Any) -> Any:
    return _plain(tensor.item())


def _plain(value: Any) -> Any:
    return "nan" if value != value else value


def _elements(view: View) -> int:
    return 0 if 0 in view.shape else view.offset + span(view)


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Tensors in here are real ones, and nobody records them."""
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        yield


@contextlib.contextmanager
def not_traced() -> Iterator[None]:
    """transformers' models ask whether a tensor is a fake one, and leave out short cuts then: told that it is not, they
    do what they do when they run."""
    module: Any = sys.modules.get("transformers.utils.import_utils")
    if module is None or not hasattr(module, "is_fake_tensor"):
        yield
        return
    before = module.is_fake_tensor
    module.is_fake_tensor = lambda _: False
    try:
        yield
    finally:
        module.is_fake_tensor = before
