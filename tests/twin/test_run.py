"""Runs of task graphs: memory, streams, what is exposed, the critical path, and what is written for people."""

from __future__ import annotations

import numpy as np
import pytest

from openshelf.errors import BadInput
from openshelf.fabric import LinkClass, SwitchClass
from openshelf.fabric import topologies as top
from openshelf.show.twin_trace import run_trace
from openshelf.twin import Twin

B = 10.0
NETWORK = top.with_memory(top.single_switch(4, LinkClass("link", B), SwitchClass("switch", 4)), 5.0, 20.0)


def test_a_flow_shares_the_memory_that_it_reads() -> None:
    twin = Twin(NETWORK)
    tasks = twin.tasks()
    flow = tasks.flow(0, 1, 100)
    read = tasks.memory(100, 0, "read")
    other = tasks.memory(100, 2, "read")
    run = twin.run(tasks)
    assert run.times.finish[[flow, read, other]].tolist() == pytest.approx([40, 40, 20])
    assert {each.role: each.most for each in run.load()}["place.read"] == pytest.approx(1.0)
    with pytest.raises(BadInput, match="not modelled"):
        Twin(top.ring(3, LinkClass("link", B))).tasks().memory(1, 0)


def test_exposed_is_the_mean_over_ranks_of_moving_without_computing() -> None:
    twin = Twin(NETWORK)
    tasks = twin.tasks()
    tasks.compute(6, rank=0)
    tasks.flow(0, 1, 50)  # 10 s, of which 6 are hidden
    tasks.compute(1, rank=2)
    tasks.flow(2, 3, 25)  # 5 s, of which 1 is
    run = twin.run(tasks)
    assert run.exposed_s() == pytest.approx((4 + 4) / 2)


def test_the_critical_path_goes_through_streams_and_dependencies() -> None:
    twin = Twin(NETWORK)
    tasks = twin.tasks()
    tasks.compute(3, stream=0, name="a")
    second = tasks.compute(2, stream=0, name="b")
    flow = tasks.flow(0, 1, 50, after=[second], name="c")
    tasks.compute(1, after=[flow], name="d")
    run = twin.run(tasks)
    assert run.seconds == pytest.approx(16)
    assert [each.name for each in run.critical_path()] == ["a", "b", "c", "d"]
    assert run.csv().splitlines()[2] == "1,b,compute,0,3.0,5.0"
    assert run.plain()["task_seconds"] == {"compute": pytest.approx(6), "flow": pytest.approx(10)}


def test_a_large_trace_shows_whole_ranks_and_says_how_many_it_leaves_out() -> None:
    twin = Twin(NETWORK)
    tasks = twin.tasks()
    tasks.flows(np.repeat(np.arange(4), 3), np.repeat([1, 2, 3, 0], 3), 10)
    run = twin.run(tasks)
    made = run_trace(run, most=7)
    assert {event["pid"] for event in made["traceEvents"]} == {0, 1}
    assert sum(event["ph"] == "X" for event in made["traceEvents"]) == 6
    assert "2 more ranks not shown" in made["otherData"]["title"]
    assert "more ranks" not in run_trace(run)["otherData"]["title"]


def test_tasks_that_cannot_be_are_refused() -> None:
    tasks = Twin(NETWORK).tasks()
    with pytest.raises(BadInput, match="0 were added so far"):
        tasks.link([0], [1])
    with pytest.raises(BadInput, match="computes for -1"):
        tasks.compute(-1)
    with pytest.raises(BadInput, match="at least 0"):
        tasks.flow(0, 1, -5)
