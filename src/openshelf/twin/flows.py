"""What a step's flows cross and cost: paths, delays, wire bytes, caps; found once for each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from openshelf.fabric import Ids, Network, Values
from openshelf.twin.algorithms import Step
from openshelf.twin.costs import Costs, latencies, priced


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
    key = ("ways", id(step.src), id(step.dst), step.inside)
    if key not in setting.kept:
        at, path = setting.network.paths(setting.ranks[step.src], setting.ranks[step.dst], setting.salt)
        kind, first = _kinds(setting.network, at, path)
        made = Ways(at, path, kind, first)
        if step.inside in ("up", "down"):
            made = Ways(*_half(at, path, step.inside == "up"), kind, first, (at, path))
        setting.kept[key] = (made, step)
    found: Ways = setting.kept[key][0]
    return found


def _kinds(network: Network, at: Ids, path: Ids) -> tuple[Ids, Ids]:
    """Which flows cross the same roles in the same time, and one of each."""
    count = len(at) - 1
    if not len(path):
        return np.zeros(count, np.int64), np.zeros(min(1, count), np.int64)
    word = np.left_shift(np.int64(1), network.role[path].astype(np.int64))
    total = np.concatenate([[0], np.cumsum(word)])  # sums of roles tell more than which there are
    late = np.round(latencies(network, at, path) * 1e15).astype(np.int64)
    _, first, kind = np.unique(
        (total[at[1:]] - total[at[:-1]]) * 1_000_003 + late, return_index=True, return_inverse=True
    )
    return kind.ravel(), first


def flows_of(setting: Setting, step: Step) -> Flows:
    """The flows of a step, with what reducing adds to their delays."""

    def find() -> Flows:
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


def _half(at: Ids, path: Ids, first: bool) -> tuple[Ids, Ids]:
    """The first or the second half of each path; of an odd number of hops the middle one is in both."""
    hops = np.diff(at)
    half = (hops + 1) // 2
    begin = at[:-1] if first else at[1:] - half
    made = np.concatenate([[0], np.cumsum(half)])
    return made, path[np.repeat(begin, half) + np.arange(made[-1]) - np.repeat(made[:-1], half)]


def carried_by(setting: Setting, steps: Sequence[Step]) -> Values:
    """Wire bytes over each resource."""
    total = np.zeros(setting.network.resources)
    for step in steps:
        total += step.times * once_carried(setting, step)
    return total


def once_carried(setting: Setting, step: Step) -> Values:
    def find() -> Values:
        flows = flows_of(setting, step)
        weights = np.repeat(flows.wire, np.diff(flows.at))
        return np.bincount(flows.path, weights, minlength=setting.network.resources).astype(np.float64)

    made: Values = setting.keep("carried", step, find)
    return made


def least_delay(setting: Setting, steps: Sequence[Step]) -> float:
    """The delays of steps in a row, at the least."""
    return sum(step.times * _least_delay(setting, step) for step in steps)


def busiest(setting: Setting, steps: Sequence[Step]) -> float:
    """How long the busiest resource needs for what steps carry over it."""
    return float((carried_by(setting, steps) / setting.network.capacity_bytes_per_s).max())


def step_at_least(setting: Setting, step: Step) -> float:
    """Seconds of a step by itself, at the least."""
    wires = float((once_carried(setting, step) / setting.network.capacity_bytes_per_s).max())
    return step.times * max(wires, _least_delay(setting, step))


def _least_delay(setting: Setting, step: Step) -> float:
    return float(setting.keep("delay", step, lambda: float(flows_of(setting, step).delay.min())))


def same_flows(one: Step, other: Step) -> bool:
    return (
        one.nbytes == other.nbytes
        and one.inside == other.inside
        and np.array_equal(one.src, other.src)
        and np.array_equal(one.dst, other.dst)
    )


def at_once(step: Step) -> Step:
    return replace(step, times=1)
