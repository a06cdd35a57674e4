"""Task graphs: computing, memory and flows, each begun when those it names are done; run in virtual time, natively.

Tasks are kept as columns, added one by one or thousands at a time: a collective of a thousand ranks has millions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openshelf import _core
from openshelf.errors import BadInput
from openshelf.fabric import Ids, Network, Semantics, Values
from openshelf.twin.costs import Costs, priced
from openshelf.twin.flows import Flows

COMPUTE, FLOW, MEMORY = 0, 1, 2
KINDS = ("compute", "flow", "memory")


@dataclass(frozen=True)
class Change:
    """A resource has another capacity from a moment on: a failure (0), a repair, an optical switch that was turned."""

    time_s: float
    resource: int
    capacity_bytes_per_s: float


@dataclass(frozen=True)
class Reroute:
    """From a moment on every task's path is another: routers know which links are dead."""

    time_s: float
    path_at: Ids = field(repr=False)
    path: Ids = field(repr=False)


class Tasks:
    """A graph of tasks on a network; `Twin.run` runs it."""

    def __init__(self, network: Network, costs: Costs | None = None) -> None:
        self.network = network
        self.costs = costs or Semantics()
        self.count = 0
        self.names: dict[int, str] = {}
        self._connections = 0
        self._columns: dict[str, list[NDArray[np.generic]]] = {
            name: [] for name in ("work", "delay", "cap", "stream", "lane", "rank", "kind", "hops")
        }
        self._path: list[NDArray[np.int32]] = []
        self._ends: list[tuple[int, Ids, Ids, int]] = []  # (first task, sources, targets, salt) of flows
        self._weight: list[Values] = []  # of each hop, where flows stand for several
        self._before: list[Ids] = []
        self._after: list[Ids] = []

    def compute(
        self, seconds: float, rank: int = 0, after: Sequence[int] = (), stream: int = -1, name: str = ""
    ) -> int:
        """So many seconds of computing by a rank. Tasks of a stream run one at a time, as they become ready."""
        if not (math.isfinite(seconds) and seconds >= 0):
            raise BadInput(f"a task computes for {seconds!r} s; expected 0 or more")
        return self._one(COMPUTE, seconds, 0.0, math.inf, np.empty(0, np.int64), rank, after, stream, name)

    def lasting(
        self,
        seconds: float,
        rank: int = 0,
        after: Sequence[int] = (),
        stream: int = -1,
        name: str = "",
        kind: int = FLOW,
    ) -> int:
        """A task of known time that loads nothing here, such as a collective that was simulated before."""
        return self._one(kind, seconds, 0.0, math.inf, np.empty(0, np.int64), rank, after, stream, name)

    def memory(
        self, nbytes: float, rank: int, what: str = "read", after: Sequence[int] = (), stream: int = -1, name: str = ""
    ) -> int:
        """Bytes read or written by a rank in its own memory."""
        resource = self.network.place(rank, what)
        latency = float(self.network.latency_s[resource])
        return self._one(MEMORY, nbytes, latency, math.inf, np.array([resource]), rank, after, stream, name)

    def flow(
        self,
        src: int,
        dst: int,
        nbytes: float,
        after: Sequence[int] = (),
        salt: int = 0,
        stream: int = -1,
        name: str = "",
    ) -> int:
        """Bytes from one endpoint to another."""
        first = self.flows([src], [dst], nbytes, salt)
        self.link(after, [first] * len(after))
        self._columns["stream"][-1] = np.array([stream], np.int32)
        if name:
            self.names[first] = name
        return first

    def flows(
        self, src: ArrayLike, dst: ArrayLike, nbytes: ArrayLike, salt: int = 0, more_s: float = 0.0,
        connections: Ids | None = None,
    ) -> int:  # fmt: skip
        """Many flows at once; gives the first one's number. `more_s` is added to what comes before the first byte.

        Flows of one connection are on the wires one at a time; of those that wait the first added goes first.
        """
        sources, targets = np.asarray(src, np.int64).ravel(), np.asarray(dst, np.int64).ravel()
        size = np.broadcast_to(np.asarray(nbytes, np.float64), sources.shape)
        if not (np.isfinite(size).all() and (size >= 0).all()):
            raise BadInput("a flow's bytes are a finite number of at least 0")
        at, path = self.network.paths(sources, targets, salt)
        hops, count = np.diff(at), len(sources)
        self._ends.append((self.count, sources, targets, salt))
        before, wire, caps = priced(self.costs, self.network, sources, targets, size, at, path)
        # A flow to itself has no path: it takes its delay and nothing more.
        return self._add(
            count,
            work=np.where(hops > 0, wire, 0.0),
            delay=before + more_s,
            cap=caps,
            stream=np.full(count, -1, np.int32),
            lane=np.full(count, -1, np.int32) if connections is None else connections,
            rank=sources.astype(np.int32),
            kind=np.full(count, FLOW, np.int8),
            hops=hops,
            path=path,
        )

    def repeat(self, steps: Sequence[Flows], connections: Sequence[Ids], turns: int) -> int:
        """The flows of steps, each as often as it is done, all of it `turns` over; gives the first one's number."""

        def column(values: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
            return np.tile(np.concatenate([np.tile(v, s.times) for v, s in zip(values, steps, strict=True)]), turns)

        count = turns * sum(len(each) * each.times for each in steps)
        if any(each.weight is not None for each in steps):
            made = [np.ones(len(each.path)) if each.weight is None else each.weight for each in steps]
            self._weight.append(column(made).astype(np.float64))
        hops = [np.diff(each.at) for each in steps]
        if all(each.to is not None and each.weight is None for each in steps):
            ends = [column([getattr(each, end) for each in steps]).astype(np.int64) for end in ("rank", "to")]
            self._ends.append((self.count, ends[0], ends[1], steps[0].salt))
        return self._add(
            count,
            work=column([np.where(many > 0, each.wire, 0.0) for many, each in zip(hops, steps, strict=True)]),
            delay=column([each.delay for each in steps]),
            cap=column([each.cap for each in steps]),
            stream=np.full(count, -1, np.int32),
            lane=column(connections),
            rank=column([each.rank for each in steps]).astype(np.int32),
            kind=np.full(count, FLOW, np.int8),
            hops=column(hops),
            path=column([each.path for each in steps]).astype(np.int64),
        )

    def new_connections(self, count: int) -> int:
        """The first of so many connections that nothing uses."""
        first, self._connections = self._connections, self._connections + count
        return first

    def link(self, before: ArrayLike, after: ArrayLike) -> None:
        """Task after[i] begins when before[i] is done."""
        first, second = np.asarray(before, np.int64).ravel(), np.asarray(after, np.int64).ravel()
        for each in (first, second):
            if len(each) and not (each.min() >= 0 and each.max() < self.count):
                raise BadInput(f"a task waits for one that is not there: {self.count} were added so far")
        self._before.append(first)
        self._after.append(second)

    def column(self, name: str) -> NDArray[np.generic]:
        parts = self._columns[name]
        return np.concatenate(parts) if parts else np.empty(0)

    def order(self, forward: bool = True) -> tuple[Ids, Ids]:
        """Who comes after whom, as rows: (indptr, tasks); backward: who comes before whom."""
        empty = np.empty(0, np.int64)
        before, after = np.concatenate([empty, *self._before]), np.concatenate([empty, *self._after])
        rows, ids = (before, after) if forward else (after, before)
        indptr = np.zeros(self.count + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=self.count), out=indptr[1:])
        return indptr, ids[np.argsort(rows, kind="stable")]

    def paths(self) -> tuple[Ids, NDArray[np.int32]]:
        indptr = np.zeros(self.count + 1, np.int64)
        np.cumsum(self.column("hops"), out=indptr[1:])
        return indptr, np.concatenate([np.empty(0, np.int32), *self._path])

    def paths_around(self, dead: Ids) -> tuple[Ids, Ids]:
        """The paths of all tasks when routers know that some resources are dead."""
        at, path = self.paths()
        rows = [path[at[i] : at[i + 1]].astype(np.int64) for i in range(self.count)]
        gone = np.zeros(self.network.resources, bool)
        gone[dead] = True
        for first, src, dst, salt in self._ends:
            hit = np.array([i for i in range(len(src)) if gone[rows[first + i]].any()], np.int64)
            own_at, own = self.network.around(src[hit], dst[hit], dead, salt)
            for number, i in enumerate(hit.tolist()):
                rows[first + i] = own[own_at[number] : own_at[number + 1]]
        indptr = np.zeros(self.count + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=indptr[1:])
        return indptr, np.concatenate(rows) if rows else np.empty(0, np.int64)

    def weights(self) -> Values:
        """How often flows count at each hop; empty if once."""
        if not self._weight:
            return np.empty(0)
        made = np.concatenate(self._weight)
        assert len(made) == sum(len(each) for each in self._path), "weighted and other flows in one graph"
        return made

    def _one(
        self, kind: int, work: float, delay: float, cap: float, path: Ids, rank: int, after: Sequence[int], stream: int,
        name: str,
    ) -> int:  # fmt: skip
        made = self._add(
            1,
            work=np.array([work]),
            delay=np.array([delay]),
            cap=np.array([cap]),
            stream=np.array([stream], np.int32),
            lane=np.full(1, -1, np.int32),
            rank=np.array([rank], np.int32),
            kind=np.array([kind], np.int8),
            hops=np.array([len(path)]),
            path=path,
        )
        self.link(after, [made] * len(after))
        if name:
            self.names[made] = name
        return made

    def _add(self, count: int, path: Ids, **columns: NDArray[np.generic]) -> int:
        for name, values in columns.items():
            self._columns[name].append(values)
        self._path.append(path.astype(np.int32))
        first, self.count = self.count, self.count + count
        return first


@dataclass(frozen=True)
class Times:
    """When each task began (its delay included) and ended, and what it took to find out."""

    start: Values = field(repr=False)
    finish: Values = field(repr=False)
    events: int = 0
    solves: int = 0

    @property
    def seconds(self) -> float:
        return float(self.finish.max()) if len(self.finish) else 0.0


def run(tasks: Tasks, changes: Sequence[Change] = (), window_s: float = 0.0, reroutes: Sequence[Reroute] = ()) -> Times:
    """Runs a graph natively; with a window, what happens within so many seconds is handled at once."""
    network = tasks.network
    if changes and network.whole_messages:
        raise BadInput("capacities change only where flows cut through; this network stores whole messages")
    for change in changes:
        if not 0 <= change.resource < network.resources:
            raise BadInput(f"resource {change.resource} is not in {network.name!r}, which has {network.resources}")
        if not (change.time_s >= 0 and change.capacity_bytes_per_s >= 0):
            raise BadInput(f"a change needs a time and a capacity of at least 0; {change} came")
    if reroutes and network.whole_messages:
        raise BadInput("flows take other ways only where they cut through; this network stores whole messages")
    ordered = sorted(changes, key=lambda change: change.time_s)
    path_at, path = tasks.paths()
    next_at, after = tasks.order()
    start, finish, events, solves = _core.run_tasks(
        capacity=network.capacity_bytes_per_s,
        latency=network.latency_s,
        work=_doubles(tasks.column("work")),
        delay=_doubles(tasks.column("delay")),
        cap=_doubles(tasks.column("cap")),
        path_at=path_at,
        path=path,
        weight=tasks.weights(),
        stream=tasks.column("stream").astype(np.int32),
        lane=tasks.column("lane").astype(np.int32),
        next_at=next_at,
        next=after.astype(np.int32),
        change_time=np.array([change.time_s for change in ordered], np.float64),
        change_resource=np.array([change.resource for change in ordered], np.int32),
        change_capacity=np.array([change.capacity_bytes_per_s for change in ordered], np.float64),
        window=window_s,
        whole_messages=network.whole_messages,
        reroute_time=np.array([each.time_s for each in reroutes], np.float64),
        reroute_at=np.concatenate([np.empty(0, np.int64), *(each.path_at for each in reroutes)]),
        reroute_begin=np.cumsum([0, *(len(each.path) for each in reroutes)]).astype(np.int64),
        reroute_path=np.concatenate([np.empty(0, np.int32), *(each.path.astype(np.int32) for each in reroutes)]),
    )
    return Times(start, finish, events, solves)


def reroutes_of(tasks: Tasks, changes: Sequence[Change], detection_s: float) -> list[Reroute]:
    """What routers do about links that die and come back, each so many seconds later."""
    if not (math.isfinite(detection_s) and detection_s >= 0):
        raise BadInput(f"detection_s is {detection_s!r}; expected 0 or more seconds")
    dead: set[int] = set()
    made = []
    for change in sorted(changes, key=lambda each: each.time_s):
        before = frozenset(dead)
        dead.discard(change.resource)
        if change.capacity_bytes_per_s == 0:
            dead.add(change.resource)
        if dead != before:
            made.append(Reroute(change.time_s + detection_s, *tasks.paths_around(np.array(sorted(dead), np.int64))))
    return made


def _doubles(column: NDArray[np.generic]) -> Values:
    return np.ascontiguousarray(column, np.float64)
