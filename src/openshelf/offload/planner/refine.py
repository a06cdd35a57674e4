"""Refinement: move each transfer to where it costs the least, and reconsider each gap, until nothing helps any more.

One change at a time, worked out to the end and kept if the time is shorter, or as short with fewer bytes moved. The
changes that concern what operators wait for come first, so that there is gain early where time does not allow all.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from openshelf.offload.planner.candidate import Candidate, Choice, work_out
from openshelf.offload.program.rates import Rates
from openshelf.offload.program.steps import Detach, Run, Wait

SHORT = 40  # gaps
PLACES = 20  # to clear
SHAKES = 25  # in vain
MOST = 4000  # candidates in one refinement: a fast and a slow machine find the same, if both have the time


def refine(best: Candidate, rates: Rates, budget: int, deadline: float) -> Candidate:
    """The candidate, or a better one."""
    tried = at = in_vain = 0
    changes = list(_changes(best, budget))
    while in_vain < len(changes) and tried < MOST and time.thread_time() < deadline:
        found = work_out(changes[at % len(changes)](), rates, budget)
        tried, at, in_vain = tried + 1, at + 1, in_vain + 1
        if found.score < best.score:
            best, in_vain = found, 0
            changes = list(_changes(best, budget))  # go on from here: what was tried before comes last
    return best


def shake(best: Candidate, rates: Rates, budget: int, deadline: float) -> Candidate:
    """The candidate, or a better one that is more than one change away: some at once, at random, then refined.

    For short programs only: it takes a thousand candidates. The same program gives the same result.
    """
    rng = random.Random(0)
    in_vain = 0
    while len(best.choice.schedule.gaps) <= SHORT and in_vain < SHAKES and time.thread_time() < deadline:
        in_vain += 1
        one = best
        for _ in range(rng.randint(2, 4)):
            changes = list(_changes(one, budget))
            if not changes:
                return best
            one = work_out(rng.choice(changes)(), rates, budget)
        one = refine(one, rates, budget, deadline)
        if one.score < best.score:
            best, in_vain = one, 0
    return best


def _changes(best: Candidate, budget: int) -> Iterator[Callable[[], Choice]]:
    """Other choices, none of them made yet: long programs have thousands, of thousands of gaps each."""
    choice = best.choice
    schedule = choice.schedule
    waited = _waited(best)
    for leave in ((), *_cleared(best)):
        for room, starts in ((choice.room, choice.starts), (choice.room, {}), (budget, choice.starts), (budget, {})):
            if leave or (room, starts) != (choice.room, choice.starts):
                yield partial(_flipped, choice, leave, room=room, starts=starts)
    gaps = sorted(range(len(schedule.gaps)), key=lambda number: -waited.get(schedule.gaps[number].storage, 0.0))
    for number in gaps:
        yield partial(_flipped, choice, (number,))
    residencies = schedule.residencies(choice.stays)
    for here in residencies:
        key = here.storage, here.last
        for position in {here.stored, here.stored + 1, here.last} if 0 <= here.stored < here.last else ():
            if position != choice.later.get(key, here.stored):
                yield partial(_moved, choice, "later", key, position)
    loads = [(one.storage, one.first) for one in residencies if one.loaded]
    loads.sort(key=lambda load: -waited.get(load[0], 0.0))
    for load in loads:
        now = choice.starts.get(load, 0)
        for start in {0, now - 2, now - 1, now + 1, now + 2, load[1]}:
            if start != now and 0 <= start <= load[1]:
                yield partial(_moved, choice, "starts", load, start)
    if best.repairs:
        for long in (0, 5, 12, 50, 1 << 60):
            yield partial(dataclasses.replace, choice, long=long)
        for s in range(len(schedule.sizes)):
            yield partial(dataclasses.replace, choice, others=choice.others ^ {s})
    # One leaves so that another stays: what operators wait for, against what is there at that time.
    for number in gaps if len(gaps) <= SHORT else ():
        gap = schedule.gaps[number]
        if choice.stays[number] or not waited.get(gap.storage):
            continue
        for other, rival in enumerate(schedule.gaps):
            if choice.stays[other] and rival.before < gap.after and gap.before < rival.after:
                yield partial(_flipped, choice, (number, other))


def _flipped(choice: Choice, numbers: Sequence[int], **more: Any) -> Choice:
    """What stayed in these gaps leaves, and the other way round."""
    stays = list(choice.stays)
    for number in numbers:
        stays[number] = not stays[number]
    return dataclasses.replace(choice, stays=tuple(stays), **more)


def _moved(choice: Choice, what: str, key: tuple[int, int], position: int) -> Choice:
    """One transfer begins elsewhere."""
    changed: dict[str, Any] = {what: {**getattr(choice, what), key: position}}
    return dataclasses.replace(choice, **changed)


def _cleared(best: Candidate) -> list[tuple[int, ...]]:
    """Where operators wait until something is stored: the gaps of all that is there and at home, at each and at all."""
    choice = best.choice
    places: list[int] = []
    position = 0
    for number, step in enumerate(best.steps):
        position += isinstance(step, Run)
        if isinstance(step, Detach) and number in best.times.waits:
            places.append(position)
    found = []
    for chosen in [places, *([place] for place in places)][:PLACES]:
        gaps = tuple(
            number
            for number, gap in enumerate(choice.schedule.gaps)
            if choice.stays[number] and not gap.dirty and any(gap.before < place < gap.after for place in chosen)
        )
        if gaps:
            found.append(gaps)
    return found


def _waited(best: Candidate) -> dict[int, float]:
    """Seconds that operators wait for each storage."""
    found: dict[int, float] = {}
    for number, seconds in best.times.waits.items():
        step = best.steps[number] if number < len(best.steps) else None
        if isinstance(step, Wait | Detach):
            found[step.storage] = found.get(step.storage, 0.0) + seconds
    return found
