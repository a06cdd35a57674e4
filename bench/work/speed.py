"""work.speed_closed, work.speed_event, work.speed_search, work.speed_100k: CPU time of training's simulations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kit.side_by_side import Row
from openshelf.twin.ops import accelerator
from openshelf.workloads.train import MODELS, Cluster, Plan, constants_of, run_events, search, step_of

MODEL = MODELS["megatron-1t"]
PLAN = Plan(
    dp=6, tp=8, pp=64, global_batch=3072, recompute="full", flash=False, schedule="interleaved", interleave=2
)  # fmt: skip


def _cpu(work: Callable[[], object], times: int = 1) -> float:
    started = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - started) / times


def rows(data: Path, quick: bool) -> Iterator[Row]:
    cluster = Cluster(accelerator("a100_sxm"), 3072, 8, 300e9, 25e9)
    constants = constants_of("auto", cluster)
    slower = constants.of(PLAN)
    closed = 1e3 * _cpu(lambda: step_of(MODEL, PLAN, cluster, slower), 50)
    case = "Megatron-1T on 3,072 A100"
    yield Row("work.speed_closed", f"{case}, closed form", closed, "ms", "", None, None, bar="<= 5")
    spent = _cpu(lambda: run_events(MODEL, PLAN, cluster, slower))
    off = run_events(MODEL, PLAN, cluster, slower)[0] / step_of(MODEL, PLAN, cluster, slower).seconds - 1
    note = f"{off:+.1e} off the closed form"
    yield Row("work.speed_event", f"{case}, event by event", spent, "s", "", None, None, bar="<= 5", note=note)
    found = _cpu(lambda: search(MODEL, cluster, constants, 3072, Plan(flash=False), most=1000))
    yield Row("work.speed_search", f"{case}, 1,000 plans", found, "s", "", None, None, bar="<= 10")
    large = Cluster(accelerator("h100_sxm"), 102400, 8, 450e9, 50e9)
    plan = Plan(dp=200, tp=8, pp=64, global_batch=51200, flash=True, schedule="interleaved", interleave=2, overlap=True)
    spent = _cpu(lambda: run_events(MODEL, plan, large, slower))
    case = f"a step of Megatron-1T on {large.count:,} H100, event by event"
    yield Row("work.speed_100k", case, spent, "s", "", None, None, bar="<= 60")
