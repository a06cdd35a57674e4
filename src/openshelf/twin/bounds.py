"""What steps take at the least, and a step alone at the most: without a simulation.

At the least: no flow is faster than its narrowest resource, no rank has all that it gets before the link into it has
carried it, and a resource is busy with all that steps carry over it, after the steps before and before those after.

At the most: max-min fair rates leave no flow less than an equal part of one resource on its way (of the one that holds
it back, where no other flow is faster). So a flow of a step ends no later than if it had that part all the time. Where
both are equal, this is the time: in an exchange of all with all, mostly so, however hashes choose ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from openshelf.fabric import Ids, Values
from openshelf.twin.algorithms import Step
from openshelf.twin.flows import Flows, Setting, flows_of, from_one, ways_of

_SINGLE = 32  # steps of a phase, up to which each is looked at by itself
_TURNS = 4  # of a step that is done more often every rank's time is not followed


def carried_by(setting: Setting, steps: Sequence[Step]) -> Values:
    """Wire bytes over each resource."""
    total = np.zeros(setting.network.resources)
    for step in steps:
        total += step.times * once_carried(setting, step)
    return total


def once_carried(setting: Setting, step: Step) -> Values:
    def find() -> Values:
        few = from_one(setting, step)
        if few is not None and few.weight is not None and setting.network.orbit is not None:
            carried = np.bincount(
                few.path, few.weight * np.repeat(few.wire, np.diff(few.at)), int(setting.network.orbit.max()) + 1
            )
            return np.asarray(carried[setting.network.orbit])
        flows = flows_of(setting, step)
        if len(flows.wire) and np.ptp(flows.wire) == 0:
            return _crossed(setting, step) * float(flows.wire[0])
        weights = np.repeat(flows.wire, np.diff(flows.at))
        return np.bincount(flows.path, weights, minlength=setting.network.resources).astype(np.float64)

    made: Values = setting.keep("carried", step, find)
    return made


def _crossed(setting: Setting, step: Step) -> Values:
    """How many flows of a step cross each resource; the same for steps of any size between the same ranks."""
    key = ("crossed", id(step.src), id(step.dst), id(step.over), step.inside)
    if key not in setting.ways:
        count = np.bincount(ways_of(setting, step).path, minlength=setting.network.resources)
        setting.ways[key] = (count.astype(np.float64), step)
    found: Values = setting.ways[key][0]
    return found


def busiest(setting: Setting, steps: Sequence[Step]) -> float:
    """How long the busiest resource needs for what steps carry over it."""
    return float((carried_by(setting, steps) / setting.network.capacity_bytes_per_s).max())


def least_s(setting: Setting, steps: Sequence[Step]) -> float:
    """Seconds of steps one after the other, at the least."""
    ready = np.zeros(len(setting.ranks))
    before, follows = [], []
    for step in steps:
        before.append(float(ready.min()))
        follows.append(_goes_on(setting, step, ready))
    after = [*np.cumsum(follows[::-1])[::-1].tolist(), 0.0]
    found, begin = float(ready.max()), 0
    for _, group in groupby(steps, key=lambda step: step.phase):
        some = list(group)
        found = max(found, before[begin] + busiest(setting, some) + after[begin + len(some)])
        for number, step in enumerate(some, begin) if 1 < len(some) <= _SINGLE else ():
            found = max(found, before[number] + busiest(setting, [step]) + after[number + 1])
        begin += len(some)
    return found


def _goes_on(setting: Setting, step: Step, ready: Values) -> float:
    """Moves on when each rank is ready, at the least; gives how much later whoever was late is after the step."""
    src, dst, takes, into = setting.keep("takes", step, lambda: _takes(setting, step))
    turns, every = step.times, False
    if len(dst) >= len(ready):
        every = bool(np.bincount(src, minlength=len(ready)).all() and np.bincount(dst, minlength=len(ready)).all())
    if every and turns > _TURNS:
        last = np.zeros(len(ready))
        np.maximum.at(last, dst, takes)
        ready[:] = np.maximum(ready, ready.min() + (turns - _TURNS) * np.maximum(last, into).min())
    only_sent = ~np.isin(src, dst)
    for _ in range(min(turns, _TURNS)):
        begins = ready[src]
        first = np.full(len(ready), np.inf)
        np.minimum.at(first, dst, begins)
        np.maximum.at(ready, dst, begins + takes)
        there = np.isfinite(first)
        ready[there] = np.maximum(ready[there], first[there] + into[there])
        np.maximum.at(ready, src[only_sent], (begins + takes)[only_sent])
    return turns * float(takes.min()) if every else 0.0


def _takes(setting: Setting, step: Step) -> tuple[Ids, Ids, Values, Values]:
    """Source and target of each flow, what it takes at the least, and each rank until all for it is in."""
    few, count = from_one(setting, step), len(setting.ranks)
    if few is not None:  # every rank gets one of each
        every = np.arange(count, dtype=np.int64)
        takes = few.delay + few.wire / _width(setting.network.capacity_bytes_per_s, few, orbits(setting))
        return every, every, np.full(count, takes.min()), np.full(count, takes.max())
    flows = flows_of(setting, step)
    takes = flows.delay + flows.wire / _width(setting.network.capacity_bytes_per_s, flows, None)
    hops = np.diff(flows.at)
    there = hops > 0
    last = flows.path[flows.at[1:][there] - 1]
    load = _into(flows.dst[there], last, flows.wire[there]) / setting.network.capacity_bytes_per_s[last]
    into = np.zeros(count)
    least = np.full(count, np.inf)
    np.minimum.at(least, flows.dst, flows.delay)
    np.maximum.at(into, flows.dst[there], load)
    return flows.src, flows.dst, takes, np.where(np.isfinite(least), into + least, 0.0)


def _into(dst: Ids, last: Ids, wire: Values) -> Values:
    """Bytes that the same target gets over the same last resource, for each flow."""
    owner = np.zeros(int(last.max(initial=0)) + 1, np.int64)
    owner[last] = dst
    if np.array_equal(owner[last], dst):  # it leads to one rank only
        return np.asarray(np.bincount(last, wire, 1)[last])
    _, pair = np.unique(dst * len(owner) + last, return_inverse=True)
    return np.asarray(np.bincount(pair.ravel(), wire)[pair.ravel()])


def orbits(setting: Setting) -> Ids:
    """One resource of each orbit."""
    assert setting.network.orbit is not None
    return np.unique(setting.network.orbit, return_index=True)[1]


def _width(capacity: Values, flows: Flows, which: Ids | None) -> Values:
    """The narrowest resource on the way of each flow, or its cap."""
    some = np.diff(flows.at) > 0
    width = flows.cap.copy()
    if some.any():
        own = capacity[flows.path if which is None else which[flows.path]]
        width[some] = np.minimum(width[some], np.minimum.reduceat(own, flows.at[:-1][some]))
    return width


def at_most(setting: Setting, step: Step) -> Values:
    """Seconds on the wires of each flow of a step by itself, at the most."""

    def find() -> Values:
        flows = flows_of(setting, step)
        held = _crossed(setting, step) / setting.network.capacity_bytes_per_s  # seconds a byte
        some, worst = np.diff(flows.at) > 0, 1 / flows.cap
        if some.any():
            most = np.maximum.reduceat(held[flows.path], flows.at[:-1][some])
            worst[some] = np.maximum(worst[some], most)
        return np.asarray(np.where(some, flows.wire * worst, 0.0))

    made: Values = setting.keep("at most", step, find)
    return made


def alone(setting: Setting, step: Step) -> tuple[float, float]:
    """Seconds of a step by itself: at the least, and at the most."""
    flows, capacity = flows_of(setting, step), setting.network.capacity_bytes_per_s
    ends = flows.delay + at_most(setting, step)
    last, least = int(ends.argmax()), float((flows.delay + flows.wire / _width(capacity, flows, None)).max())
    way = flows.path[flows.at[last] : flows.at[last + 1]]
    if len(way):  # the resource that holds back the last flow: it has to carry what comes late after that has come
        where = way[(_crossed(setting, step)[way] / capacity[way]).argmax()]
        own = np.searchsorted(flows.at, np.flatnonzero(flows.path == where), side="right") - 1
        own = own[np.argsort(flows.delay[own])]
        left = np.cumsum(flows.wire[own][::-1])[::-1] / capacity[where]
        least = max(least, float((flows.delay[own] + left).max()))
    return least, max(least, float(ends[last]))
