"""Max-min fair rates by plain progressive filling, and runs that fill anew at every event: slow, and plainly right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def fair(capacity: Sequence[float], paths: Sequence[Sequence[int]], caps: Sequence[float]) -> NDArray[np.float64]:
    """All rates rise together; a flow stops at its cap, or when a resource of its path is full."""
    left = np.array(capacity, float)
    uses = np.zeros((len(paths), len(left)))
    for flow, path in enumerate(paths):
        uses[flow, list(path)] = 1.0
    limit, rate = np.array(caps, float), np.zeros(len(paths))
    rising = np.ones(len(paths), bool)
    while rising.any():
        load = uses[rising].sum(axis=0)
        room = np.full(len(left), np.inf)
        room[load > 0] = left[load > 0] / load[load > 0]
        more = min(room.min(), (limit - rate)[rising].min())
        rate[rising] += more
        left -= more * load
        full = left <= 1e-12 * np.array(capacity)
        rising &= ~(uses[:, full].any(axis=1) | (rate >= limit * (1 - 1e-12)))
    return rate


@dataclass
class Job:
    """A task: seconds without a path, bytes with one, after others, after a delay."""

    work: float
    path: list[int]
    after: list[int]
    delay: float = 0.0
    cap: float = float("inf")


def ends(capacity: Sequence[float], jobs: Sequence[Job], changes: Sequence[tuple[float, int, float]]) -> list[float]:
    """When each job ends; changes are (time, resource, capacity), in order."""
    room, now = list(capacity), 0.0
    done: dict[int, float] = {}
    begins: dict[int, float] = {}  # bytes move, or computing is over, from then on
    left = [job.work for job in jobs]
    pending = list(changes)
    while len(done) < len(jobs):
        for i, job in enumerate(jobs):
            if i not in begins and all(other in done for other in job.after):
                ready = max((done[other] for other in job.after), default=0.0)
                begins[i] = ready + job.delay + (0.0 if job.path else job.work)
        moving = [i for i in begins if i not in done and jobs[i].path and begins[i] <= now * (1 + 1e-12)]
        rates = fair(room, [jobs[i].path for i in moving], [jobs[i].cap for i in moving])
        times = [now + left[i] / rate for i, rate in zip(moving, rates, strict=True) if rate > 0]
        times += [begins[i] for i in begins if i not in done and i not in moving]
        times += [pending[0][0]] if pending else []
        after = min(times)
        for i, rate in zip(moving, rates, strict=True):
            left[i] -= rate * (after - now)
        now = after
        while pending and pending[0][0] <= now:
            _, resource, amount = pending.pop(0)
            room[resource] = amount
        for i in begins:
            moved = jobs[i].path and i in moving and left[i] <= 1e-9 * jobs[i].work
            if i not in done and (moved or (not jobs[i].path and begins[i] <= now * (1 + 1e-12))):
                done[i] = now
    return [done[i] for i in range(len(jobs))]
