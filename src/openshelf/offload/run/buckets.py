"""Buckets: a model for inputs of any length, captured once, with one plan for each bucket of lengths.

Nothing is padded: a call of a length within a bucket is the model's own at that length, by the plan of the bucket,
whose offsets have room for the longest in it. See `capture/affine.py`. All plans share one packed file and one arena.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openshelf._sizes import seconds_of, whole
from openshelf.errors import BadInput, CaptureFailed
from openshelf.fabric import Fabric
from openshelf.offload.capture.affine import Curve, Lengths, at
from openshelf.offload.capture.arguments import arguments_of
from openshelf.offload.capture.capture import capture
from openshelf.offload.capture.captured import Captured
from openshelf.offload.capture.tree import flatten
from openshelf.offload.measure.lengths import TimedLengths
from openshelf.offload.measure.transfers import rates_of
from openshelf.offload.planner.plan import Plan, make_plan
from openshelf.offload.program.call import View
from openshelf.offload.program.program import Program
from openshelf.offload.program.rates import Rates
from openshelf.offload.program.torch import torch
from openshelf.offload.run.arena import SharedArena
from openshelf.offload.run.runner import Runner
from openshelf.offload.weights.packed import Packed
from openshelf.offload.weights.source import need_weights, packed_from
from openshelf.space import parse_size

SMALLEST = 16  # tokens, or whatever a length counts, of the smallest bucket


class Buckets:
    """Calls a model with inputs of any length up to `longest`, within a budget. Not thread-safe: there is one arena."""

    def __init__(
        self,
        lengths: Lengths,
        budget: int,
        packed: Callable[[Captured], Packed],
        rates: Rates,
        time_limit: float,
        cache: bool,
        folder: Path | str | None,
    ) -> None:
        self.longest, self._lengths, self._folder = lengths.longest, lengths, folder
        self._timed = TimedLengths.of(lengths, time_limit / 2)
        self.outside = self._timed.outside
        self._room = budget - self.outside
        self._asked: dict[str, Any] = {
            "rates": rates, "time_limit": time_limit, "cache": cache, "beside": self.outside,
        }  # fmt: skip
        self._plans: dict[int, Plan] = {}
        self.plan(self.longest)
        self._packed = packed(lengths.captured)
        self._arena = SharedArena()
        self._loaded: tuple[int, int, Runner] | None = None  # bucket, length

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        length = self._length(args, kwargs)
        bucket = self._bucket(length)
        if self._loaded is None or self._loaded[0] != bucket:
            self._unload()
            captured, plan = self._at(bucket, bucket), self.plan(length)
            run = Runner(captured, plan, self._packed, folder=self._folder, arena=self._arena.of(plan.peak))
            self._loaded = (bucket, bucket, run)
        if self._loaded[1] != length:
            self._loaded = (bucket, -1, self._loaded[2])  # until it is bound to the new one
            self._loaded[2].rebind(self._at(bucket, length))
            self._loaded = (bucket, length, self._loaded[2])
        return self._loaded[2](*args, **kwargs)

    @property
    def peak(self) -> int:
        """Bytes that a run takes, by the plans that were made so far: the arena, and what torch takes beside it."""
        return max(plan.peak for plan in self._plans.values()) + self.outside

    def plan(self, length: int) -> Plan:
        """The plan for inputs of a length: that of its bucket. It is made if there is none yet."""
        bucket = self._bucket(length)
        if bucket not in self._plans:
            self._plans[bucket] = make_plan(self._at(bucket, bucket).program, self._room, stay=True, **self._asked)
        return self._plans[bucket]

    def close(self) -> None:
        """Ends transfers and gives back memory and files; the next call takes them again."""
        self._unload()
        self._arena.release()

    def _unload(self) -> None:
        if self._loaded is not None:
            (_, _, run), self._loaded = self._loaded, None
            run.close()

    def _bucket(self, length: int) -> int:
        bucket = SMALLEST
        while bucket < length:
            bucket *= 2
        return min(bucket, self.longest)

    def _length(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Of the first tensor whose shape grows with it; all others are compared when the model runs."""
        (inputs,) = self._lengths.captured.inputs
        leaves = flatten((args, inputs.in_order(kwargs))).leaves
        for leaf, expected in zip(leaves, self._lengths.inputs, strict=False):
            if not isinstance(expected, View) or not isinstance(leaf, torch.Tensor):
                continue
            for found, line in zip(leaf.shape, expected.shape, strict=False):
                if isinstance(line, Curve):
                    length, rest = divmod(int(found) - line.base, line.slope)
                    if rest or not 0 < length <= self.longest:
                        raise BadInput(f"a length of {length} was asked for, and these are for 1 to {self.longest}")
                    return length
        raise BadInput("the arguments are not like those that were captured: none has the length")

    def _at(self, bucket: int, length: int) -> Captured:
        """The program with the sizes of a bucket and the calls of a length."""
        lengths, top = self._lengths, self._lengths.captured.program
        storages = tuple(dataclasses.replace(one, nbytes=at(lengths.sizes[one.index], bucket)) for one in top.storages)
        ops = tuple(dataclasses.replace(op, seconds=self._timed.seconds(op.index, bucket)) for op in top.ops)
        return lengths.captured_at(Program(ops, storages, f"{top.key}-{bucket}"), length)


def buckets(
    model: Any,
    inputs: Callable[[int], Any],
    longest: int,
    budget: str | int,
    *,
    weights: Any = None,
    fabric: str | Fabric | Rates = "local",
    time_limit: float = 10.0,
    cache: bool = True,
    folder: Path | str | None = None,
) -> Buckets:
    """A model to be called with inputs of any length up to `longest`, within `budget` bytes of memory.

    `inputs(length)` makes inputs of a length, as plan() takes them. The model is captured once, and planned for each
    power of two when a length in it first comes; results are the model's own, bit for bit, without padding. Weights are
    the model's, or those of the checkpoint at the path `weights`. The rest is as for plan(). CaptureFailed if what the
    model does does not grow evenly with the length.
    """
    if not callable(inputs):
        raise BadInput(f"inputs is a function from a length to inputs of that length, got {type(inputs).__name__}")
    longest, time_limit = whole(longest, "longest"), seconds_of(time_limit, "time_limit")
    if longest < 4:
        raise BadInput(f"longest is 4 or more, got {longest}")
    need_weights(model, weights)
    lengths = Lengths.of(lambda length: capture(model, *arguments_of(inputs(length))), longest)
    if not any(isinstance(one, Curve) for one in _numbers(lengths.inputs)):
        raise CaptureFailed("inputs(length) are the same at every length: use plan()")
    source = model if weights is None else weights
    return Buckets(
        lengths, parse_size(budget), lambda captured: packed_from(captured, source, folder), rates_of(fabric),
        time_limit, cache, folder,
    )  # fmt: skip


def _numbers(inputs: tuple[Any, ...]) -> list[Any]:
    return [number for one in inputs if isinstance(one, View) for number in one.shape]
