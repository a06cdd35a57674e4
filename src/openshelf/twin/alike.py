"""Flows that cannot differ, simulated once: the classes of an equitable partition.

Two ranks are alike if what they send and receive in every step is alike; two flows, if their ranks, their figures and
the resources that they cross are; two resources, if the flows that cross them are. Colours are refined until they split
nothing any more (colour refinement; Weisfeiler and Leman, 1968). All flows of a class then begin, run and end together,
since nothing that decides their rates tells them apart. So one flow of each class is simulated. It counts at a resource
as often as flows of its class cross one resource of that class. An all-reduce among 1,024 ranks in two dimensions has a
million flows for each chunk and a hundred classes.

Where hashes make ways unequal nothing is alike. `coarse` then takes every rank for any, and every resource for the
busiest of its role: an approximation, which errs on the slow side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from openshelf.fabric import Ids, Network, Values
from openshelf.twin.flows import Flows

_ROUNDS, _MOST_ROUNDS = 80, 600  # and times the steps: what takes longer has few alike
_GLANCE = 3  # rounds in which most classes of one step show
_Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Alike:
    """The flows of one representative for each class, on a network of one resource for each class."""

    network: Network
    variants: list[list[Flows]]
    ranks: int


@dataclass(frozen=True)
class _Step:
    """One flow of each class of a step, which class each flow is of, and the flows of the representatives."""

    one: Ids
    which: Ids
    flows: Flows


@dataclass(frozen=True)
class Classes:
    """Classes of the flows of steps, with the network of one resource for each class."""

    network: Network
    steps: tuple[_Step, ...]
    ranks: int

    def of(self, variants: Sequence[Sequence[Flows]]) -> Alike | None:
        """The classes with the figures of other flows between the same ranks; None where these differ in a class."""
        own, made = iter(self.steps), []
        for steps in variants:
            made.append([_like(next(own), flows) for flows in steps])
        if any(each is None for steps in made for each in steps):
            return None
        return Alike(self.network, [[each for each in steps if each is not None] for steps in made], self.ranks)


def _like(step: _Step, flows: Flows) -> Flows | None:
    few = {}
    for name in ("delay", "wire", "cap"):
        values = getattr(flows, name)
        few[name] = values[step.one]
        if (_word(few[name])[step.which] != _word(values)).any():
            return None
    return replace(step.flows, times=flows.times, phase=flows.phase, **few)


def alike(network: Network, variants: Sequence[Sequence[Flows]], ranks: int) -> Classes | None:
    """The classes of flows; None if they are not at most half as many as the flows."""
    steps = [flows for steps in variants for flows in steps]
    found = _Refined(network, steps, ranks)
    total = sum(len(flows) for flows in steps)
    before = 0
    for _ in range(min(_ROUNDS, max(4, _MOST_ROUNDS // len(steps)))):
        count = found.refine()
        if 2 * found.flow_classes > total:
            return None
        if count == before:
            return _quotient(network, steps, found)
        before = count
    return None


def classes(network: Network, flows: Flows, ranks: int) -> int:
    """Classes of a step's flows, at the least: beside other steps there may be more."""
    found = _Refined(network, [flows], ranks)
    for _ in range(_GLANCE):
        found.refine()
    return found.flow_classes


class _Refined:
    """Colours of ranks, resources, connections and flows, as 64-bit hashes."""

    def __init__(self, network: Network, steps: Sequence[Flows], ranks: int) -> None:
        self.steps = steps
        used = np.unique(np.concatenate([flows.path for flows in steps]))
        place = np.zeros(network.resources, np.int64)
        place[used] = np.arange(len(used))
        self.used = used
        self.path = [place[flows.path] for flows in steps]
        ways = [flows.src * ranks + flows.dst for flows in steps]
        known = np.unique(np.concatenate(ways))
        self.way = [np.searchsorted(known, each) for each in ways]
        self.rank = np.zeros(ranks, np.uint64)
        self.resource = _word(network.capacity_bytes_per_s[used])
        self.connection = np.zeros(len(known), np.uint64)
        self.own = [
            _mix(_word(flows.delay) + _mix(_word(flows.wire) + _mix(_word(flows.cap) + np.uint64(i))))
            for i, flows in enumerate(steps)
        ]
        self.flow: list[_Words] = []
        self.flow_classes = 0
        self.by_src = [_Rows(flows.src) for flows in steps]
        self.by_dst = [_Rows(flows.dst) for flows in steps]
        self.by_way = [_Rows(each) for each in self.way]
        self.by_resource = [_Rows(each) for each in self.path]

    def refine(self) -> int:
        """One round; gives the number of classes of everything."""
        self.flow = []
        for i, flows in enumerate(self.steps):
            word = self.own[i] + _mix(self.rank[flows.src] + np.uint64(1)) + _mix(self.rank[flows.dst] + np.uint64(2))
            word += _mix(self.connection[self.way[i]])
            crossed = _mix(self.resource[self.path[i]])
            total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(crossed, dtype=np.uint64)])
            word += total[flows.at[1:]] - total[flows.at[:-1]]
            self.flow.append(_mix(word))
        rank, resource, connection = self.rank, self.resource, self.connection
        for i, flows in enumerate(self.steps):
            word = self.flow[i]
            rank = self.by_src[i].added(rank, _mix(word + np.uint64(3)))
            rank = self.by_dst[i].added(rank, _mix(word + np.uint64(4)))
            resource = self.by_resource[i].added(resource, _mix(np.repeat(word, np.diff(flows.at))))
            connection = self.by_way[i].added(connection, _mix(word + np.uint64(5)))
        self.rank, self.resource, self.connection = _mix(rank), _mix(resource), _mix(connection)
        self.flow_classes = sum(_different(word) for word in self.flow)
        return self.flow_classes + sum(_different(each) for each in (self.rank, self.resource, self.connection))


def _quotient(network: Network, steps: Sequence[Flows], found: _Refined) -> Classes:
    ids = [np.unique(each, return_index=True, return_inverse=True) for each in (found.rank, found.resource)]
    rank_of, resource_of = ids[0][2].ravel(), ids[1][2].ravel()
    members = np.bincount(resource_of)  # resources of each class
    first = found.used[ids[1][1]]
    small = _network(network, network.capacity_bytes_per_s[first], network.latency_s[first], network.role[first])
    _, way_of = np.unique(found.connection, return_inverse=True)
    made = []
    for at, flows in enumerate(steps):
        _, one, which, counts = np.unique(found.flow[at], return_index=True, return_inverse=True, return_counts=True)
        path, weight, hops = [], [], []
        for number, count in zip(one.tolist(), counts.tolist(), strict=True):
            crossed = resource_of[found.path[at][flows.at[number] : flows.at[number + 1]]]
            classes, often = np.unique(crossed, return_counts=True)
            path.append(classes)
            weight.append(often * count / members[classes])
            hops.append(len(classes))
        few = replace(
            flows, src=rank_of[flows.src[one]], dst=rank_of[flows.dst[one]], rank=flows.rank[one],
            at=np.concatenate([[0], np.cumsum(hops)]).astype(np.int64), path=np.concatenate(path),
            weight=np.concatenate(weight).astype(np.float64), delay=flows.delay[one], wire=flows.wire[one],
            cap=flows.cap[one], way=way_of.ravel()[found.way[at][one]],
        )  # fmt: skip
        made.append(_Step(one, which.ravel(), few))
    return Classes(small, tuple(made), len(ids[0][0]))


def coarse(network: Network, variants: Sequence[Sequence[Flows]]) -> Alike:
    """Every rank is as any other, and every resource as busy as the busiest of its role that the same steps use."""
    steps = [flows for steps in variants for flows in steps]
    kind = _mix(network.role.astype(np.uint64))
    with np.errstate(over="ignore"):
        for number, flows in enumerate(steps):
            used = np.unique(flows.path)
            kind[used] += _mix(np.array([number + 1], np.uint64))
    _, kind_of = np.unique(kind, return_inverse=True)
    kinds = int(kind_of.max()) + 1
    width = np.full(kinds, np.inf)
    np.minimum.at(width, kind_of, network.capacity_bytes_per_s)
    small = _network(network, width, np.zeros(kinds), np.zeros(kinds, np.int16))
    none = np.zeros(1, np.int64)

    def one(flows: Flows) -> Flows:
        # How long each resource is busy with the step, for each byte of it: the most of each kind counts.
        wire = float(flows.wire.max())
        sent = np.bincount(flows.path, np.repeat(flows.wire, np.diff(flows.at)), minlength=network.resources)
        busy = sent.astype(np.float64) / (network.capacity_bytes_per_s * (wire or 1.0))
        most = np.zeros(kinds)
        np.maximum.at(most, kind_of, busy)
        path = np.flatnonzero(most)
        return replace(
            flows, src=none, dst=none, rank=flows.rank[:1], at=np.array([0, len(path)]), path=path,
            weight=most[path] * width[path], delay=np.array([flows.delay.max()]), wire=np.array([wire]),
            cap=np.array([flows.cap.min()]), way=_same_way(flows),
        )  # fmt: skip

    return Alike(small, [[one(flows) for flows in steps] for steps in variants], 1)


def _same_way(flows: Flows) -> Ids:
    """One number for the connections of a step: those of steps with the same ones are shared."""
    words = _mix(flows.src.astype(np.uint64) * np.uint64(1 << 32) + flows.dst.astype(np.uint64))
    return np.array([int(words.sum(dtype=np.uint64)) >> 2], np.int64)


def _network(network: Network, capacity: Values, latency_s: Values, role: NDArray[np.int16]) -> Network:
    return replace(network, capacity_bytes_per_s=capacity, latency_s=latency_s, role=role)


class _Rows:
    """Which row each of some words is added to; sums do not depend on their order."""

    def __init__(self, rows: Ids) -> None:
        self._order = np.argsort(rows, kind="stable")
        ordered = rows[self._order]
        self._begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        self._rows = ordered[self._begins]

    def added(self, to: _Words, words: _Words) -> _Words:
        made = to.copy()
        made[self._rows] += np.add.reduceat(words[self._order], self._begins)
        return made


def _different(words: _Words) -> int:
    ordered = np.sort(words)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + min(1, len(words))


def _mix(word: _Words) -> _Words:
    """splitmix64's finisher."""
    with np.errstate(over="ignore"):
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(word ^ (word >> np.uint64(31)) ^ np.uint64(0x9E3779B97F4A7C15))


def _word(values: Values) -> _Words:
    """A number as a word; what differs in the last bits only is equal."""
    part, power = np.frexp(np.where(np.isfinite(values), values, -1.0))
    return np.asarray(
        np.round(part * 2.0**36).astype(np.int64).astype(np.uint64) ^ (power.astype(np.uint64) << np.uint64(48))
    )
