"""How long steps take: by the full graph of their flows, or by solving each different step once.

Solving once is right where ranks stay together. If all flows of a step take as long on the wires and have the same
delay, every rank is at the same moment after it, and the next step finds what this one found: times are sums. If only
delays differ, and no two flows of the one repeated step share a resource, a rank is late by the delays that its bytes
met on their way: since all flows take as long on the wires, one that starts behind another on a resource never catches
up with it, so nothing is shared, and the time is that of the slowest walk along the steps. Else the graph is run, with
one flow for all that are alike (`alike.py`) or with every flow, unless that is too large: then every flow takes what it
takes in its step alone, though ranks drift apart and meet flows of other steps, or, where chunks go one behind the
other, every resource is as busy as the busiest of its role; and the result says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openshelf import _core
from openshelf.fabric import Ids, Network, Values
from openshelf.twin.algorithms import Step
from openshelf.twin.alike import Classes, alike, classes, coarse
from openshelf.twin.bounds import alone, at_most
from openshelf.twin.costs import latencies
from openshelf.twin.flows import Flows, Setting, at_once, flows_of, from_one, of_orbits, same_flows
from openshelf.twin.graph import add_chunks
from openshelf.twin.tasks import Tasks, Times, run

LOCK_STEP = "steps solved once: all ranks in step"
ONE_STEP = "steps solved once: the busiest way sets the time"
WALK = "steps solved once: nothing shared, ranks late by their delays"
GRAPH = "every flow"
ALIKE = "one flow for all that are alike"
HELD_BACK = "every flow as slow as its way may make it: approximate"
DRIFTING = "flows as long as in their step alone: approximate"
COARSE = "links as busy as the busiest of their role: approximate"
_SAME = 1e-9
_MOST_WORK = 6e8  # flows times flows of a step, of a graph that is run without being asked for
_MOST_PIPED = 4e7  # the same, where chunks go one behind the other
_FEW = 2000  # flows of a graph, up to which nobody looks for flows that are alike
_MOST_ALIKE = 400_000  # flows of all steps, up to which somebody does
_MOST_FOLLOWED = 2e7  # flows of one repeated step that are followed in that case
_MOST_EFFORT = 2e8  # of a run of flows that are alike, see `_effort`: some tenths of a second
_MAKING, _OF_HOP, _OF_CLASSES, _OF_TASK, _OF_EVENT = 4e6, 250.0, 200.0, 500.0, 5.0  # nanoseconds, about
_BESIDE = 10_000  # flows, of which no more are solved at once: many begin and end together
_NEAR = 2e-3  # of a step's time: what its ends handled in batches may be off, too
_TOO_MANY = 200_000  # flows of one step, which are not simulated
_MANY = 20_000  # flows of one step, from which on their ends are handled in batches


@dataclass(frozen=True)
class _Solved:
    """One step alone: delay and seconds on the wires of each flow, and whether any resource has two of them."""

    step: Step
    delay: Values
    wire: Values
    shared: bool

    @property
    def even(self) -> bool:
        return bool(np.ptp(self.wire) <= _SAME * self.wire.max())


def seconds_of(setting: Setting, steps: Sequence[Step], how: str = "auto") -> tuple[float, str]:
    """The seconds that steps take, and how they were found; `how` may ask for the `graph` or the `steps`."""
    if how == "graph":
        return _run(setting, [steps], 1, 0).seconds, GRAPH
    by_one = [from_one(setting, step) for step in steps]
    if all(each is not None for each in by_one):
        few = [each for each in by_one if each is not None]
        return _run_small(setting, of_orbits(setting.network), [few], 1, 1, 0), ALIKE
    if len(steps) == 1 and steps[0].times == 1 and not setting.network.whole_messages:
        least, most = alone(setting, steps[0])
        if most <= least * (1 + _SAME):
            return most, ONE_STEP
        if (most <= least * (1 + _NEAR) and len(steps[0].src) >= _MANY) or len(steps[0].src) >= _TOO_MANY:
            return most, HELD_BACK
    solved: list[_Solved] = []
    for step in steps:
        solved.append(_again(setting, step, solved) or _solve(setting, step))
    stored = setting.network.whole_messages and any(each.shared for each in solved)  # messages queue there
    found = None if stored else _together(solved) or _walk(solved)
    if found:
        return found
    if how == "steps":
        return _drifting(setting, solved), DRIFTING
    made = _by_classes(setting, [steps], 1, 0)
    if made is not None:
        return made, ALIKE
    work = sum(step.flows for step in steps) * max(len(step.src) for step in steps)
    if work > _MOST_WORK and sum(step.times for step in steps) > 1:
        return _drifting(setting, solved), DRIFTING
    return _run(setting, [steps], 1, 0, _window(setting, steps)).seconds, GRAPH


def piped_seconds(
    setting: Setting, variants: Sequence[Sequence[Step]], chunks: int, active: int = 0, how: str = "auto"
) -> tuple[float, str]:
    """The same for chunks that go one behind the other, each as one of the variants in turn."""
    if how != "graph":
        made = _by_classes(setting, variants, chunks, active)
        if made is not None:
            return made, ALIKE
        flows = chunks * sum(step.flows for steps in variants for step in steps) / len(variants)
        together = min(chunks, max(len(steps) for steps in variants))
        work = flows * together * max(len(step.src) for steps in variants for step in steps)
        if work > _MOST_PIPED and not setting.network.whole_messages:
            priced = [[flows_of(setting, step) for step in steps] for steps in variants]
            small = coarse(setting.network, priced)
            return _run_small(setting, small.network, small.variants, small.ranks, chunks, active), COARSE
    return _run(setting, variants, chunks, active).seconds, GRAPH


def _by_classes(setting: Setting, variants: Sequence[Sequence[Step]], chunks: int, active: int) -> float | None:
    """The time by one flow for all that are alike; None if there are few flows, or few alike."""
    steps = [step for steps in variants for step in steps]
    every = sum(len(step.src) for step in steps)
    total = chunks * sum(step.flows for step in steps)
    if setting.network.whole_messages or total <= _FEW or every > _MOST_ALIKE:
        return None
    priced = [[flows_of(setting, step) for step in each] for each in variants]
    key = ("alike", tuple((id(step.src), id(step.dst), id(step.over), step.inside) for step in steps))
    made = None
    for turn in range(2):  # flows of another size are mostly alike as those of the size before were
        if key not in setting.kept or turn:
            setting.kept[key] = (_alike(setting, steps, priced), steps)
        found = setting.kept[key][0]
        made = found and found.of(priced)
        if made is not None or found is None:
            break
    if made is None or _effort(made.variants, chunks) > _MOST_EFFORT:
        return None
    return _run_small(setting, made.network, made.variants, made.ranks, chunks, active)


def _alike(setting: Setting, steps: Sequence[Step], priced: Sequence[Sequence[Flows]]) -> Classes | None:
    if 2 * sum(_classes(setting, step) for step in steps) > sum(len(step.src) for step in steps):
        return None
    setting.count(_OF_CLASSES * sum(len(flows.path) for each in priced for flows in each))
    return alike(setting.network, priced, len(setting.ranks))


def _classes(setting: Setting, step: Step) -> int:
    """Classes of a step's flows at the least; the same for steps of any size between the same ranks."""
    key = ("classes", id(step.src), id(step.dst))
    if key not in setting.ways:
        many = len(step.src) > _FEW
        found = classes(setting.network, flows_of(setting, step), len(setting.ranks)) if many else 0
        setting.ways[key] = (found, step)
    return int(setting.ways[key][0])


def _run_small(
    setting: Setting, network: Network, variants: Sequence[Sequence[Flows]], ranks: int, chunks: int, active: int
) -> float:
    tasks = Tasks(network, setting.costs)
    add_chunks(tasks, variants, ranks, chunks, active)
    made = run(tasks)
    setting.count(_spent(made, sum(len(each.path) for steps in variants for each in steps)))
    return made.seconds


def _run(
    setting: Setting, variants: Sequence[Sequence[Step]], chunks: int, active: int, window_s: float = 0.0
) -> Times:
    tasks = Tasks(setting.network, setting.costs)
    add_steps(tasks, setting, variants, chunks, active)
    made = run(tasks, (), window_s)
    setting.count(_spent(made, sum(len(flows_of(setting, step).path) for steps in variants for step in steps)))
    return made


def _effort(variants: Sequence[Sequence[Flows]], chunks: int) -> float:
    """What a run may cost: its flows, each as often as it is about to be solved beside others."""
    flows = chunks * sum(len(each) * each.times for steps in variants for each in steps) / len(variants)
    phases = max(sum(each.times for each in steps) for steps in variants)
    beside = min(chunks, phases) * max(len(each) for steps in variants for each in steps)
    return flows * min(beside, _BESIDE)


def _spent(made: Times, hops: int) -> float:
    """What a run has cost, in about nanoseconds: each event looks at all that move; and making its tasks."""
    moving = float((made.finish - made.start).sum()) / made.seconds if made.seconds else 0.0
    return _MAKING + _OF_HOP * hops + _OF_TASK * len(made.start) + _OF_EVENT * made.events * moving


def add_steps(
    tasks: Tasks, setting: Setting, variants: Sequence[Sequence[Step]], chunks: int = 1, active: int = 0,
    after: Sequence[int] = (),
) -> Ids:  # fmt: skip
    """Adds all flows of all steps to a graph, the first ones after some tasks; see `add_chunks`."""
    flows = [[flows_of(setting, step) for step in steps] for steps in variants]
    return add_chunks(tasks, flows, len(setting.ranks), chunks, active, after)


def _solve(setting: Setting, step: Step) -> _Solved:
    def find() -> _Solved:
        network, flows = setting.network, flows_of(setting, step)
        shared = bool(len(flows.path) and np.bincount(flows.path).max() > 1)
        if network.whole_messages:
            hops = np.diff(flows.at)
            width = np.minimum(network.capacity_bytes_per_s[flows.path], np.repeat(flows.cap, hops))
            total = np.concatenate([[0.0], np.cumsum(np.repeat(flows.wire, hops) / width)])
            late = flows.delay + latencies(network, flows.at, flows.path)
            return _Solved(step, late, total[flows.at[1:]] - total[flows.at[:-1]], shared)
        rate = _core.max_min(network.capacity_bytes_per_s, flows.at, flows.path.astype(np.int32), flows.cap)
        return _Solved(step, flows.delay, flows.wire / rate, shared)

    made: _Solved = setting.keep("solved", step, find)
    return made


def _again(setting: Setting, step: Step, solved: Sequence[_Solved]) -> _Solved | None:
    """The same flows solved before, whatever is reduced."""
    for each in solved:
        if each.step is not step and same_flows(each.step, step):
            more_s = setting.more_s(step) - setting.more_s(each.step)
            return _Solved(step, each.delay + more_s, each.wire, each.shared)
    return None


def _together(solved: Sequence[_Solved]) -> tuple[float, str] | None:
    """Everybody is at the same moment after every step."""
    total, before = 0.0, None
    for each in solved:
        if not each.even or np.ptp(each.delay) > _SAME * (each.delay.max() + each.wire.max()):
            return None
        if before is not None and not np.isin(each.step.src, before).all():
            return None  # some begin before the step that others wait for is done
        if each.step.times > 1 and not np.isin(each.step.src, each.step.dst).all():
            return None
        before = each.step.dst
        total += each.step.times * float(each.delay.max() + each.wire.max())
    return total, LOCK_STEP


def _walk(solved: Sequence[_Solved]) -> tuple[float, str] | None:
    """One step, a permutation of the ranks, over and over; each may add its own constant (reducing)."""
    first = solved[0].step
    count = len(first.src)
    for each in solved:
        if each.shared or not each.even or not same_flows(each.step, first):
            return None
    if len(np.unique(first.src)) != count or not np.array_equal(np.sort(first.src), np.sort(first.dst)):
        return None
    position = np.empty(int(first.src.max()) + 1, np.int64)
    position[first.src] = np.arange(count)
    onward = position[first.dst]
    late = np.zeros(count)
    at = np.arange(count)
    for each in solved:  # sums along the walk, by doubling its length
        jump, gain, left = onward.copy(), each.delay.copy(), each.step.times
        while left:
            if left & 1:
                late, at = late + gain[at], jump[at]
            gain, jump, left = gain + gain[jump], jump[jump], left >> 1
    wire = sum(each.step.times * float(each.wire.max()) for each in solved)
    return wire + float(late.max()), WALK


def _drifting(setting: Setting, solved: Sequence[_Solved]) -> float:
    """Each flow takes what it takes in its step alone; a rank sends when it has received, one after the other.

    Of a step that is done more often than can be followed, the rest goes on as its second half went.
    """
    count = 1 + max(int(max(each.step.src.max(), each.step.dst.max())) for each in solved)
    ready, free, last = np.zeros(count), np.zeros(count), 0.0
    alone: list[tuple[Step, Values]] = []
    for each in solved:
        src, dst = each.step.src, each.step.dst
        wire = next((wire for step, wire in alone if same_flows(step, each.step)), None)
        if wire is None:
            wire = each.wire if each.even or not each.shared else _alone(setting, each.step)
            alone.append((each.step, wire))
        single = len(np.unique(src)) == len(src)  # else its flows share what leaves a rank already
        received = np.zeros(count, bool)
        received[dst] = True
        most = max(2, int(_MOST_FOLLOWED / len(src)))
        half = 0.0
        for turn in range(min(each.step.times, most)):
            start = np.maximum(ready[src], free[src]) if single else ready[src]
            free[src] = start + wire
            arrive = start + each.delay + wire
            np.maximum.at(ready, dst, arrive)
            np.maximum.at(ready, src[~received[src]], arrive[~received[src]])
            last = max(last, float(arrive.max()))
            half = last if turn == most // 2 else half
        if each.step.times > most:
            more = (each.step.times - most) * (last - half) / (most - 1 - most // 2)
            ready, free, last = ready + more, free + more, last + more
    return last


def _alone(setting: Setting, step: Step) -> Values:
    """Seconds on the wires of each flow of a step: those that end give their share to others, unless they are many."""
    if len(step.src) >= _MANY:
        return at_most(setting, step)
    one = at_once(step)
    return np.asarray(_run(setting, [[one]], 1, 0).finish - flows_of(setting, one).delay)


def _window(setting: Setting, steps: Sequence[Step]) -> float:
    """Flows by the ten thousand end in batches, of a five-hundredth of what the slowest would take at first."""
    largest = max(steps, key=lambda step: len(step.src))
    if len(largest.src) < _MANY or setting.network.whole_messages:
        return 0.0
    return float(_solve(setting, largest).wire.max()) / 500
