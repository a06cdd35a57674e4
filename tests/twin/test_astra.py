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
from openshelf.twin import Twin
from tests.data import DATA

FILE = DATA / "astra_collectives.json"
RUNS: list[dict[str, Any]] = json.loads(FILE.read_text())["runs"] if FILE.exists() else []
ALGORITHMS = {"ring": "ring", "direct": "direct", "halvingDoubling": "halving_doubling"}


def network_of(run: dict[str, Any]) -> Network:
    (kind,), (npus,) = run["topology"], run["npus"]
    link = LinkClass("link", run["bandwidth_GBps"][0] * 2**30, run["latency_ns"][0] * 1e-9)
    if kind == "Switch":
        return topologies.single_switch(npus, link, SwitchClass("switch", npus, 0.0, store_and_forward=True))
    return {"Ring": topologies.ring, "FullyConnected": topologies.full_mesh}[kind](npus, link).storing()


@pytest.mark.skipif(not RUNS, reason=f"{FILE} is not there")
def test_every_run_of_astra_sim_within_one_percent() -> None:
    assert {len(run["npus"]) for run in RUNS} == {1}
    for run in RUNS:
        twin = Twin(network_of(run), Semantics("endpoint delay", 10e-9), reduce_bytes_per_s=3350e9 / 3)
        made = twin.collective(
            run["collective"], run["size_bytes"], algorithm=ALGORITHMS[run["impl"][0]], chunks=run["splits"]
        )
        assert made.seconds * 1e9 == pytest.approx(run["sim_time_ns"], rel=0.01), run


def test_cut_through_is_faster_where_a_switch_would_store() -> None:
    link, switch = LinkClass("link", 50e9, 5e-7), SwitchClass("switch", 8)
    cut = topologies.single_switch(8, link, switch)
    times = [Twin(each).collective("all_reduce", 2**30, algorithm="ring").seconds for each in (cut, cut.storing())]
    assert times[1] == pytest.approx(2 * times[0], rel=0.001)
