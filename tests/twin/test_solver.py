"""The native solver against the oracle, and the laws of max-min fairness."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from openshelf import _core
from tests.twin.oracle import fair


def solve(capacity: list[float], paths: list[list[int]], caps: list[float]) -> NDArray[np.float64]:
    at = np.cumsum([0, *(len(path) for path in paths)])
    flat = np.array([each for path in paths for each in path], np.int32)
    made: NDArray[np.float64] = _core.max_min(np.array(capacity), at.astype(np.int64), flat, np.array(caps))
    return made


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
