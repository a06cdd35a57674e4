"""Against ASTRA-sim 2: every run of its congestion-aware backend within 1 %, by its rules.

Its rules: every hop stores and forwards whole messages and serves them in order of arrival; 1 GB/s is 2**30 bytes/s; a
collective is cut into `splits` that go one after the other; every message costs its endpoint 10 ns (`endpoint-delay`);
what arrives in a reduce-scatter is written and read twice in the memory of an H100 (`local-mem-bw` 3350 GB/s), messages
beside one another. The data does not name these two figures: they are those of its example of an HGX H100, which has
the same splits.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from openshelf.fabric import LinkClass, Network, Semantics, SwitchClass, topologies
from openshelf.fabric.topologies.meshes import Kind
from openshelf.twin import Twin
from tests.data import DATA

FILE = DATA / "astra_collectives.json"
RUNS: list[dict[str, Any]] = json.loads(FILE.read_text())["runs"] if FILE.exists() else []
BY = " x "
ALGORITHMS = {"ring": "ring", "direct": "direct", "halvingDoubling": "halving_doubling"}


KINDS: dict[str, Kind] = {"Ring": "ring", "FullyConnected": "mesh", "Switch": "switch"}


def network_of(run: dict[str, Any]) -> Network:
    """A product of the run's dimensions, the first varying fastest, as ASTRA-sim numbers its NPUs."""
    made = []
    for kind, npus, bandwidth, late in zip(
        run["topology"], run["npus"], run["bandwidth_GBps"], run["latency_ns"], strict=True
    ):
        switch = SwitchClass("switch", npus, 0.0, store_and_forward=True) if kind == "Switch" else None
        made.append(topologies.Dimension(KINDS[kind], npus, LinkClass("link", bandwidth * 2**30, late * 1e-9), switch))
    return topologies.product(made).storing()


def simulated_s(run: dict[str, Any]) -> float:
    """One chunk at a time in one dimension; in several, chunks go behind one another, one in each phase."""
    twin = Twin(network_of(run), Semantics("endpoint delay", 10e-9), reduce_bytes_per_s=3350e9 / 3)
    algorithm = BY.join(ALGORITHMS[name] for name in run["impl"])
    active = 1 if len(run["npus"]) > 1 else 0
    made = twin.collective(
        run["collective"], run["size_bytes"], algorithm=algorithm, chunks=run["splits"], active=active
    )
    return made.seconds


@pytest.mark.skipif(not RUNS, reason=f"{FILE} is not there")
def test_every_run_of_astra_sim_within_one_percent() -> None:
    for run in RUNS:
        assert simulated_s(run) * 1e9 == pytest.approx(run["sim_time_ns"], rel=0.01), run


def test_a_run_in_two_dimensions_takes_the_steps_of_both() -> None:
    run: dict[str, Any] = {
        "topology": ["Ring", "Switch"], "npus": [4, 2], "bandwidth_GBps": [50, 25], "latency_ns": [500, 700],
        "collective": "all_reduce", "impl": ["ring", "ring"], "splits": 1, "size_bytes": 1 << 20,
    }  # fmt: skip
    size, gib = 1 << 20, 2**30
    inner = 3 * (size / 4 / (50 * gib) + 500e-9 + 10e-9)
    outer = size / 8 / (25 * gib) * 2 + 2 * 700e-9 + 10e-9  # two hops, each of which stores
    reduced = 3 * size / 4 / (3350e9 / 3) + size / 8 / (3350e9 / 3)
    assert simulated_s(run) == pytest.approx(2 * inner + 2 * outer + reduced, rel=1e-3)
    # Chunks of less than 64 KiB are cut as asked: two take longer than one, and less than one after the other.
    halves = simulated_s(run | {"splits": 2, "size_bytes": 1 << 16})
    half, whole = (simulated_s(run | {"size_bytes": size}) for size in (1 << 15, 1 << 16))
    assert whole < halves < 2 * half


def test_cut_through_is_faster_where_a_switch_would_store() -> None:
    link, switch = LinkClass("link", 50e9, 5e-7), SwitchClass("switch", 8)
    cut = topologies.single_switch(8, link, switch)
    times = [Twin(each).collective("all_reduce", 2**30, algorithm="ring").seconds for each in (cut, cut.storing())]
    assert times[1] == pytest.approx(2 * times[0], rel=0.001)
