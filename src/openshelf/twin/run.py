"""What a run of a task graph came to: the summary, the load, the critical path, exposed communication."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from openshelf.fabric import Ids, Values
from openshelf.twin.load import Load, load_of
from openshelf.twin.tasks import COMPUTE, KINDS, Tasks, Times


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
        task = len(finish) - 1 - int(np.argmax(finish[::-1])) if len(finish) else -1  # of equals the one added last
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
        rank = self.tasks.column("rank").astype(np.int64)
        computes = self._kind == COMPUTE
        busy = _covered(rank, self.times.start, self.times.finish)
        computing = _covered(rank[computes], self.times.start[computes], self.times.finish[computes])
        return (busy - computing) / max(1, len(np.unique(rank)))

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


def _covered(rank: Ids, start: Values, finish: Values) -> float:
    """Seconds that intervals cover, each rank by itself, all ranks together."""
    if not len(start):
        return 0.0
    order = np.lexsort((start, rank))
    # One rank after the other on one line of time, so that the latest end so far is a running maximum.
    shift = rank[order] * (float(finish.max()) + 1.0)
    begins, ends = start[order] + shift, finish[order] + shift
    before = np.concatenate([[-np.inf], np.maximum.accumulate(ends)[:-1]])
    return float(np.maximum(0.0, ends - np.maximum(begins, before)).sum())
