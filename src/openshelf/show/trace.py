"""A plan as a trace: the events that Perfetto (ui.perfetto.dev) and chrome://tracing read, one row for each lane.

Times are predicted ones, in microseconds, as the format has it. The arena is a counter with one series for each kind of
storage.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openshelf.offload import Plan

ROWS = ("compute", "wait", "flash_read", "flash_write", "dram_read", "dram_write")
_PROCESS = 1


def kind_of(plan: Plan, storage: int | None) -> str:
    """What takes room in an arena: the kind of a storage, or `workspace`."""
    return "workspace" if storage is None else plan.program.storages[storage].kind


def plan_trace(plan: Plan) -> dict[str, Any]:
    """The events, as plain values for `json`."""
    times = plan.timeline()
    named = [("process_name", 0, "plan: predicted")]
    named += [("thread_name", row, lane.replace("_", " ")) for row, lane in enumerate(ROWS, 1)]
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": _PROCESS, "tid": row, "name": what, "args": {"name": name}} for what, row, name in named
    ]
    for span in times.spans:
        if span.lane == "compute":
            op = plan.program.ops[span.number]
            about: dict[str, Any] = {"operator": op.index, "phase": op.phase, "where": op.where}
        else:
            storage = plan.program.storages[span.number]
            about = {"storage": storage.index, "kind": storage.kind, "bytes": storage.nbytes}
        events.append(
            {"ph": "X", "pid": _PROCESS, "tid": ROWS.index(span.lane) + 1, "name": span.name, "cat": span.lane,
             "ts": span.start * 1e6, "dur": (span.end - span.start) * 1e6, "args": about}
        )  # fmt: skip
    level = dict.fromkeys((kind_of(plan, change.storage) for change in times.changes), 0)
    for change in sorted(times.changes, key=lambda change: change.when):
        level[kind_of(plan, change.storage)] += change.nbytes
        events.append(
            {"ph": "C", "pid": _PROCESS, "tid": 0, "name": "arena", "ts": change.when * 1e6, "args": dict(level)}
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_trace(plan: Plan, path: Path) -> None:
    """The events in a file; compressed, if its name ends in .gz."""
    data = json.dumps(plan_trace(plan), separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
