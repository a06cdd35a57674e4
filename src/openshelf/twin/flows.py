"""What a step's flows cross and cost: paths, delays, wire bytes, caps; found once for each step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from openshelf.fabric import Ids, Network, Values
from openshelf.twin.algorithms import Step
from openshelf.twin.costs import Costs, latencies, priced

_FEW_KINDS = 12  # ways of a step, up to which they are told apart one by one
_MOST_BY_ONE = 20_000  # flows of a step, from which on those of one rank stand for all


@dataclass(frozen=True)
class Setting:
    """What steps run on: rank i is endpoint ranks[i]; what arrives is reduced at so many bytes per second."""

    network: Network
    ranks: Ids
    costs: Costs
    reduce_bytes_per_s: float
    salt: int
    kept: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """What was found of steps, by what and which."""
    peer_s: float = 0.0
    """What each further peer of a rank adds to a step."""
    ways: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """What was found of steps that depends on their ranks alone: settings that differ in costs may share it."""

    @property
    def effort(self) -> float:
        """What was simulated in this setting: flows, each as often as it was solved beside others."""
        return float(self.kept.get("effort", 0.0))

    def count(self, effort: float) -> None:
        self.kept["effort"] = self.effort + effort

    def more_s(self, step: Step) -> float:
        more_s = step.late_s + (step.nbytes / self.reduce_bytes_per_s if step.reduces else 0.0)
        if not self.peer_s:
            return more_s
        peers = self.keep("peers", step, lambda: int(np.bincount(step.src).max()))
        return float(more_s + (peers - 1) * self.peer_s)

    def keep(self, what: str, step: Step, find: Any) -> Any:
        """What `find` gives for a step, asked once."""
        key = (what, id(step))
        if key not in self.kept:
            self.kept[key] = (find(), step)  # the step is kept, or its id could be another's
        return self.kept[key][0]


@dataclass(frozen=True)
class Flows:
    """A step's flows: flow i, of endpoint rank[i], crosses path[at[i]:at[i + 1]], counted there `weight` times."""

    src: Ids
    dst: Ids
    rank: Ids
    at: Ids
    path: Ids
    delay: Values
    wire: Values
    cap: Values
    times: int
    phase: int
    weight: Values | None = None
    way: Ids | None = None
    """Which connection each is of, if not that from src to dst."""
    to: Ids | None = None
    """The endpoint of the target, where the path is that of a network's."""
    salt: int = 0

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True)
class Ways:
    """The paths of a step's flows, whatever their size: `kind` says which have the same roles and latency."""

    at: Ids
    path: Ids
    kind: Ids
    first: Ids
    """One flow of each kind."""
    full: tuple[Ids, Ids] | None = None
    """The whole paths, where only a half is used."""


def ways_of(setting: Setting, step: Step) -> Ways:
    """The ways of a step; found once for all steps between the same ranks."""
    key = ("ways", id(step.src), id(step.dst), id(step.over), step.inside)
    if key not in setting.ways:
        if step.over is None:
            at, path = setting.network.paths(setting.ranks[step.src], setting.ranks[step.dst], setting.salt)
        else:
            at, path = _joined(*(_leg(setting, *ends) for ends in ((step.src, step.over), (step.over, step.dst))))
        kind, first = _kinds(setting.network, at, path)
        made = Ways(at, path, kind, first)
        if step.inside in ("up", "down"):
            made = Ways(*_half(at, path, step.inside == "up"), kind, first, (at, path))
        setting.ways[key] = (made, step)
    found: Ways = setting.ways[key][0]
    return found


def _leg(setting: Setting, src: Ids, dst: Ids) -> tuple[Ids, Ids]:
    return setting.network.paths(setting.ranks[src], setting.ranks[dst], setting.salt)


def _joined(first: tuple[Ids, Ids], second: tuple[Ids, Ids]) -> tuple[Ids, Ids]:
    """Each path of the first, and then that of the second."""
    row = np.concatenate([np.repeat(np.arange(len(at) - 1), np.diff(at)) for at, _ in (first, second)])
    order = np.argsort(row, kind="stable")
    return first[0] + second[0], np.concatenate([first[1], second[1]])[order]


def _relayed(setting: Setting, step: Step) -> Flows:
    """Flows by way of other ranks: both ways' costs before the first byte, and the first one's bytes."""
    assert step.over is not None
    ways, src, dst, over = ways_of(setting, step), *(setting.ranks[ids] for ids in (step.src, step.dst, step.over))
    late, wire, cap = np.zeros(len(src)), np.zeros(len(src)), np.full(len(src), np.inf)
    for number, (here, there) in enumerate(((src, over), (over, dst))):
        at, path = setting.network.paths(here, there, setting.salt)
        size = np.full(len(src), step.nbytes)
        before, own, most = priced(setting.costs, setting.network, here, there, size, at, path)
        moved = here != there
        late += np.where(moved, before, 0.0)
        if number == 0:  # taken in whole
            width = np.full(len(src), np.inf)
            np.minimum.at(
                width, np.repeat(np.arange(len(src)), np.diff(at)), setting.network.capacity_bytes_per_s[path]
            )
            late += np.where(moved & (over != dst), own / np.minimum(width, most), 0.0)
        wire = np.maximum(wire, np.where(moved, own, 0.0))
        cap = np.minimum(cap, np.where(moved, most, np.inf))
    late += setting.more_s(step)
    return Flows(step.src, step.dst, src, ways.at, ways.path, late, wire, cap, step.times, step.phase)


def _kinds(network: Network, at: Ids, path: Ids) -> tuple[Ids, Ids]:
    """Which flows cross the same roles in the same time, and one of each."""
    count = len(at) - 1
    if not len(path):
        return np.zeros(count, np.int64), np.zeros(min(1, count), np.int64)
    word = np.left_shift(np.int64(1), network.role.astype(np.int64))[path]
    total = np.concatenate([[0], np.cumsum(word)])  # sums of roles tell more than which there are
    late = np.round(latencies(network, at, path) * 1e15).astype(np.int64)
    return _different((total[at[1:]] - total[at[:-1]]) * 1_000_003 + late)


def _different(words: Ids) -> tuple[Ids, Ids]:
    """Which of the different words each is, and where each of them is first; mostly there are few."""
    kind, left = np.full(len(words), -1, np.int64), np.arange(len(words))
    first: list[int] = []
    while len(left) and len(first) < _FEW_KINDS:
        same = words[left] == words[left[0]]
        kind[left[same]] = len(first)
        first.append(int(left[0]))
        left = left[~same]
    if not len(left):
        return kind, np.array(first, np.int64)
    _, some, which = np.unique(words, return_index=True, return_inverse=True)
    return which.ravel(), some


def flows_of(setting: Setting, step: Step) -> Flows:
    """The flows of a step, with what reducing adds to their delays."""

    def find() -> Flows:
        if step.over is not None:
            return _relayed(setting, step)
        ways, src, dst = ways_of(setting, step), setting.ranks[step.src], setting.ranks[step.dst]
        at, path = ways.full or (ways.at, ways.path)
        hops = np.diff(at)[ways.first]
        own_at = np.concatenate([[0], np.cumsum(hops)])
        own = path[np.repeat(at[:-1][ways.first], hops) + np.arange(own_at[-1]) - np.repeat(own_at[:-1], hops)]
        size = np.full(len(ways.first), step.nbytes)
        found = priced(setting.costs, setting.network, src[ways.first], dst[ways.first], size, own_at, own)
        before, wire, cap = (each[ways.kind] for each in found)
        late = before + setting.more_s(step)
        made = (step.src, step.dst, src, ways.at, ways.path, late, wire, cap, step.times, step.phase)
        return Flows(*made, to=None if step.inside else dst, salt=setting.salt)

    made: Flows = setting.keep("flows", step, find)
    return made


def from_one(setting: Setting, step: Step) -> Flows | None:
    """Of a step from every rank to every other in a network that all see alike: the flows of one rank.

    Its resources are the orbits of the network's; a flow counts at each as often as it crosses it, for as many flows
    are moved onto it. None where the step is not such a one, or small.
    """
    network, count = setting.network, len(setting.ranks)
    if network.orbit is None or len(network.orbit) != network.resources or network.whole_messages:
        return None
    if len(step.src) != count * (count - 1) or len(step.src) < _MOST_BY_ONE or step.inside or step.over is not None:
        return None
    if count != network.endpoints or not np.array_equal(setting.ranks, np.arange(count)):
        return None

    def find() -> Flows | None:
        own = np.flatnonzero(step.src == 0)
        if len(own) != count - 1 or len(np.unique(step.dst[own])) != count - 1 or np.ptp(np.bincount(step.src)):
            return None
        src, dst = np.zeros(count - 1, np.int64), step.dst[own]
        at, path = network.paths(src, dst, setting.salt)
        before, wire, cap = priced(setting.costs, network, src, dst, np.full(len(dst), step.nbytes), at, path)
        assert network.orbit is not None
        orbits = int(network.orbit.max()) + 1
        row = np.repeat(np.arange(len(dst)), np.diff(at))
        cell, times = np.unique(row * orbits + network.orbit[path], return_counts=True)
        begin = np.searchsorted(cell, np.arange(len(dst) + 1) * orbits)
        late = before + setting.more_s(step)
        made = (src, src, src, begin, cell % orbits, late, wire, cap, step.times, step.phase)
        return Flows(*made, weight=times.astype(np.float64), way=dst)

    found: Flows | None = setting.keep("from one", step, find)
    return found


def of_orbits(network: Network) -> Network:
    """One resource for each orbit."""
    assert network.orbit is not None
    _, first = np.unique(network.orbit, return_index=True)
    capacity, late = network.capacity_bytes_per_s[first], network.latency_s[first]
    return replace(network, capacity_bytes_per_s=capacity, latency_s=late, role=network.role[first], orbit=None)


def _half(at: Ids, path: Ids, first: bool) -> tuple[Ids, Ids]:
    """The first or the second half of each path; of an odd number of hops the middle one is in both."""
    hops = np.diff(at)
    half = (hops + 1) // 2
    begin = at[:-1] if first else at[1:] - half
    made = np.concatenate([[0], np.cumsum(half)])
    return made, path[np.repeat(begin, half) + np.arange(made[-1]) - np.repeat(made[:-1], half)]


def same_flows(one: Step, other: Step) -> bool:
    return (
        one.nbytes == other.nbytes
        and one.inside == other.inside
        and np.array_equal(one.src, other.src)
        and np.array_equal(one.dst, other.dst)
        and _same_ranks(one.over, other.over)
    )


def _same_ranks(one: Ids | None, other: Ids | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)


def at_once(step: Step) -> Step:
    return replace(step, times=1)
