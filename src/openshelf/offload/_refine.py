"""Refinement: move each transfer to where it costs the least, and reconsider each gap, until nothing helps any more.

One change at a time, worked out to the end and kept if the time is shorter, or as short with fewer bytes moved. The
changes that concern what operators wait for come first, so that there is gain early where time does not allow all.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Iterator

from openshelf.offload._draft import Choice, Draft, draft
from openshelf.offload._rates import Rates
from openshelf.offload._steps import Detach, Wait

SHORT = 40  # gaps
SHAKES = 25  # in vain
MOST = 4000  # drafts in one refinement: the result is the same on a fast and on a slow machine, if both have the time


def refine(best: Draft, rates: Rates, budget: int, deadline: float) -> Draft:
    """The draft, or a better one."""
    tried = at = in_vain = 0
    changes = list(_changes(best))
    while in_vain < len(changes) and tried < MOST and time.monotonic() < deadline:
        found = draft(changes[at % len(changes)], rates, budget)
        tried, at, in_vain = tried + 1, at + 1, in_vain + 1
        if found.score < best.score:
            best, in_vain = found, 0
            changes = list(_changes(best))  # go on from here: what was tried before comes last
    return best


def shake(best: Draft, rates: Rates, budget: int, deadline: float) -> Draft:
    """The draft, or a better one that is more than one change away: some at once, at random, then refined.

    For short programs only: it takes a thousand drafts. The same program gives the same result.
    """
    rng = random.Random(0)
    in_vain = 0
    while len(best.choice.course.gaps) <= SHORT and in_vain < SHAKES and time.monotonic() < deadline:
        in_vain += 1
        one = best
        for _ in range(rng.randint(2, 4)):
            changes = list(_changes(one))
            if not changes:
                return best
            one = draft(rng.choice(changes), rates, budget)
        one = refine(one, rates, budget, deadline)
        if one.score < best.score:
            best, in_vain = one, 0
    return best


def _changes(best: Draft) -> Iterator[Choice]:
    choice = best.choice
    course = choice.course
    waited = _waited(best)
    gaps = sorted(range(len(course.gaps)), key=lambda number: -waited.get(course.gaps[number].storage, 0.0))
    for number in gaps:
        stays = list(choice.stays)
        stays[number] = not stays[number]
        yield dataclasses.replace(choice, stays=tuple(stays))
    residencies = course.residencies(choice.stays)
    for one in residencies:
        if 0 <= one.stored < one.last:
            yield dataclasses.replace(choice, later=choice.later ^ {(one.storage, one.last)})
    loads = [(one.storage, one.first) for one in residencies if one.loaded]
    loads.sort(key=lambda load: -waited.get(load[0], 0.0))
    for load in loads:
        now = choice.starts.get(load, 0)
        for start in {0, now - 2, now - 1, now + 1, now + 2, load[1]}:
            if start != now and 0 <= start <= load[1]:
                yield dataclasses.replace(choice, starts={**choice.starts, load: start})
    if best.repairs:
        for long in (0, 5, 12, 50, 1 << 60):
            yield dataclasses.replace(choice, long=long)
        for s in range(len(course.sizes)):
            yield dataclasses.replace(choice, others=choice.others ^ {s})
    # One leaves so that another stays: what operators wait for, against what is there at that time.
    for number in gaps:
        gap = course.gaps[number]
        if choice.stays[number] or not waited.get(gap.storage):
            continue
        for other, rival in enumerate(course.gaps):
            if choice.stays[other] and rival.before < gap.after and gap.before < rival.after:
                stays = list(choice.stays)
                stays[number], stays[other] = True, False
                yield dataclasses.replace(choice, stays=tuple(stays))


def _waited(best: Draft) -> dict[int, float]:
    """Seconds that operators wait for each storage."""
    found: dict[int, float] = {}
    for number, seconds in best.times.waits.items():
        step = best.steps[number] if number < len(best.steps) else None
        if isinstance(step, Wait | Detach):
            found[step.storage] = found.get(step.storage, 0.0) + seconds
    return found
