"""Planning: how long it takes for a model of 80 layers, and how far plans are from the optimum on small programs.

The programs are made up, shaped like a Llama that trains with Adam; nothing is run. The optimum is solved by HiGHS and
knows neither running again nor fragmentation, so that a plan can be below it, and no gap at all is not always possible.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.progress import track

from kit.side_by_side import Report, Row, arguments, p99
from openshelf.errors import BadInput
from openshelf.offload import Lane, Rates, lifetimes, make_plan

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.offload.planner.optimum import least_seconds
from tests.offload.planner.programs import llama, small_program

DISK = Rates(Lane(3.5e9, 1e-4), Lane(2e9, 1e-4), Lane(1e10, 1e-6), Lane(1e10, 1e-6))
SLOW_DISK = Rates(Lane(5e8, 1e-4), Lane(3e8, 1e-4), Lane(1e10, 1e-6), Lane(1e10, 1e-6))
SMALL = Rates(Lane(2e9, 1e-6), Lane(1e9, 1e-6), Lane(1e10), Lane(1e10))


def eighty_layers(report: Report, quick: bool) -> None:
    """Cold and from the cache; a slow disk at a tenth of the memory is the worst case: all the time is used."""
    program = llama(80, 1024, 256, train=True, views=0 if quick else 3)
    known = lifetimes(program)
    for id, case, rates, part, limit in (
        ("offload.plan80_cold", "a disk of 3.5 GB/s, half of the memory", DISK, 0.5, 20.0),
        ("offload.plan80_worst", "a disk of 0.5 GB/s, a tenth of the memory", SLOW_DISK, 0.1, 10.0 if quick else 20.0),
    ):
        budget = int(known.live_peak * part)
        started = time.perf_counter()
        plan = make_plan(program, budget, rates, time_limit=limit)
        seconds = time.perf_counter() - started
        note = f"{len(program.ops):,} operators, {len(plan.steps):,} steps; predicted {plan.times.seconds:.2f} s"
        report.add(Row(id, f"80 layers, training, {case}", seconds, "s", "", None, None, None, None, "<= 60", note))
    cached = []
    for _ in range(5):
        started = time.perf_counter()
        make_plan(program, budget, rates)
        cached.append(time.perf_counter() - started)
    report.add(
        Row("offload.plan80_cached", "the same from the cache", min(cached), "s", "", None, None,
            statistics.median(cached), max(cached), "<= 1", "every step is checked")
    )  # fmt: skip


def optimum(report: Report, count: int, seconds: float) -> None:
    gaps: list[float] = []
    left_out = 0
    started = time.perf_counter()
    for seed in track(range(1000, 1000 + count), "small programs"):
        if time.perf_counter() - started > seconds:
            break
        rng = random.Random(seed)
        program = small_program(rng, rng.randint(4, 7))
        known = lifetimes(program)
        room = max(0, known.live_peak - known.least)
        plan = make_plan(program, int(known.least + rng.choice([0, 0.2, 0.5]) * room), SMALL, time_limit=5, cache=False)
        try:
            best = least_seconds(program, plan.budget, SMALL, time_limit=10)
        except BadInput:  # not solved in time
            left_out += 1
            continue
        gaps.append(100 * (plan.times.seconds / best - 1))
    within = sum(gap <= 5 for gap in gaps)
    report.add(
        Row("offload.optimum", "predicted time of a plan above the HiGHS optimum", statistics.median(gaps), "%", "",
            None, None, statistics.mean(gaps), p99(gaps), "<= 5",
            f"value: median, median: mean; {within} of {len(gaps)} within 5 %, {left_out} not solved")
    )  # fmt: skip


def main() -> None:
    args = arguments(__doc__ or "")
    report = Report("Offload: planning")
    with tempfile.TemporaryDirectory(prefix="openshelf-bench-") as home:
        os.environ["XDG_CACHE_HOME"] = home
        eighty_layers(report, args.quick)
        optimum(report, *((8, 12.0) if args.quick else (60, 300.0)))
    report.finish(args.json)


if __name__ == "__main__":
    main()
