"""Rows on another host. Host a has all rows; a process on host b reads them.

Both are network namespaces joined by a cable, or ports of the loopback where namespaces are not permitted, which the
note says. Reads of many rows are compared with one read at a time; copies of popular rows with the best fixed choice;
freshness is the age of a change when a reader first sees it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kit.side_by_side import Row
from lookups.asked import Asked, with_worst
from openshelf.errors import NotPermitted
from openshelf.show.tour import Host, TwoHosts, in_namespaces, on_loopback

PROCESS = str(Path(__file__).parents[1] / "processes" / "tables_hosts.py")


class There:
    """A process on a host."""

    def __init__(self, host: Host) -> None:
        command = [*host.enter, sys.executable, PROCESS]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=host.environment
        )

    def call(self, *order: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def two_hosts(home: Path) -> Iterator[TwoHosts]:
    with contextlib.ExitStack() as stack:
        try:
            two = stack.enter_context(in_namespaces(home))
        except NotPermitted:
            two = stack.enter_context(on_loopback(home))
        yield two


def rows(asked: Asked) -> Iterator[Row]:
    count = 300_000
    with tempfile.TemporaryDirectory(dir="/dev/shm") as home, two_hosts(Path(home)) as two:
        owner, serving, reader = There(two.a), There(two.a), There(two.b)
        try:
            for process, host, room in ((owner, two.a, "256MiB"), (serving, two.a, "256MiB"), (reader, two.b, "16MiB")):
                process.call("open", host.url("bench"), room)
            owner.call("create", count)
            serving.call("find")
            reader.call("find")
            yield from _reads(reader, two.link, asked.quick)
            yield from _fresh(owner, serving, reader, asked.quick)
        finally:
            for process in (reader, serving, owner):
                process.end()


def _reads(reader: There, link: str, quick: bool) -> Iterator[Row]:
    one = reader.call("one_by_one", 300 if quick else 2000)
    many = reader.call("together", 3 if quick else 10)
    note = f"{one:,.0f} and {many:,.0f} rows/s of 512 bytes over {link}"
    case = "65,536 rows a call"
    yield Row("tables.pipelined", case, many / one, "x", "one at a time", None, None, bar=">= 10", note=note)
    found = []
    for kind in ("meta", "zipf"):
        served, best = reader.call("hot", kind, 1_000_000)
        note = f"{served:.3f} of look-ups, the best fixed tenth {best:.3f}"
        found.append(Row("tables.hot", f"ids {kind}", served / best, "x", "best fixed tenth", None, None, note=note))
    yield from with_worst(found, ">= 0.9")
    found = []
    for kind in ("meta", "zipf"):
        share, note = reader.call("early", kind, 6 if quick else 12), "the next batch's ids are given"
        found.append(Row("tables.early", f"ids {kind}", share, "share", "", None, None, note=note))
    yield from with_worst(found, ">= 0.97")


def _fresh(owner: There, serving: There, reader: There, quick: bool) -> Iterator[Row]:
    """Windows with and without updates in turn; then the age of changes, on the host of the rows and on the other."""
    window, rounds = (0.4, 3) if quick else (2.0, 6)
    speeds: dict[str, list[tuple[float, float]]] = {"host": [], "hosts": []}
    reader.call("warm", 2.0)
    for _ in range(rounds):
        for name, process in (("host", serving), ("hosts", reader)):
            still = process.call("speed", window)
            owner.call("train", 0.02, 20)
            speeds[name].append((still, process.call("speed", window)))
            owner.call("rest")
    owner.call("train", 0.02, 20)
    ages = {
        "host": serving.call("delays", 2.0 if quick else 12.0),
        "hosts": reader.call("delays", 3.0 if quick else 20.0),
    }
    owner.call("rest")
    for name, bar in (("host", "<= 1"), ("hosts", "<= 5")):
        ratio = float(np.median([busy / still for still, busy in speeds[name]]))
        note = f"read speed {ratio:.3f} of that without updates (1,000 rows/s updated); {len(ages[name])} changes seen"
        case = "another process of the host" if name == "host" else "a process of another host, from copies"
        worst = max(ages[name], default=float("nan"))
        yield Row(f"tables.fresh_{name}_s", case, worst, "s", "", None, None, bar=bar, note=note)
        yield Row(f"tables.fresh_{name}_speed", case, ratio, "x", "no updates", None, None, bar=">= 0.95")
