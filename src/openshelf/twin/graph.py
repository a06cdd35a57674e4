"""Steps as a task graph: every flow of every chunk, or one for all that are equal.

A chunk's tasks are made once and repeated, and so is a step that is done many times over: a graph of a million flows is
made by as many operations as a chunk has different steps.

A rank sends when all that it received in the steps before has arrived, and not only in the last one: of uneven ways the
first one's may be the slowest. What comes over the same connection comes in order, so the last of it is waited for.
Where many flows of a rank wait for many, one task of no time stands between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from openshelf.fabric import Ids
from openshelf.twin.flows import Flows
from openshelf.twin.tasks import Tasks

_Waits = tuple[Ids, Ids, Ids]
"""(ranks, tasks, ways): each rank waits for the task beside it, and may be there several times; a connection, or -1."""


_MOST_MARKED = 1 << 24  # connections that are marked in an array instead of sorted


@dataclass
class _Chunk:
    """The tasks of one chunk, numbered from 0: task after[i] waits for before[i]."""

    flows: list[Flows]
    before: Ids
    after: Ids
    first: Ids
    """Flows that wait for no other of the chunk."""
    begins: dict[int, _Waits]
    """By phase: the first flows of each rank."""
    ends: dict[int, _Waits]
    """By phase: what each rank has to wait for when it is through."""
    count: int


def add_chunks(
    tasks: Tasks, variants: Sequence[Sequence[Flows]], ranks: int, chunks: int = 1, active: int = 0,
    after: Sequence[int] = (),
) -> Ids:  # fmt: skip
    """Adds so many chunks of steps; gives the last ones' flows. Chunk i goes as variant i modulo their number does.

    What a rank sends to the same other goes in order, one message at a time on the wires; so do chunks, one behind the
    other. Latencies are not in the way: a message may leave while the one before it is still arriving. With `active`,
    a chunk enters a phase only when the one so many before it is through with that phase.
    """
    ways = _ways(variants, ranks)
    connections = tasks.new_connections(len(ways))
    made = [_chunk(steps, ranks) for steps in variants]
    turns, start = -(-chunks // len(made)), tasks.count
    each = sum(one.count for one in made)  # tasks of one chunk of every variant
    every = [flows for one in made for flows in one.flows]
    lanes = [_lanes(flows, connections, ways, ranks) for flows in every]
    tasks.repeat(every, lanes, turns)
    turn, base = np.arange(turns, dtype=np.int64)[:, None] * each + start, 0
    bases = []
    for one in made:
        tasks.link((one.before + base + turn).ravel(), (one.after + base + turn).ravel())
        first = (one.first + base + turn).ravel()
        tasks.link(np.tile(np.asarray(after, np.int64), len(first)), np.repeat(first, len(after)))
        bases.append(base)
        base += one.count
    for number in range(active, turns * len(made)) if active else ():
        one, other = made[number % len(made)], made[(number - active) % len(made)]
        own = start + number // len(made) * each + bases[number % len(made)]
        held = start + (number - active) // len(made) * each + bases[(number - active) % len(made)]
        for phase, (who, flow, _) in one.begins.items():
            if phase in other.ends:
                ranked, waited, _ = other.ends[phase]
                tasks.link(*_matches(ranked, waited + held, who, flow + own, ranks))
    return np.arange(tasks.count - each, tasks.count, dtype=np.int64)


def _way(flows: Flows, ranks: int) -> Ids:
    return flows.src * ranks + flows.dst if flows.way is None else flows.way


def _lanes(flows: Flows, first: int, ways: Ids, ranks: int) -> Ids:
    """The connection of each flow; what no bytes go with has none."""
    if not len(flows.path):
        return np.full(len(flows), -1, np.int64)
    return first + np.searchsorted(ways, _way(flows, ranks))


def _ways(variants: Sequence[Sequence[Flows]], ranks: int) -> Ids:
    every = [_way(each, ranks) for steps in variants for each in steps]
    most = max((int(each.max()) for each in every if len(each)), default=0)
    if most > _MOST_MARKED:
        return np.unique(np.concatenate(every))
    there = np.zeros(most + 1, bool)  # several times as fast as sorting them
    for each in every:
        there[each] = True
    return np.flatnonzero(there)


def _chunk(steps: Sequence[Flows], ranks: int) -> _Chunk:
    nobody = np.empty(0, np.int64)
    waits: _Waits = (nobody, nobody, nobody)
    links: list[tuple[Ids, Ids]] = []
    free: list[Ids] = []
    begins: dict[int, _Waits] = {}
    ends: dict[int, _Waits] = {}
    made: list[Flows] = []
    count = 0
    for flows in steps:
        joined = _joined(waits, flows, ranks)
        if len(joined):
            own = count + np.arange(len(joined), dtype=np.int64)
            links.append(_matches(waits[0], waits[1], joined, own, ranks))
            waits = _after(waits, joined, (joined, own, np.full(len(own), -1, np.int64)), ranks)
            made.append(_no_bytes(flows, joined))
            count += len(own)
        own = count + np.arange(len(flows), dtype=np.int64)
        links.append(_matches(waits[0], waits[1], flows.src, own, ranks))
        alone = np.ones(len(flows), bool)
        alone[links[-1][1] - count] = False
        free.append(own[alone])
        begins[flows.phase] = _new(begins.get(flows.phase, (nobody, nobody, nobody)), flows.src, own)
        waits = _latest(waits, flows, own, ranks)
        if flows.times > 1:
            turn = np.arange(1, flows.times, dtype=np.int64)[:, None] * len(flows)
            before, after = _matches(waits[0], waits[1], flows.src, own, ranks)
            again = np.where(before >= count, turn - len(flows), 0)  # what came before is waited for in every turn
            links.append(((before + again).ravel(), (after + turn).ravel()))
            moved = np.where(waits[1] >= count, (flows.times - 1) * len(flows), 0)
            waits = waits[0], waits[1] + moved, waits[2]
        made.append(flows)
        count += flows.times * len(flows)
        ends[flows.phase] = waits
    before, after = (np.concatenate([pair[i] for pair in links]) for i in (0, 1))
    return _Chunk(made, before, after, np.concatenate(free), begins, ends, count)


def _joined(waits: _Waits, flows: Flows, ranks: int) -> Ids:
    """The ranks for which a task between what they wait for and what they send saves links."""
    waited, sent = np.bincount(waits[0], minlength=ranks), np.bincount(flows.src, minlength=ranks)
    every = waited * sent * min(flows.times, 2)
    return np.flatnonzero(every > waited + sent + 1)


def _no_bytes(flows: Flows, ranks: Ids) -> Flows:
    """A task of no time for each of some ranks."""
    none, zero = np.empty(0, np.int64), np.zeros(len(ranks))
    endpoints = np.zeros(int(flows.src.max()) + 1, np.int64)
    endpoints[flows.src] = flows.rank
    endpoint = endpoints[ranks]
    return replace(
        flows, src=ranks, dst=ranks, rank=endpoint, at=np.zeros(len(ranks) + 1, np.int64), path=none, delay=zero,
        wire=zero, cap=np.full(len(ranks), np.inf), times=1, weight=None if flows.weight is None else np.empty(0),
        way=None, to=None if flows.to is None else endpoint,
    )  # fmt: skip


def _new(begins: _Waits, src: Ids, own: Ids) -> _Waits:
    """The first flows of ranks that had none in the phase so far are added."""
    more = ~np.isin(src, begins[0])
    made = np.concatenate([begins[0], src[more]]), np.concatenate([begins[1], own[more]])
    return *made, np.full(len(made[0]), -1, np.int64)


def _matches(ranks: Ids, waited: Ids, src: Ids, own: Ids, count: int) -> tuple[Ids, Ids]:
    """(before, after): each flow waits for all that its source waits for."""
    order = np.argsort(ranks, kind="stable")
    ends = np.cumsum(np.bincount(ranks, minlength=count))
    begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    many = (ends - begins)[src].astype(np.int64)
    shift = np.arange(int(many.sum()), dtype=np.int64) - np.repeat(np.cumsum(many) - many, many)
    return waited[order][np.repeat(begins[src], many) + shift], np.repeat(own, many)


def _latest(waits: _Waits, flows: Flows, own: Ids, ranks: int) -> _Waits:
    """A rank that received waits for what came, too; one that only sent, for that, which waited for all before."""
    received, sent = np.zeros(ranks, bool), np.zeros(ranks, bool)
    received[flows.dst], sent[flows.src] = True, True
    only_sent, way = ~received[flows.src], _way(flows, ranks)
    more = (
        np.concatenate([flows.dst, flows.src[only_sent]]),
        np.concatenate([own, own[only_sent]]),
        np.concatenate([way, np.full(int(only_sent.sum()), -1, np.int64)]),
    )
    return _after(waits, np.flatnonzero(sent & ~received), more, ranks)


def _after(waits: _Waits, done: Ids, more: _Waits, ranks: int) -> _Waits:
    """More to wait for: instead of all that some ranks waited for, and of what came the same way before."""
    gone = np.zeros(ranks, bool)
    gone[done] = True
    stays = ~gone[waits[0]]
    stays[stays] = ~np.isin(waits[2][stays], more[2][more[2] >= 0])
    first, second, third = (np.concatenate([old[stays], new]) for old, new in zip(waits, more, strict=True))
    return first, second, third
