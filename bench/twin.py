"""The simulator: how long it takes on one core, by CPU time, which another process on the machine disturbs least.

`twin.flows10k` is a whole run of 10,000 random flows, by the events in it; `twin.batched` the same with ends handled in
windows. SimGrid runs the same ring here where its library is installed. What ASTRA-sim and SimGrid took elsewhere is in
the notes: their times, on another machine of two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kit.side_by_side import Report, Row, arguments
from openshelf.fabric import LinkClass, SwitchClass
from openshelf.fabric.topologies import fat_tree, ring, single_switch
from openshelf.twin import Twin
from peers import simgrid
from twin_nccl import nccl_rows

LINK = LinkClass("400G", 50e9, 5e-7)
RANKS, SIZE = 1024, 64 << 20
WINDOW_S = 3e-5


def cpu(work: Callable[[], object], times: int) -> float:
    """The least CPU time of several runs."""
    spent = []
    for _ in range(times):
        started = time.process_time()
        work()
        spent.append(time.process_time() - started)
    return min(spent)


def collectives(report: Report, times: int) -> None:
    def round_a_ring() -> float:
        return Twin(ring(RANKS, LINK)).collective("all_reduce", SIZE, algorithm="ring").seconds

    def to_all() -> None:
        Twin(single_switch(RANKS, LINK, SwitchClass("switch", RANKS))).collective("all_to_all", SIZE)

    spent = cpu(round_a_ring, times)
    note = "ASTRA-sim 20 s, SimGrid 13 s elsewhere"
    peer, ratio = "", None
    found = simgrid.ring_seconds(RANKS, SIZE)
    if isinstance(found, str):
        note += f"; SimGrid here: {found}"
    else:
        peer, ratio = "SimGrid", found[0] / spent
        note += f"; SimGrid here {found[0]:.1f} s, its time {found[1] / round_a_ring() - 1:+.2%} off ours"
    case = f"all-reduce of 64 MiB round {RANKS} ranks"
    report.add(Row("twin.ring1024", case, spent, "s", peer, ratio, None, bar="<= 0.05", note=note))
    if times > 2:
        every = cpu(lambda: Twin(ring(RANKS, LINK)).collective("all_reduce", SIZE, algorithm="ring", how="graph"), 1)
        report.add(Row("twin.ring1024_flows", f"{case}, every flow", every, "s", "", None, None))
    case = f"all-to-all of 64 MiB among {RANKS} ranks on a switch, {RANKS * (RANKS - 1)} flows"
    spent = cpu(to_all, times)
    report.add(Row("twin.a2a1024", case, spent, "s", "", None, None, bar="<= 2", note="ASTRA-sim 115 s elsewhere"))


def flows(report: Report, count: int, times: int) -> None:
    """Random pairs on a non-blocking fat tree, 1 to 20 MB each."""
    network = fat_tree(RANKS, LINK, SwitchClass("16 ports", 16, 3e-7), 3)
    random = np.random.default_rng(1)
    src = random.integers(0, RANKS, count)
    dst = (src + random.integers(1, RANKS, count)) % RANKS
    size = random.uniform(1e6, 20e6, count)

    def run(window_s: float) -> tuple[float, float, int]:
        twin = Twin(network, window_s=window_s)
        tasks = twin.tasks()
        tasks.flows(src, dst, size)
        started = time.process_time()
        made = twin.run(tasks)
        return time.process_time() - started, made.seconds, made.times.events

    exact_s, exact, events = run(0.0)
    batched = [run(WINDOW_S) for _ in range(times)]
    error = abs(batched[0][1] / exact - 1)
    note = f"{events} events in {exact_s:.1f} s"
    case = f"{count} random flows on a fat tree of {RANKS} hosts, exact, per event"
    report.add(Row("twin.flows10k", case, 1e3 * exact_s / events, "ms", "", None, None, bar="<= 2.5", note=note))
    ratio = exact_s / min(spent for spent, _, _ in batched)
    case = f"the same, ends within {WINDOW_S * 1e6:.0f} us at once"
    note = f"the last flow ends {error:.2%} off"
    report.add(Row("twin.batched", case, ratio, "x", "exact", ratio, None, bar=">= 20", note=note))


def scale(report: Report, algorithm: str) -> None:
    command = [sys.executable, str(Path(__file__).parent / "processes" / "twin.py"), str(1 << 17), algorithm]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    case = f"a fat tree of 131,072 and an all-reduce of 1 GiB by {algorithm}"
    row = Row("twin.scale", case, found["cpu_s"], "s", "", None, None, bar="<= 10", note=found["how"])
    row.id += "" if algorithm == "ring" else f"_{algorithm}"
    report.add(row)
    size = found["rss"] / (1 << 30)
    report.add(Row(f"{row.id}_memory", case, size, "GiB", "", None, None, bar="<= 2", note="peak of the process"))


def main() -> None:
    args = arguments(__doc__ or "")
    report = Report("twin: a simulated fabric")
    times = 2 if args.quick else 5
    collectives(report, times)
    flows(report, 10_000, times)
    scale(report, "ring")
    if not args.quick:
        scale(report, "halving_doubling")
    for row in nccl_rows():
        report.add(row)
    report.finish(args.json)


if __name__ == "__main__":
    main()
