"""A run of the twin as a trace for Perfetto: one row for each rank and kind of task, sampled by rank if there are many.

Times are simulated ones, in microseconds, as the format has it.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from openshelf.twin import TASK_KINDS

if TYPE_CHECKING:
    from openshelf.twin import Run

MOST = 100_000  # events; a larger trace is slow to open


def run_trace(run: Run, most: int = MOST) -> dict[str, Any]:
    """The events, as plain values for `json`: of the first ranks, where all would be more than `most`."""
    kind, rank = run.tasks.column("kind").astype(np.int64), run.tasks.column("rank").astype(np.int64)
    order = np.argsort(rank, kind="stable")
    shown = order[:most]
    if len(shown) < len(order):  # whole ranks, but for a single one that is too large
        whole = order[rank[order] < rank[order[most]]]
        shown = whole if len(whole) else shown
    ranks = np.unique(rank[shown])
    left_out = len(np.unique(rank)) - len(ranks)
    title = "twin: simulated" + (f", {left_out} more ranks not shown" if left_out else "")
    events: list[dict[str, Any]] = []
    for each in ranks.tolist():
        events.append({"ph": "M", "pid": each, "tid": 0, "name": "process_name", "args": {"name": f"rank {each}"}})
        events += [
            {"ph": "M", "pid": each, "tid": row, "name": "thread_name", "args": {"name": word}}
            for row, word in enumerate(TASK_KINDS)
        ]
    for task in shown.tolist():
        start, finish = float(run.times.start[task]), float(run.times.finish[task])
        events.append(
            {"ph": "X", "pid": int(rank[task]), "tid": int(kind[task]), "name": run.name(task),
             "cat": TASK_KINDS[int(kind[task])], "ts": start * 1e6, "dur": (finish - start) * 1e6,
             "args": {"task": task}}
        )  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"title": title}}


def write_run_trace(run: Run, path: Path, most: int = MOST) -> None:
    """The events in a file; compressed, if its name ends in .gz."""
    data = json.dumps(run_trace(run, most), separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
