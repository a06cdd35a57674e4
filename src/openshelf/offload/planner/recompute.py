"""Running operators again: what may be dropped in a long gap and made anew, and the schedule that follows.

Dropped is what costs less to make than to store and read, all in all: an operator whose inputs are dropped too has to
have them made first, so the cost adds up along the way until storing is cheaper, and what is stored there is where
making anew begins. An input that would have to be kept for this alone is no gain.
"""

from __future__ import annotations

from collections.abc import Sequence

from openshelf.offload.planner.gaps import Schedule
from openshelf.offload.program.program import Program
from openshelf.offload.program.rates import Rates, Tier


def with_reruns(
    schedule: Schedule, rates: Rates, homes: Sequence[Tier], crowded: Sequence[bool], weight: float
) -> Schedule:
    """A schedule where storages are made anew if `weight` x the seconds for that are below those of moving them.

    Considered are gaps over positions where room is short (`crowded`). The same schedule if there are none.
    """
    dropped = _dropped(schedule, rates, homes, crowded, weight)
    return Schedule.of(schedule.program, _order(schedule.program, dropped)) if dropped else schedule


def _dropped(
    schedule: Schedule, rates: Rates, homes: Sequence[Tier], crowded: Sequence[bool], weight: float
) -> dict[int, int]:
    """Storages to drop -> the position of the last use before they are."""
    program, uses = schedule.program, schedule.uses
    short = [0]
    for one in crowded:
        short.append(short[-1] + one)
    longest: dict[int, tuple[int, int]] = {}
    for gap in schedule.gaps:
        if short[gap.after] - short[gap.before + 1] > 0:
            length = longest.get(gap.storage, (0, 0))
            if gap.after - gap.before > length[1] - length[0]:
                longest[gap.storage] = (gap.before, gap.after)
    changed = {s: [use.position for use in along if use.changed and not use.made] for s, along in enumerate(uses)}
    cost: dict[int, float] = {}  # seconds to make what is dropped
    dropped: dict[int, int] = {}
    for op in program.ops:
        if len(op.makes) != 1 or not op.again or op.changes or op.makes[0] not in longest:
            continue
        s = op.makes[0]
        before, after = longest[s]
        end = uses[s][-1].position
        if program.storages[s].kept or changed[s] or any(op.index < at <= end for r in op.reads for at in changed[r]):
            continue
        extra = sum(
            schedule.sizes[r]
            for r in op.reads
            if r not in dropped and not program.storages[r].given and uses[r][-1].position < after
        )
        seconds = op.seconds + sum(cost[r] for r in op.reads if r in dropped)
        nbytes, home = program.storages[s].nbytes, homes[s]
        moving = rates.read(home).seconds(nbytes) + rates.write(home).seconds(nbytes)
        if 2 * extra <= schedule.sizes[s] and weight * seconds < moving:
            dropped[s], cost[s] = before, seconds
    return dropped


def _order(program: Program, dropped: dict[int, int]) -> list[int]:
    """The operators, and before each one those that make again what it needs."""
    maker = {s: op.index for op in program.ops for s in op.makes}
    drops: dict[int, list[int]] = {}
    for s, before in dropped.items():
        drops.setdefault(before, []).append(s)
    gone: set[int] = set()
    order: list[int] = []

    def bring(s: int) -> None:
        pending = [s]
        while pending:
            op = program.ops[maker[pending[-1]]]
            missing = [r for r in op.reads if r in gone]
            if missing:
                pending += missing[:1]
                continue
            gone.discard(pending.pop())
            order.append(op.index)

    for op in program.ops:
        for s in op.reads:
            if s in gone:
                bring(s)
        order.append(op.index)
        gone.update(drops.get(op.index, ()))
    return order
