"""One program for all lengths: captured at a few of them, every number in it a polynomial of the length.

A model that is called with a longer context does the same calls on longer tensors. A number in them grows along a
straight line, or, where lengths are multiplied (the stride of a mask), along a parabola. So a few captures give every
shape, stride, offset and argument at any length, and another is compared. Binding a call at another length is
arithmetic then. A model that changes its ways at some lengths (a sliding window that is full) is several programs, one
for each range of lengths: `ranges` finds where they end.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from openshelf.errors import CaptureFailed
from openshelf.offload.capture.captured import Captured
from openshelf.offload.program.call import Call, View
from openshelf.offload.program.program import Program


class Curve(NamedTuple):
    """A number that grows with the length. `bend`: by so much the slope changes from a length to the next."""

    base: int
    slope: int
    bend: int = 0

    def at(self, length: int) -> int:
        return self.base + self.slope * length + self.bend * (length * (length - 1) // 2)


class Unlike(Exception):
    """Two captures differ by more than numbers."""


@dataclasses.dataclass(frozen=True)
class Lengths:
    """A program at any length up to `longest`. `calls` and `sizes` have Curves where numbers vary.

    `captured` is the program at `longest`, `low` at the shortest length that was captured.
    """

    captured: Captured
    low: Captured
    longest: int
    shortest: int
    calls: tuple[Call, ...]
    sizes: tuple[int | Curve, ...]  # bytes of storages
    inputs: tuple[Any, ...]  # leaves of the arguments, Views where these are tensors
    outputs: tuple[Any, ...]

    @classmethod
    def of(cls, capture_at: Callable[[int], Captured], longest: int) -> Lengths:
        """`capture_at(length)` captures the model at a length; CaptureFailed if it does something else at some."""
        found = ranges(capture_at, max(2, longest // 4), longest)
        if len(found) > 1:
            end = found[0].longest
            raise CaptureFailed(
                f"what the model does at a length of {end} is not what it does at {end + 1}, on longer tensors: "
                f"{_difference(capture_at(end), capture_at(end + 1))}. One program cannot hold both (a sliding window, "
                "a mask whose values are looked at, dropout in train()?): use plan() for each"
            )
        return found[0]

    @classmethod
    def at_one(cls, captured: Captured, length: int) -> Lengths:
        """Of one length only."""
        return cls(captured, captured, length, length, *_parts(captured))

    def growing(self, program: Program) -> Captured:
        """The program with Curves where numbers vary, and with the sizes and times of `program`."""
        (inputs,) = self.captured.inputs
        return dataclasses.replace(
            self.captured,
            program=program,
            calls=self.calls,
            inputs=(dataclasses.replace(inputs, leaves=self.inputs),),
            outputs=self.outputs,
        )

    def captured_at(self, program: Program, length: int) -> Captured:
        """The program at one length, with the sizes and times of `program`."""
        growing = self.growing(program)
        (inputs,) = growing.inputs
        return dataclasses.replace(
            growing,
            calls=at(self.calls, length),
            inputs=(dataclasses.replace(inputs, leaves=at(self.inputs, length)),),
            outputs=at(self.outputs, length),
        )


MOST = 6  # ranges of lengths


class TooManyRanges(CaptureFailed):
    """What a model does changes with the length at too many places."""


def ranges(capture_at: Callable[[int], Captured], first: int, last: int, hints: Iterable[int] = ()) -> list[Lengths]:
    """Programs for all lengths from `first` to `last`. `hints`: lengths near which what the model does may change.

    Two lengths beside each other and a third say how all numbers go on. The last length at which that holds ends a
    range.
    """
    known = functools.cache(capture_at)
    found: list[Lengths] = []
    begin = first
    while begin <= last:
        if len(found) == MOST:
            end = found[-1].longest
            raise TooManyRanges(
                f"what the model does changes with the length at more than {MOST} places from {first} to {last}, again "
                f"after {end}, so that no program can hold it: {_difference(known(end), known(end + 1))}"
            )
        end, parts = _range(known, begin, last, list(hints))
        found.append(Lengths(known(end), known(begin), end, begin, *parts))
        begin = end + 1
    return found


def _range(capture_at: Callable[[int], Captured], begin: int, last: int, hints: list[int]) -> tuple[int, Any]:
    """The last length of the range that begins with `begin`, and what is done there."""

    def parts_at(length: int) -> Any:
        return _parts(capture_at(length))

    def fitted(*lengths: int) -> Any:
        try:
            found = _joined([parts_at(length) for length in lengths], lengths)
        except Unlike:
            return None
        # The largest size of a range is that of one of its ends.
        return None if any(isinstance(size, Curve) and size.bend < 0 for size in found[1]) else found

    def holds(length: int) -> bool:
        return bool(at(parts, length) == parts_at(length))

    if begin == last or fitted(begin, begin + 1) is None:
        return begin, parts_at(begin)
    middle = (begin + last) // 2 | 1
    if last > begin + 2 and (parts := fitted(begin, begin + 1, last)) is not None and holds(middle):
        return last, parts
    if last == begin + 1 or (parts := fitted(begin, begin + 1, begin + 2)) is None:
        return begin + 1, fitted(begin, begin + 1)
    low, high = begin + 2, last + 1  # holds, and does not, as far as is known
    near = sorted(one for one in {*hints, middle, last} if low < one < high)
    while high - low > 1:
        length = near[len(near) // 2] if near else (low + high) // 2
        low, high = (length, high) if holds(length) else (low, length)
        near = [one for one in near if low < one < high]
    return low, parts


def _difference(one: Captured, other: Captured) -> str:
    """How what is done at a length differs from what is done at the next."""
    try:
        _joined([_parts(one), _parts(other)], (0, 1))
    except Unlike as error:
        return str(error)
    return "numbers do not grow evenly"


def _parts(captured: Captured) -> tuple[Any, Any, Any, Any]:
    (inputs,) = captured.inputs
    if inputs.asked:
        raise CaptureFailed("what the model does depends on the values of its inputs, not on their length only")
    return captured.calls, tuple(one.nbytes for one in captured.program.storages), inputs.leaves, captured.outputs


def _joined(values: Sequence[Any], lengths: Sequence[int]) -> Any:
    """What is in `values`, each at one of the lengths, as one value with Curves where numbers differ."""
    low = values[0]
    for other in values[1:]:
        if type(low) is not type(other):
            raise Unlike(f"{low!r} and {other!r}")
    if isinstance(low, (Call, View)):
        return _joined_records(values, lengths)
    if isinstance(low, (list, tuple)):
        if len(set(map(len, values))) > 1:
            raise Unlike(f"{' and '.join(str(len(one)) for one in values)} calls, arguments or dimensions")
        return type(low)(_joined(items, lengths) for items in zip(*values, strict=True))
    if isinstance(low, dict):
        if any(low.keys() != other.keys() for other in values):
            raise Unlike(f"{list(low)} and {list(values[-1])}")
        return {key: _joined([one[key] for one in values], lengths) for key in low}
    if all(low == other for other in values):
        return low
    if type(low) is not int:
        raise Unlike(" and ".join(map(repr, values)))
    return _curve(values, lengths)


def _joined_records(values: Sequence[Any], lengths: Sequence[int]) -> Any:
    low = values[0]
    for high in values[1:]:
        if isinstance(low, Call) and (low.kernel, low.reads, low.changes) != (high.kernel, high.reads, high.changes):
            raise Unlike(f"{low.name} at {low.where}, and {high.name} at {high.where}")
        if isinstance(low, View) and low.storage != high.storage:
            raise Unlike("other tensors")
    parts = {
        field.name: _joined([getattr(one, field.name) for one in values], lengths)
        for field in dataclasses.fields(low)
        if field.name != "kernel"
    }
    return dataclasses.replace(low, **parts)


def _curve(values: Sequence[int], lengths: Sequence[int]) -> Curve:
    """Through two numbers, or three, the first two of lengths beside each other."""
    begin, slope = lengths[0], values[1] - values[0]
    bend = 0
    if len(values) == 3:
        far = lengths[2] - begin
        bend, rest = divmod(2 * (values[2] - values[0] - slope * far), far * (far - 1))
        if rest:
            raise Unlike(f"{', '.join(map(str, values))} at lengths of {', '.join(map(str, lengths))}")
    return Curve(values[0] - slope * begin + bend * (begin * (begin + 1) // 2), slope - bend * begin, bend)


def at(value: Any, length: int) -> Any:
    """`value` with the numbers that its Curves have at a length."""
    if isinstance(value, Curve):
        return value.at(length)
    if isinstance(value, View):
        return View(
            value.storage,
            value.dtype,
            at(value.shape, length),
            at(value.strides, length),
            at(value.offset, length),
        )
    if isinstance(value, Call):
        return dataclasses.replace(
            value, args=at(value.args, length), kwargs=at(value.kwargs, length), makes=at(value.makes, length)
        )
    if isinstance(value, (list, tuple)):
        return type(value)(at(one, length) for one in value)
    if isinstance(value, dict):
        return {key: at(one, length) for key, one in value.items()}
    return value


def varies(value: Any) -> bool:
    """Whether there is a Curve in it."""
    if isinstance(value, Curve):
        return True
    if isinstance(value, View):
        return varies((value.shape, value.strides, value.offset))
    if isinstance(value, Call):
        return varies((value.args, value.kwargs, value.makes))
    if isinstance(value, (list, tuple)):
        return any(varies(one) for one in value)
    if isinstance(value, dict):
        return any(varies(one) for one in value.values())
    return False
