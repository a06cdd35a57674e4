"""A plan in virtual time: when each step begins and ends, if operators and lanes are as fast as they are said to be.

Operators run one after the other. A Prefetch or Store is put at the end of its lane's queue when it is met; Wait, and
Detach of what is being stored, hold the operators up. That is all the executor does, too, so that the two can be
compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from openshelf.offload.planner.replay import LEAVE, READ, RUN, TAKE, WRITE, Replay
from openshelf.offload.program.lifetimes import padded
from openshelf.offload.program.program import Program
from openshelf.offload.program.rates import LANES, TIERS, Rates, Tier
from openshelf.offload.program.steps import Step


@dataclasses.dataclass(frozen=True)
class Span:
    """One bar of a picture: what a lane, or `compute`, or `wait`, does from when to when.

    `number` is the operator's, of `compute`; the storage's, of all others.
    """

    lane: str
    name: str
    start: float
    end: float
    number: int


@dataclasses.dataclass(frozen=True)
class Change:
    """So many bytes of the arena are taken, or given back, by a storage; by an operator's workspace if it is None."""

    when: float
    storage: int | None
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Times:
    """Predicted seconds. `seconds` is `compute` + `exposed`, the time in which operators wait for transfers.

    To begin transfers is part of `compute`.
    """

    seconds: float
    compute: float
    exposed: float
    waits: dict[int, float]  # by step: the seconds that it holds the operators up, where there are any
    busy: dict[str, float]  # by lane
    moved: dict[str, int]  # bytes by lane
    peak: int  # bytes in the arena, gaps not counted
    spans: tuple[Span, ...] = ()
    changes: tuple[Change, ...] = ()


def simulate(
    program: Program, steps: Sequence[Step], rates: Rates, homes: Sequence[Tier], *, spans: bool = False
) -> Times:
    """Run the steps in virtual time; with `spans`, keep what every lane did when, and how the arena filled."""
    ops, storages = program.ops, program.storages
    sizes = [padded(storage.nbytes) for storage in storages]
    slowdown = rates.slowdown
    free = dict.fromkeys(LANES, 0.0)  # when each lane has done all that it was asked for
    busy = dict.fromkeys(LANES, 0.0)
    moved = dict.fromkeys(LANES, 0)
    lanes = {
        READ: {home: (f"{home}_read", rates.read(home)) for home in TIERS},
        WRITE: {home: (f"{home}_write", rates.write(home)) for home in TIERS},
    }
    ends: dict[int, float] = {}  # of a storage's transfer under way
    waits: dict[int, float] = {}
    drawn: list[Span] = []
    changes: list[Change] = []
    now = compute = moving_until = 0.0
    used = peak = 0

    replay = Replay(program, steps)
    for event, which, _ in replay:
        if event == RUN:
            op = ops[which]
            seconds = op.seconds
            if slowdown > 1 and moving_until > now:
                with_transfers = min(moving_until - now, seconds * slowdown)
                seconds += with_transfers * (1 - 1 / slowdown)
            if spans:
                drawn.append(Span("compute", op.name, now, now + seconds, op.index))
            if op.workspace:
                room = padded(op.workspace)
                peak = max(peak, used + room)
                if spans:
                    changes += [Change(now, None, room), Change(now + seconds, None, -room)]
            now += seconds
            compute += seconds
        elif event == TAKE:
            used += sizes[which]
            if used > peak:
                peak = used
            if spans:
                changes.append(Change(now, which, sizes[which]))
        elif event == LEAVE:
            used -= sizes[which]
            if spans:
                changes.append(Change(now, which, -sizes[which]))
        elif event in lanes:
            name, lane = lanes[event][homes[which]]
            nbytes = storages[which].nbytes
            now += rates.call_s
            compute += rates.call_s
            start = max(now, free[name])
            seconds = lane.seconds(nbytes)
            ends[which] = free[name] = start + seconds
            moving_until = max(moving_until, free[name])
            busy[name] += seconds
            moved[name] += nbytes
            if spans:
                drawn.append(Span(name, storages[which].name, start, start + seconds, which))
        elif (end := ends.pop(which)) > now:  # it has to arrive, or to land
            waits[replay.number] = end - now
            if spans:
                drawn.append(Span("wait", storages[which].name, now, end, which))
            now = end
    total = max(now, *free.values())
    if total > now:
        waits[len(steps)] = total - now
    return Times(total, compute, sum(waits.values()), waits, busy, moved, peak, tuple(drawn), tuple(changes))
