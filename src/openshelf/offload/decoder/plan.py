"""Plans for a context that grows: one for each bucket of lengths, with room for the bucket's longest in the arena.

Offsets are fixed for a bucket; within it only the ends of views change (`capture/affine.py`). What can stay in the
arena from token to token stays (`planner/resident.py`): how much of the rest is left for reading ahead is tried.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openshelf.errors import CaptureFailed, NoRoom
from openshelf.offload.capture.affine import Lengths, at
from openshelf.offload.decoder.model import GrowingModel, Shape, input_names
from openshelf.offload.measure.lengths import TimedLengths
from openshelf.offload.planner.plan import Plan, make_plan
from openshelf.offload.planner.resident import Item, enough, offsets_from_top, spread, without
from openshelf.offload.program.lifetimes import lifetimes, padded
from openshelf.offload.program.program import Op, Program
from openshelf.offload.program.rates import Rates, Tier

AHEAD = (1.0, 2.0, 0.0, 3.0)  # how many of the largest reads there is room for beside what an operator needs
GOOD = 1.02


@dataclasses.dataclass(frozen=True)
class Growth:
    """A program that appends to a context, at any length: which of its storages are keys and values, and its times.

    `fresh`: it begins a context. `tokens` are appended by each call, or as many as the length is if it is `fresh`.
    """

    timed: TimedLengths
    kv: Mapping[int, int]  # storage -> which of the buffers it is
    shapes: Sequence[Shape]  # of the buffers
    tokens: int
    fresh: bool

    @property
    def lengths(self) -> Lengths:
        return self.timed.lengths

    @property
    def ids(self) -> int:
        """The storage of the tokens that are appended."""
        return int(self.lengths.inputs[0].storage)

    @property
    def writes_through(self) -> bool:
        """A token's keys and values go to their home as they are made; those of many are stored by the plan."""
        return not self.fresh and self.tokens == 1

    def top(self, room: int) -> int:
        """The greatest length for which buffers of `room` tokens are enough."""
        return min(self.lengths.longest, room if self.fresh else room - self.tokens)

    def program(self, room: int) -> Program:
        """As planners see it, at the greatest length."""
        length, old = self.top(room), self.lengths.captured.program
        storages = [dataclasses.replace(one, nbytes=self.program_bytes(one.index, room)) for one in old.storages]
        for s in self.kv:
            kept = not self.writes_through
            name = f"kv.{self.kv[s] // 2}.{'values' if self.kv[s] % 2 else 'keys'}"
            storages[s] = dataclasses.replace(storages[s], name=name, kind="kv", given=not self.fresh, kept=kept)
        made: set[int] = set()
        ops = [self._op(op, self.timed.seconds(op.index, length), made) for op in old.ops]
        key = hashlib.sha256(f"{old.key} for {room} tokens, fresh {self.fresh}".encode()).hexdigest()
        return Program(tuple(ops), tuple(storages), key)

    def program_bytes(self, storage: int, room: int) -> int:
        """The size of one storage in program(room)."""
        if storage in self.kv:
            shape = self.shapes[self.kv[storage]]
            return shape.rows * room * shape.token_bytes
        return int(at(self.lengths.sizes[storage], self.top(room)))

    def always(self, program: Program) -> list[int]:
        """What has no home but the plan: it stays."""
        return [one.index for one in program.storages if one.given and one.index in self.lengths.captured.values]

    def least(self, room: int) -> int:
        """The smallest arena for which there is a plan."""
        program = self.program(room)
        always = self.always(program)
        return lifetimes(without(program, always)).least + sum(padded(program.storages[s].nbytes) for s in always)

    def enough(self, room: int) -> int:
        """Bytes of an arena in which all that is given stays, and operators have all the room that they can use."""
        program = self.program(room)
        stays = [one.index for one in program.storages if one.index in self.kv or (one.given and one.kind != "input")]
        return enough(program, stays)

    def _op(self, op: Op, seconds: float, made: set[int]) -> Op:
        makes = [s for s in op.changes if self.fresh and s in self.kv and s not in made]
        made.update(makes)
        changes = tuple(s for s in op.changes if s not in makes)
        return dataclasses.replace(op, seconds=seconds, changes=changes, makes=(*op.makes, *makes))


@dataclasses.dataclass(frozen=True)
class BucketPlan:
    """Of one Growth, for `room` tokens: a plan of what moves, and the offsets of what stays from call to call."""

    growth: Growth
    room: int
    plan: Plan
    stays: Mapping[int, int]

    @property
    def peak(self) -> int:
        """Bytes of the arena that are used."""
        return self.plan.peak + sum(padded(self.growth.program_bytes(s, self.room)) for s in self.stays)


def growth_of(growing: GrowingModel, longest: int, tokens: int = 1, *, fresh: bool = False) -> Growth:
    """Captures and times what appends so many tokens to contexts of up to `longest`, or, `fresh`, begins them."""
    if fresh:
        lengths = Lengths.of(lambda length: growing.captured(0, length), longest)
    else:
        lengths = Lengths.of(lambda length: growing.captured(length, tokens), longest - tokens)
    names = input_names(len(growing.shapes))
    storages = lengths.captured.program.storages
    kv = {one.index: names.index(one.name) - 1 for one in storages if one.name in names[1:]}
    changed = {s for op in lengths.captured.program.ops for s in op.changes}
    altered = [storages[s].name for s in changed if storages[s].given and s not in kv]
    if altered:
        raise CaptureFailed(
            f"the model changes {altered[0]} as it runs: it is not for generating. Is the model in evaluation mode?"
        )
    return Growth(TimedLengths.of(lengths), kv, growing.shapes, tokens, fresh)


def plan_growth(
    growth: Growth, room: int, arena: int, rates: Rates, kv: Tier, *, time_limit: float, cache: bool
) -> BucketPlan:
    """The best plan found in an arena of so many bytes, which are `growth.least(room)` or more."""
    program = growth.program(room)
    sizes = [one.nbytes for one in program.storages]
    homes: tuple[Tier, ...] = tuple(kv if one.index in growth.kv else "flash" for one in program.storages)
    values, always = growth.lengths.captured.values, growth.always(program)
    names = growth.lengths.captured.names
    weights: list[Item] = [
        (one.index,)
        for one in program.storages
        if one.given and one.index not in values and one.kind in ("weight", "buffer")
    ]
    buffers = sorted(growth.kv, key=lambda s: growth.kv[s])
    # The same order in all programs, so that what stays in several is not moved between them.
    order = [*sorted((s for (s,) in weights), key=lambda s: names[s]), *buffers, *always]
    layers: list[Item] = [(buffers[n], buffers[n + 1]) for n in range(0, len(buffers), 2)]
    best: BucketPlan | None = None
    tried: set[Any] = set()
    for ahead in AHEAD:
        stays = _stays(program, always, weights, layers, arena, ahead)
        if frozenset(stays) in tried:
            continue
        tried.add(frozenset(stays))
        left = arena - sum(padded(sizes[s]) for s in stays)
        try:
            made = make_plan(
                without(program, stays), left, rates, homes=homes, time_limit=time_limit / len(AHEAD), cache=cache
            )
        except NoRoom:
            continue
        found = BucketPlan(growth, room, made, offsets_from_top(sorted(stays, key=order.index), sizes, arena))
        if best is None or made.times.seconds < best.plan.times.seconds:
            best = found
        if made.times.exposed <= (GOOD - 1) * made.times.seconds:
            break
    assert best is not None, f"an arena of {arena} bytes is less than the least"
    return best


def _stays(
    program: Program, always: list[int], weights: list[Item], layers: list[Item], arena: int, ahead: float
) -> list[int]:
    """Storages that stay: weights first, for they come from the slower tier, then keys and values."""
    sizes = [one.nbytes for one in program.storages]

    def size(storages: Iterable[int]) -> int:
        return sum(padded(sizes[s]) for s in storages)

    def needed(stays: Sequence[int]) -> int:
        return size(stays) + lifetimes(without(program, stays)).least

    stays = list(always)
    for items, later in ((weights, layers), (layers, [])):
        everything = [*stays, *(s for item in items for s in item)]
        reads = max(map(size, later), default=0)
        if needed(everything) + int(ahead * reads) <= arena:
            stays = everything
        else:
            reads = max(map(size, [*items, *later]), default=0)
            room = arena - needed(stays) - int(ahead * reads)
            stays += [s for item in spread(items, sizes, max(0, room)) for s in item]
            break  # what comes from a faster tier does not stay where this does not
    return stays
