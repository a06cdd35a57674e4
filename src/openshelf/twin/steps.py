"""How long steps take: by the full graph of their flows, or by solving each different step once.

Solving once is right where ranks stay together. If all flows of a step take as long on the wires and have the same
delay, every rank is at the same moment after it, and the next step finds what this one found: times are sums. If only
delays differ, and no two flows of the one repeated step share a resource, a rank is late by the delays that its bytes
met on their way: since all flows take as long on the wires, one that starts behind another on a resource never catches
up with it, so nothing is shared, and the time is that of the slowest walk along the steps. All else is run as a graph,
unless that is too large: then every flow takes what it takes in its step alone, though ranks drift apart and meet flows
of other steps, and the result says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from openshelf import _core
from openshelf.fabric import Ids, Network, Values
from openshelf.twin.algorithms import Step
from openshelf.twin.costs import Costs, latencies, priced
from openshelf.twin.tasks import Tasks, run

LOCK_STEP = "steps solved once: all ranks in step"
WALK = "steps solved once: nothing shared, ranks late by their delays"
GRAPH = "every flow"
DRIFTING = "flows as long as in their step alone: approximate"
_SAME = 1e-9
_MOST_WORK = 6e8  # flows times flows of a step, of a graph that is run without being asked for
_MOST_FOLLOWED = 2e7  # flows of one repeated step that are followed in that case
_MANY = 20_000  # flows of one step, from which on their ends are handled in batches


@dataclass(frozen=True)
class Setting:
    """What steps run on: rank i is endpoint ranks[i]; what arrives is reduced at so many bytes per second."""

    network: Network
    ranks: Ids
    costs: Costs
    reduce_bytes_per_s: float
    salt: int

    def more_s(self, step: Step) -> float:
        return step.nbytes / self.reduce_bytes_per_s if step.reduces else 0.0


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
    if how != "graph":
        solved: list[_Solved] = []
        for step in steps:
            solved.append(_again(setting, step, solved) or _solve(setting, step))
        stored = setting.network.whole_messages and any(each.shared for each in solved)  # messages queue there
        found = None if stored else _together(solved) or _walk(solved)
        if found:
            return found
        work = sum(step.flows for step in steps) * max(len(step.src) for step in steps)
        if how == "steps" or (work > _MOST_WORK and sum(step.times for step in steps) > 1):
            return _drifting(setting, solved), DRIFTING
    window = _window(setting, steps)
    return run(graph_of(setting, steps), (), window).seconds, GRAPH


def carried_by(setting: Setting, steps: Sequence[Step]) -> Values:
    """Wire bytes over each resource."""
    total = np.zeros(setting.network.resources)
    for step in steps:
        at, path, _, wire, _ = _flows(setting, step)
        total += np.bincount(path, np.repeat(wire * step.times, np.diff(at)), minlength=len(total))
    return total


def least_of(setting: Setting, steps: Sequence[Step], parts: int) -> float:
    """Seconds of so many parts at the least: what the busiest resource carries, or one part's delays in a row."""
    late = sum(step.times * float(_flows(setting, step)[2].min()) for step in steps)
    busiest = float((carried_by(setting, steps) / setting.network.capacity_bytes_per_s).max())
    return max(late, parts * busiest)


def graph_of(setting: Setting, steps: Sequence[Step], chunks: int = 1) -> Tasks:
    """All flows of all steps; see `add_steps`."""
    tasks = Tasks(setting.network, setting.costs)
    add_steps(tasks, setting, steps, chunks)
    return tasks


def add_steps(tasks: Tasks, setting: Setting, steps: Sequence[Step], chunks: int = 1, after: Sequence[int] = ()) -> Ids:
    """Adds all flows of all steps, the first ones after some tasks; gives the flows of the last chunk.

    What a rank sends to the same other goes in order, one message at a time on the wires; so do chunks, one behind the
    other. Latencies are not in the way: a message may leave while the one before it is still arriving.
    """
    count = int(setting.ranks.max()) + 1 if len(setting.ranks) else 0
    made: list[Ids] = []
    ways = np.unique(np.concatenate([step.src * count + step.dst for step in steps]))
    connections = tasks.new_connections(len(ways))
    for _ in range(chunks):
        # By rank: the flows it waits for, as (rank, task) pairs of the last step in which it took part.
        ranks = np.repeat(setting.ranks, len(after))
        waited = np.tile(np.array(after, np.int64), len(setting.ranks))
        made = []
        for step in steps:
            src, dst = setting.ranks[step.src], setting.ranks[step.dst]
            connection = connections + np.searchsorted(ways, step.src * count + step.dst)
            for _ in range(step.times):
                first = tasks.flows(src, dst, step.nbytes, setting.salt, setting.more_s(step), connection)
                own = first + np.arange(len(src), dtype=np.int64)
                tasks.link(*_matches(ranks, waited, src, own, count))
                ranks, waited = _latest(ranks, waited, src, dst, own, count)
                made.append(own)
    return np.concatenate(made)


def _matches(ranks: Ids, waited: Ids, src: Ids, own: Ids, count: int) -> tuple[Ids, Ids]:
    """(before, after): each flow waits for all that its source waits for."""
    order = np.argsort(ranks, kind="stable")
    ends = np.cumsum(np.bincount(ranks, minlength=count))
    begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    many = (ends - begins)[src].astype(np.int64)
    shift = np.arange(int(many.sum()), dtype=np.int64) - np.repeat(np.cumsum(many) - many, many)
    return waited[order][np.repeat(begins[src], many) + shift], np.repeat(own, many)


def _latest(ranks: Ids, waited: Ids, src: Ids, dst: Ids, own: Ids, count: int) -> tuple[Ids, Ids]:
    """A rank that received waits for what came; one that only sent, for that; others for what they waited for."""
    received, sent = np.zeros(count, bool), np.zeros(count, bool)
    received[dst], sent[src] = True, True
    only_sent = sent[src] & ~received[src]
    stays = ~(received | sent)[ranks]
    return (
        np.concatenate([ranks[stays], dst, src[only_sent]]),
        np.concatenate([waited[stays], own, own[only_sent]]),
    )


def _solve(setting: Setting, step: Step) -> _Solved:
    network = setting.network
    at, path, before, wire, caps = _flows(setting, step)
    before = before + setting.more_s(step)
    shared = bool(len(path) and np.bincount(path).max() > 1)
    if network.whole_messages:
        hops = np.diff(at)
        each = np.repeat(wire, hops) / np.minimum(network.capacity_bytes_per_s[path], np.repeat(caps, hops))
        total = np.concatenate([[0.0], np.cumsum(each)])
        return _Solved(step, before + latencies(network, at, path), total[at[1:]] - total[at[:-1]], shared)
    rate = _core.max_min(network.capacity_bytes_per_s, at, path.astype(np.int32), caps)
    return _Solved(step, before, wire / rate, shared)


def _flows(setting: Setting, step: Step) -> tuple[Ids, Ids, Values, Values, Values]:
    """Paths, seconds before the first byte, wire bytes and rate caps of a step's flows."""
    src, dst = setting.ranks[step.src], setting.ranks[step.dst]
    at, path = setting.network.paths(src, dst, setting.salt)
    size = np.full(len(src), step.nbytes)
    return at, path, *priced(setting.costs, setting.network, src, dst, size, at, path)


def _again(setting: Setting, step: Step, solved: Sequence[_Solved]) -> _Solved | None:
    """The same flows solved before, whatever is reduced."""
    for each in solved:
        if _same_flows(each.step, step):
            more_s = setting.more_s(step) - setting.more_s(each.step)
            return _Solved(step, each.delay + more_s, each.wire, each.shared)
    return None


def _same_flows(one: Step, other: Step) -> bool:
    return one.nbytes == other.nbytes and np.array_equal(one.src, other.src) and np.array_equal(one.dst, other.dst)


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
        if each.shared or not each.even or not _same_flows(each.step, first):
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
        wire = next((wire for step, wire in alone if _same_flows(step, each.step)), None)
        if wire is None:
            wire = each.wire if each.even or not each.shared else _alone(setting, each)
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
            ready[received] = 0.0
            np.maximum.at(ready, dst, arrive)
            ready[src[~received[src]]] = arrive[~received[src]]
            last = max(last, float(arrive.max()))
            half = last if turn == most // 2 else half
        if each.step.times > most:
            more = (each.step.times - most) * (last - half) / (most - 1 - most // 2)
            ready, free, last = ready + more, free + more, last + more
    return last


def _alone(setting: Setting, solved: _Solved) -> Values:
    """Seconds on the wires of each flow of a step: those that end give their share to others."""
    one = replace(solved.step, times=1)
    found = run(graph_of(setting, [one]), (), _window(setting, [one]))
    return np.asarray(found.finish - solved.delay)


def _window(setting: Setting, steps: Sequence[Step]) -> float:
    """Flows by the ten thousand end in batches, of a five-hundredth of what the slowest would take at first."""
    largest = max(steps, key=lambda step: len(step.src))
    if len(largest.src) < _MANY or setting.network.whole_messages:
        return 0.0
    return float(_solve(setting, largest).wire.max()) / 500
