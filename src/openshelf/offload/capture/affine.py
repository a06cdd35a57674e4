"""One program for all lengths: captured at three of them, every number in it a straight line of the length.

A model that is called with a longer context does the same calls on longer tensors. So two captures give every shape,
stride, offset and argument at any length, and a third, between them, is compared: a model that changes its ways with
the length (a sliding window, another kernel) is refused. Binding a call at another length is arithmetic then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from openshelf.errors import CaptureFailed
from openshelf.offload.capture.captured import Captured
from openshelf.offload.program.call import Call, View
from openshelf.offload.program.program import Program


class Line(NamedTuple):
    """A number that grows with the length."""

    base: int
    slope: int

    def at(self, length: int) -> int:
        return self.base + self.slope * length


class Unlike(Exception):
    """Two captures differ by more than numbers."""


@dataclasses.dataclass(frozen=True)
class Lengths:
    """A program at any length up to `longest`. `calls` and `sizes` have Lines where numbers vary.

    `captured` is the program at `longest`, `low` at the shortest length that was captured.
    """

    captured: Captured
    low: Captured
    longest: int
    shortest: int
    calls: tuple[Call, ...]
    sizes: tuple[int | Line, ...]  # bytes of storages
    inputs: tuple[Any, ...]  # leaves of the arguments, Views where these are tensors
    outputs: tuple[Any, ...]

    @classmethod
    def of(cls, capture_at: Callable[[int], Captured], longest: int) -> Lengths:
        """`capture_at(length)` captures the model at a length; CaptureFailed if it does not go along straight lines."""
        shortest = max(2, longest // 4)
        between = (shortest + longest) // 2 + 1
        ends = (capture_at(shortest), capture_at(longest))
        parts = _lines(_parts(ends[0]), _parts(ends[1]), shortest, longest)
        if ends[0].outcome != ends[1].outcome or ends[0].inputs[0].tree != ends[1].inputs[0].tree:
            raise CaptureFailed(f"arguments or results at a length of {shortest} are of another form than at {longest}")
        if shortest < between < longest and at(parts, between) != _parts(capture_at(between)):
            raise CaptureFailed(
                f"what the model does at a length of {between} does not grow evenly from {shortest} to {longest}: its "
                "ways change with the length (a sliding window, eager attention, dropout in train()?), and one program "
                "cannot hold that"
            )
        return cls(ends[1], ends[0], longest, shortest, *parts)

    def growing(self, program: Program) -> Captured:
        """The program with Lines where numbers vary, and with the sizes and times of `program`."""
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


def _parts(captured: Captured) -> tuple[Any, Any, Any, Any]:
    (inputs,) = captured.inputs
    if inputs.asked:
        raise CaptureFailed("what the model does depends on the values of its inputs, not on their length only")
    return captured.calls, tuple(one.nbytes for one in captured.program.storages), inputs.leaves, captured.outputs


def _lines(low: Any, high: Any, shortest: int, longest: int) -> Any:
    try:
        return _joined(low, high, shortest, longest)
    except Unlike as error:
        raise CaptureFailed(
            f"at a length of {shortest} the model does something else than at {longest}, not only on longer tensors: "
            f"{error}. With attn_implementation='sdpa' it may do the same"
        ) from error


def _joined(low: Any, high: Any, shortest: int, longest: int) -> Any:
    if type(low) is not type(high):
        raise Unlike(f"{low!r} and {high!r}")
    if isinstance(low, (Call, View)):
        if isinstance(low, Call) and (low.kernel, low.reads, low.changes) != (high.kernel, high.reads, high.changes):
            raise Unlike(f"{low.name} at {low.where}, and {high.name} at {high.where}")
        if isinstance(low, View) and low.storage != high.storage:
            raise Unlike("other tensors")
        return dataclasses.replace(
            low,
            **{
                field.name: _joined(getattr(low, field.name), getattr(high, field.name), shortest, longest)
                for field in dataclasses.fields(low)
                if field.name != "kernel"
            },
        )
    if isinstance(low, (list, tuple)):
        if len(low) != len(high):
            raise Unlike(f"{len(low)} and {len(high)} calls, arguments or dimensions")
        return type(low)(_joined(one, two, shortest, longest) for one, two in zip(low, high, strict=True))
    if isinstance(low, dict):
        if low.keys() != high.keys():
            raise Unlike(f"{list(low)} and {list(high)}")
        return {key: _joined(low[key], high[key], shortest, longest) for key in low}
    if type(low) is int and low != high:
        slope, rest = divmod(high - low, longest - shortest)
        if rest:
            raise Unlike(f"{low} and {high}, not along a line")
        return Line(low - slope * shortest, slope)
    if low != high:
        raise Unlike(f"{low!r} and {high!r}")
    return low


def at(value: Any, length: int) -> Any:
    """`value` with the numbers that its Lines have at a length."""
    if isinstance(value, Line):
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
    """Whether there is a Line in it."""
    if isinstance(value, Line):
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
