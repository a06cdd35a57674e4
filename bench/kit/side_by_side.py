"""What all benchmarks share: interleaved pairs, tables, the JSON form, the machine's name.

Machines are noisy, so nothing is compared across runs: ours and the peer run in turn within one run, and the ratio is
of the best of each. `spread` is the same ratio with ours on both sides (A/A): a difference below it means nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from openshelf.space import format_size


@dataclass
class Row:
    id: str
    case: str
    value: float | None
    unit: str
    peer: str
    ratio: float | None
    spread: float | None
    median: float | None = None
    p99: float | None = None
    bar: str = ""
    note: str = ""


@dataclass
class Report:
    title: str
    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        self.rows.append(row)

    def finish(self, json_path: str | None) -> None:
        facts = machine()
        table = Table(
            title=f"{self.title}\n{facts['cpu']}, {facts['cores']} cores, {facts['memory']}, Linux {facts['kernel']}"
        )
        for column in ("id", "case", "value", "unit", "bar", "median", "p99", "peer", "ratio", "A/A", "note"):
            table.add_column(
                column, justify="right" if column in ("value", "median", "p99", "ratio", "A/A") else "left"
            )
        for row in self.rows:
            table.add_row(
                row.id, row.case, _short(row.value), row.unit, row.bar, _short(row.median), _short(row.p99),
                row.peer, _short(row.ratio), _short(row.spread), row.note,
            )  # fmt: skip
        Console(width=None if os.isatty(1) else 200).print(table)
        if json_path:
            Path(json_path).write_text(
                json.dumps({"machine": facts, "rows": [asdict(row) for row in self.rows]}, indent=1)
            )


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo").read_text()
    cpu = next(
        (line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")), "unknown"
    )
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    huge = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory": format_size(pages * size),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "shmem_huge_pages": huge.read_text().strip() if huge.exists() else "unknown",
    }


def arguments(
    description: str, *, with_peers: bool = False, with_seeds: bool = False, with_data: bool = False,
    cases: Sequence[str] = (),
) -> argparse.Namespace:  # fmt: skip
    parser = argparse.ArgumentParser(description=description)
    if cases:
        parser.add_argument("--case", nargs="+", choices=cases, help="these only")
    if with_data:
        parser.add_argument("--data", metavar="DIRECTORY", help="where the measured tables are")
    if with_peers:
        parser.add_argument("--no-peers", action="store_true", help="ours alone")
    if with_seeds:
        parser.add_argument("--seed", type=int, nargs="+", help="those of an earlier run, instead of new ones")
    parser.add_argument("--quick", action="store_true", help="under 50 s")
    parser.add_argument("--json", metavar="PATH", help="also write the rows as JSON")
    return parser.parse_args()


@contextmanager
def one_core_taken() -> Iterator[None]:
    """Another program computes on the last core meanwhile."""
    last = max(os.sched_getaffinity(0))
    code = f"import os\nos.sched_setaffinity(0, {{{last}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as busy:
        try:
            yield
        finally:
            busy.kill()


def timed(work: Callable[[], object], times: int = 1) -> float:
    started = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - started) / times


def paired(
    ours: Callable[[], float], peer: Callable[[], float], pairs: int = 15
) -> tuple[list[float], list[float], list[float]]:
    """Seconds of ours, of the peer, and of ours again, interleaved. The order turns each round."""
    sides: tuple[list[float], list[float], list[float]] = ([], [], [])
    calls = (ours, peer, ours)
    for call in calls:
        call()  # warm
    for round_number in range(pairs):
        for at in range(3):
            side = (at + round_number) % 3
            sides[side].append(calls[side]())
    return sides


def compare(
    id: str, case: str, peer_name: str, ours: Callable[[], float], peer: Callable[[], float], *,
    pairs: int = 15, bar: str = "", note: str = "",
) -> Row:  # fmt: skip
    """How fast ours is relative to the peer: 1 is equal, 2 is twice as fast."""
    mine, other, again = paired(ours, peer, pairs)
    ratio = min(other) / min(mine + again)
    return Row(
        id, case, ratio, "x", peer_name, ratio, min(again) / min(mine), statistics.median(mine), p99(mine), bar, note
    )  # fmt: skip


def p99(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
