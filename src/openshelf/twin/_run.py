"""What a run of a task graph came to: the summary, the load, the critical path, exposed communication."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from openshelf.fabric._network import Ids, Values
from openshelf.twin._load import Load, load_of
from openshelf.twin._tasks import COMPUTE, KINDS, Tasks, Times


@dataclass(frozen=True)
class Link:
    """A task on the critical path."""

    task: int
    name: str
    kind: str
    rank: int
    start_s: float
    finish_s: float


@dataclass(frozen=True)
class Run:
    """A task graph that has run; times are simulated."""

    tasks: Tasks = field(repr=False)
    times: Times

    @property
    def seconds(self) -> float:
        return self.times.seconds

    def name(self, task: int) -> str:
        return self.tasks.names.get(task) or f"{KINDS[int(self._kind[task])]} {task}"

    @property
    def _kind(self) -> Ids:
        return self.tasks.column("kind").astype(np.int64)

    def load(self) -> tuple[Load, ...]:
        """The load of links and places, by role."""
        at, path = self.tasks.paths()
        weights = np.repeat(self.tasks.column("work").astype(np.float64), np.diff(at))
        network = self.tasks.network
        carried = np.bincount(path, weights, minlength=network.resources).astype(np.float64)
        return load_of(network, carried, self.seconds)

    def critical_path(self) -> list[Link]:
        """From the task that ended last, back along those that each one waited for; in order of time."""
        start, finish = self.times.start, self.times.finish
        kind, rank = self._kind, self.tasks.column("rank").astype(np.int64)
        at, before = self.tasks.order(forward=False)
        stream = self.tasks.column("stream").astype(np.int64)
        task = int(np.argmax(finish)) if len(finish) else -1
        found: list[Link] = []
        while task >= 0:
            found.append(Link(task, self.name(task), KINDS[int(kind[task])], int(rank[task]), float(start[task]),
                              float(finish[task])))  # fmt: skip
            waited = before[at[task] : at[task + 1]]
            if stream[task] >= 0:
                mates = np.flatnonzero((stream == stream[task]) & (finish <= start[task]))
                waited = np.concatenate([waited, mates[mates != task]])
            if not len(waited):
                break
            last = int(waited[np.argmax(finish[waited])])
            task = last if finish[last] < finish[task] or start[last] < start[task] else -1
        return found[::-1]

    def exposed_s(self) -> float:
        """Seconds in which a rank moved bytes and computed nothing; the mean over ranks."""
        kind, rank = self._kind, self.tasks.column("rank").astype(np.int64)
        total, ranks = 0.0, np.unique(rank)
        for each in ranks:
            own = rank == each
            computing = _union(self.times.start[own & (kind == COMPUTE)], self.times.finish[own & (kind == COMPUTE)])
            busy = _union(self.times.start[own], self.times.finish[own])
            total += _length(busy) - _length(computing)
        return total / max(1, len(ranks))

    def plain(self) -> dict[str, Any]:
        """Plain values for `json`."""
        kind = self._kind
        work: dict[str, float] = {}
        for number, word in enumerate(KINDS):
            own = kind == number
            if own.any():
                work[word] = float((self.times.finish - self.times.start)[own].sum())
        return {
            "seconds": self.seconds, "tasks": self.tasks.count, "events": self.times.events,
            "solves": self.times.solves, "task_seconds": work, "exposed_s": self.exposed_s(),
            "load": [each.plain() for each in self.load()],
            "critical_path": [vars(each) for each in self.critical_path()],
        }  # fmt: skip

    def csv(self) -> str:
        """One line for each task."""
        kind, rank = self._kind, self.tasks.column("rank").astype(np.int64)
        made = io.StringIO()
        writer = csv.writer(made, lineterminator="\n")
        writer.writerow(("task", "name", "kind", "rank", "start_s", "finish_s"))
        for task in range(self.tasks.count):
            writer.writerow((task, self.name(task), KINDS[int(kind[task])], int(rank[task]),
                             float(self.times.start[task]), float(self.times.finish[task])))  # fmt: skip
        return made.getvalue()


def _union(start: Values, finish: Values) -> list[tuple[float, float]]:
    made: list[tuple[float, float]] = []
    for i in np.argsort(start, kind="stable"):
        low, high = float(start[i]), float(finish[i])
        if made and low <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], high))
        else:
            made.append((low, high))
    return made


def _length(spans: list[tuple[float, float]]) -> float:
    return sum(high - low for low, high in spans)
