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
from openshelf.offload.capture.affine import Lengths, TooManyRanges, at, ranges
from openshelf.offload.capture.captured import Captured
from openshelf.offload.decoder.model import SHORT, GrowingModel, input_names
from openshelf.offload.decoder.state import State
from openshelf.offload.measure.lengths import TimedLengths
from openshelf.offload.planner.plan import Plan, make_plan
from openshelf.offload.planner.resident import Item, enough, offsets_from_top, spread, without
from openshelf.offload.program.lifetimes import lifetimes, padded
from openshelf.offload.program.program import Op, Program
from openshelf.offload.program.rates import Rates, Tier

AHEAD = (1.0, 2.0, 0.0, 3.0)  # how many of the largest reads there is room for beside what an operator needs
GOOD = 1.02


@dataclasses.dataclass(frozen=True, eq=False)
class Growth:
    """A program that appends to a context, at a range of lengths: which of its storages are states, and its times.

    `fresh`: it begins a context. `tokens` are appended by each call, or as many as the length is if it is `fresh`.
    """

    timed: TimedLengths
    kv: Mapping[int, int]  # storage -> which of the states it is
    states: Sequence[State]
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

    def written_through(self, storage: int) -> bool:
        """Whether what is new in it goes home as it is made; if not, the plan stores it."""
        return self.writes_through and self.states[self.kv[storage]].grows

    def rooms(self, room: int) -> list[int]:
        """Tokens of a row in the arena, of each state: a window has no room for more, once it is full."""
        return [state.up(room) if self.fresh else state.held(room, self.tokens) for state in self.states]

    def firsts(self, past: int) -> list[int]:
        """The tokens with which rows begin in the arena."""
        return [0 if self.fresh or not state.grows else state.first(past) for state in self.states]

    def most(self) -> int:
        """Tokens of the longest context after a call."""
        return self.lengths.longest + (0 if self.fresh else self.tokens)

    def top(self, room: int) -> int:
        """The greatest length for which buffers of `room` tokens are enough."""
        return min(self.lengths.longest, room if self.fresh else room - self.tokens)

    def program(self, room: int) -> Program:
        """As planners see it, at the greatest length."""
        length, old = self.top(room), self.lengths.captured.program
        storages = [dataclasses.replace(one, nbytes=self.program_bytes(one.index, room)) for one in old.storages]
        for s in self.kv:
            name, kept = f"kv{self.states[self.kv[s]].name}", not self.written_through(s)
            storages[s] = dataclasses.replace(storages[s], name=name, kind="kv", given=not self.fresh, kept=kept)
        made: set[int] = set()
        ops = [self._op(op, self.timed.seconds(op.index, length), made) for op in old.ops]
        key = hashlib.sha256(f"{old.key} for {room} tokens, fresh {self.fresh}".encode()).hexdigest()
        return Program(tuple(ops), tuple(storages), key)

    def program_bytes(self, storage: int, room: int) -> int:
        """The size of one storage in program(room)."""
        if storage in self.kv:
            state = self.states[self.kv[storage]]
            return (
                state.rows * self.rooms(room)[self.kv[storage]] * state.token_bytes
                if state.grows
                else state.token_bytes
            )
        size = self.lengths.sizes[storage]
        return max(int(at(size, length)) for length in (self.lengths.shortest, self.top(room)))

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


class Growths:
    """The programs of one kind: for ranges of lengths, and for single lengths, which are captured when they come.

    `tokens` are appended by each call to contexts of up to `longest`; or, `fresh`, it begins contexts of up to
    `longest`. What a model does with one token is often something else, so ranges begin at two. If what it does to
    begin a context is something else at every length, there are no ranges, and `longest` is captured at once.
    """

    def __init__(
        self, growing: GrowingModel, longest: int, time_limit: float, tokens: int = 1, *, fresh: bool = False
    ) -> None:
        self._growing, self._tokens, self._fresh, self._time_limit = growing, tokens, fresh, time_limit
        windows = {state.window for state in growing.states if state.window is not None}
        near = [one + more for one in windows for more in (-tokens, 1 - tokens, -2, -1, 0, 1, 2)]
        last = longest if fresh else longest - tokens
        try:
            found = ranges(self._captured, growing.shortest if not fresh else min(SHORT, last), last, near)
        except TooManyRanges:
            if not fresh:
                raise
            found = [Lengths.at_one(self._captured(last), last)]
        self._time_limit /= len(found)
        self.all = [self._growth(lengths) for lengths in found]

    def at(self, length: int) -> Growth:
        """The program for a length."""
        for growth in self.all:
            if growth.lengths.shortest <= length <= growth.lengths.longest:
                return growth
        self.all.insert(0, self._growth(Lengths.at_one(self._captured(length), length)))
        return self.all[0]

    def _captured(self, length: int) -> Captured:
        return self._growing.captured(0, length) if self._fresh else self._growing.captured(length, self._tokens)

    def _growth(self, lengths: Lengths) -> Growth:
        return growth_of(self._growing, lengths, self._tokens, fresh=self._fresh, time_limit=self._time_limit)


def growth_of(growing: GrowingModel, lengths: Lengths, tokens: int, *, fresh: bool, time_limit: float) -> Growth:
    """What appends at these lengths, timed."""
    names = input_names(len(growing.states))
    storages, calls = lengths.captured.program.storages, lengths.captured.calls
    kv = {one.index: names.index(one.name) - 1 for one in storages if one.name in names[1:]}
    changed = [s for call in calls for s in call.changes]
    altered = [storages[s].name for s in changed if storages[s].given and s not in kv]
    if altered:
        raise CaptureFailed(
            f"the model changes {altered[0]} as it runs: it is not for generating. Is the model in evaluation mode?"
        )
    for s in kv:
        if growing.states[kv[s]].grows and changed.count(s) > 1:
            raise CaptureFailed(
                f"the model changes {growing.states[kv[s]].name[1:]} in its cache where it had been written before: "
                "decode() cannot tell what is new"
            )
    return Growth(TimedLengths.of(lengths, time_limit), kv, growing.states, tokens, fresh)


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
    layers = _layers(growth, buffers)
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


def _layers(growth: Growth, buffers: Sequence[int]) -> list[Item]:
    """States of one layer stay, or not, together."""
    found: dict[str, Item] = {}
    for s in buffers:
        layer = growth.states[growth.kv[s]].name.rpartition(".")[0]
        found[layer] = (*found.get(layer, ()), s)
    return list(found.values())


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
