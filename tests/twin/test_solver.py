"""The native solver against the oracle, and the laws of max-min fairness."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from openshelf import _core
from tests.twin.oracle import Job, ends, fair


def solve(capacity: list[float], paths: list[list[int]], caps: list[float]) -> NDArray[np.float64]:
    at = np.cumsum([0, *(len(path) for path in paths)])
    flat = np.array([each for path in paths for each in path], np.int32)
    made: NDArray[np.float64] = _core.max_min(np.array(capacity), at.astype(np.int64), flat, np.array(caps))
    return made


def run(capacity: list[float], jobs: list[Job], changes: list[tuple[float, int, float]]) -> NDArray[np.float64]:
    nexts = [[i for i, job in enumerate(jobs) if task in job.after] for task in range(len(jobs))]
    finish: NDArray[np.float64]
    _, finish, _, _ = _core.run_tasks(
        capacity=np.array(capacity),
        latency=np.zeros(len(capacity)),
        work=np.array([job.work for job in jobs]),
        delay=np.array([job.delay for job in jobs]),
        cap=np.array([job.cap for job in jobs]),
        path_at=np.cumsum([0, *(len(job.path) for job in jobs)]).astype(np.int64),
        weight=np.empty(0),
        reroute_time=np.empty(0),
        reroute_at=np.empty(0, np.int64),
        reroute_begin=np.zeros(1, np.int64),
        reroute_path=np.empty(0, np.int32),
        path=np.array([each for job in jobs for each in job.path], np.int32),
        stream=np.full(len(jobs), -1, np.int32),
        lane=np.full(len(jobs), -1, np.int32),
        next_at=np.cumsum([0, *(len(each) for each in nexts)]).astype(np.int64),
        next=np.array([i for each in nexts for i in each], np.int32),
        change_time=np.array([time for time, _, _ in changes], np.float64),
        change_resource=np.array([resource for _, resource, _ in changes], np.int32),
        change_capacity=np.array([amount for _, _, amount in changes], np.float64),
        window=0.0,
        whole_messages=False,
    )
    return finish


def test_runs_of_random_graphs_end_as_the_oracle_has_them() -> None:
    random = np.random.default_rng(5)
    for _ in range(150):
        resources, count = int(random.integers(1, 7)), int(random.integers(1, 16))
        capacity = random.uniform(1, 10, resources).tolist()
        jobs = []
        for number in range(count):
            flow = random.random() < 0.8
            path = random.permutation(resources)[: random.integers(1, min(3, resources) + 1)].tolist() if flow else []
            after = [int(each) for each in range(number) if random.random() < 0.15]
            cap = float(random.uniform(0.5, 5)) if random.random() < 0.3 else math.inf
            delay = float(random.uniform(0, 2)) if random.random() < 0.5 else 0.0
            jobs.append(Job(float(random.uniform(1, 20)), path, after, delay, cap))
        times = np.sort(random.uniform(0, 10, int(random.integers(0, 3))))
        changes = [(float(at), int(random.integers(resources)), float(random.uniform(0.5, 10))) for at in times]
        np.testing.assert_allclose(run(capacity, jobs, changes), ends(capacity, jobs, changes), rtol=1e-8)


def test_a_thousand_random_instances_are_as_the_oracle_has_them() -> None:
    random = np.random.default_rng(11)
    for _ in range(1000):
        resources, flows = int(random.integers(1, 12)), int(random.integers(1, 25))
        capacity = random.uniform(1, 100, resources).tolist()
        if random.random() < 0.2:
            capacity[0] = 0.0
        paths = [
            random.permutation(resources)[: random.integers(1, min(5, resources) + 1)].tolist() for _ in range(flows)
        ]
        caps = np.where(random.random(flows) < 0.3, random.uniform(0.1, 20, flows), math.inf).tolist()
        np.testing.assert_allclose(solve(capacity, paths, caps), fair(capacity, paths, caps), rtol=1e-9, atol=1e-9)


@st.composite
def instances(draw: st.DrawFn) -> tuple[list[float], list[list[int]], list[float]]:
    resources = draw(st.integers(1, 8))
    capacity = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 10.0, 7.5]), min_size=resources, max_size=resources))
    ways = st.lists(st.integers(0, resources - 1), min_size=1, max_size=4, unique=True)
    paths = draw(st.lists(ways, min_size=1, max_size=12))
    cap = st.sampled_from([0.5, 1.0, 4.0, math.inf])
    return capacity, paths, draw(st.lists(cap, min_size=len(paths), max_size=len(paths)))


@settings(max_examples=150, deadline=None)
@given(instances())
def test_no_resource_gives_more_than_it_has_and_no_flow_could_have_more(
    instance: tuple[list[float], list[list[int]], list[float]],
) -> None:
    capacity, paths, caps = instance
    rate = solve(*instance)
    used = np.zeros(len(capacity))
    for path, own in zip(paths, rate, strict=True):
        used[path] += own
    assert (used <= np.array(capacity) * (1 + 1e-9)).all()
    for flow, path in enumerate(paths):
        at_cap = rate[flow] >= caps[flow] * (1 - 1e-9)
        # Somewhere on its way nothing is left, and nobody there has more than it.
        held = any(
            used[each] >= capacity[each] * (1 - 1e-9)
            and all(rate[flow] >= rate[i] * (1 - 1e-9) for i, other in enumerate(paths) if each in other)
            for each in path
        )
        assert at_cap or held
