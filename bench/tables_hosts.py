"""Tables over two hosts, and dynamic ids.

Host a has all rows; a process on host b reads them. Both are network namespaces joined by a cable, or ports of the
loopback where namespaces are not permitted. Reads of many rows are compared with one read at a time; copies of popular
rows with the best fixed choice; freshness is the age of a change when a reader first sees it. Dynamic ids are compared
with rows of a plain table, on one core.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kit.side_by_side import Report, Row, arguments
from openshelf import Space, Table
from openshelf.errors import NotPermitted
from openshelf.show.tour import Host, TwoHosts, in_namespaces, on_loopback
from openshelf.tables import SGD, DynamicIds, Uniform
from traffic.recsys_ids import KINDS

PROCESS = str(Path(__file__).parent / "processes" / "tables_hosts.py")
DIM, BATCH, LENGTH, BATCHES = 128, 65_536, 16, 8
SGD_ONE = SGD(1.0)


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


def hosts(report: Report, quick: bool) -> None:
    rows = 300_000
    with tempfile.TemporaryDirectory(dir="/dev/shm") as home, two_hosts(Path(home)) as two:
        owner, serving, reader = There(two.a), There(two.a), There(two.b)
        try:
            for process, host, room in ((owner, two.a, "256MiB"), (serving, two.a, "256MiB"), (reader, two.b, "16MiB")):
                process.call("open", host.url("bench"), room)
            owner.call("create", rows)
            serving.call("find")
            reader.call("find")
            _reads(report, reader, two.link, quick)
            _fresh(report, owner, serving, reader, quick)
        finally:
            for process in (reader, serving, owner):
                process.end()


def _reads(report: Report, reader: There, link: str, quick: bool) -> None:
    one = reader.call("one_by_one", 300 if quick else 2000)
    many = reader.call("together", 3 if quick else 10)
    note = f"{one:,.0f} and {many:,.0f} rows/s of 512 bytes over {link}"
    report.add(
        Row(
            "tables.pipelined",
            "65,536 rows a call",
            many / one,
            "x",
            "one at a time",
            None,
            None,
            bar=">= 10",
            note=note,
        )
    )
    found = []
    for kind in ("meta", "zipf"):
        served, best = reader.call("hot", kind, 1_000_000)
        note = f"{served:.3f} of look-ups, the best fixed tenth {best:.3f}"
        found.append(Row("tables.hot", f"ids {kind}", served / best, "x", "best fixed tenth", None, None, note=note))
    _worst(report, found, ">= 0.9")
    found = []
    for kind in ("meta", "zipf"):
        share = reader.call("early", kind, 6 if quick else 12)
        found.append(Row("tables.early", f"next ids given, ids {kind}", share, "share", "", None, None))
    _worst(report, found, ">= 0.97")


def _worst(report: Report, rows: list[Row], bar: str) -> None:
    worst = min(rows, key=lambda row: row.value or 0)
    name = worst.id
    for row in rows:
        report.add(
            Row(
                f"{name}.{row.case.rsplit(' ', 1)[1]}",
                row.case,
                row.value,
                row.unit,
                row.peer,
                None,
                None,
                note=row.note,
            )
        )
    report.add(
        Row(
            name,
            f"the worst case: {worst.case}",
            worst.value,
            worst.unit,
            worst.peer,
            None,
            None,
            bar=bar,
            note=worst.note,
        )
    )


def _fresh(report: Report, owner: There, serving: There, reader: There, quick: bool) -> None:
    """Windows with and without updates in turn; then the age of changes, on the host of the rows and on the other."""
    window, rounds = (0.5, 3) if quick else (2.0, 6)
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
        "host": serving.call("delays", 4.0 if quick else 12.0),
        "hosts": reader.call("delays", 6.0 if quick else 20.0),
    }
    owner.call("rest")
    for name, bar in (("host", "<= 1"), ("hosts", "<= 5")):
        ratio = float(np.median([busy / still for still, busy in speeds[name]]))
        note = f"read speed {ratio:.3f} of that without updates (1,000 rows/s updated); {len(ages[name])} changes seen"
        case = "another process of the host" if name == "host" else "a process of another host, from copies"
        worst = max(ages[name], default=float("nan"))
        report.add(Row(f"tables.fresh_{name}_s", case, worst, "s", "", None, None, bar=bar, note=note))
        report.add(Row(f"tables.fresh_{name}_speed", case, ratio, "x", "no updates", None, None, bar=">= 0.95"))


def dynamic(report: Report, rows: int, pairs: int) -> None:
    """Keys of any size against rows of a plain table: bags of 16 rows, processor time, interleaved."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found = []
    with Space.temporary(2 * rows * 4 * DIM + (64 << 20) + 32 * rows) as space:
        plain = Table.create(space, "plain", rows=rows, dim=DIM, init=Uniform(-1, 1, 1))
        keyed = Table.create(space, "keyed", rows=rows, dim=DIM, keys=DynamicIds(admit_after=1))
        for first in range(0, rows, 1 << 16):
            ids = np.arange(first, min(rows, first + (1 << 16)))
            keyed.write(_keys(ids), plain.lookup(ids))
        for kind in KINDS:
            offsets, out = np.arange(0, BATCH, LENGTH), np.empty((BATCH // LENGTH, DIM), np.float32)
            batches = [KINDS[kind](rows, BATCH, seed) for seed in range(BATCHES)]
            times: dict[str, list[float]] = {"plain": [], "keyed": []}
            for turn in range(pairs):
                ids = batches[turn % BATCHES]
                for name, table, wanted in (("plain", plain, ids), ("keyed", keyed, _keys(ids))):
                    begun = time.thread_time()
                    table.bag(wanted, offsets, out=out, threads=1)
                    times[name].append(time.thread_time() - begun)
            ratio = float(np.median(times["keyed"]) / np.median(times["plain"]))
            found.append(Row("tables.dynamic", f"ids {kind}", ratio, "x", "dense ids", None, None))
        facts = keyed.stat()
    for row in found:
        report.add(
            Row(f"tables.dynamic.{row.case.removeprefix('ids ')}", row.case, row.value, "x", row.peer, None, None)
        )
    worst = max(found, key=lambda row: row.value or 0)
    note = f"{facts['keys']:,} of {facts['room']:,} places have a key"
    report.add(
        Row(
            "tables.dynamic",
            f"the worst case: {worst.case}",
            worst.value,
            "x",
            worst.peer,
            None,
            None,
            bar="<= 1.3",
            note=note,
        )
    )


def _keys(ids: Any) -> Any:
    return (ids.astype(np.int64) * 0x5851F42D4C957F2D) ^ 0x1234_5678_9ABC


def day(report: Report, hours: int) -> None:
    """Keys that drift through a full table: each hour a tenth of what is wanted is new."""
    with Space.temporary(64 << 20) as space:
        table = Table.create(space, "day", rows=20_000, dim=16, keys=DynamicIds(admit_after=2))
        free, chance = space.describe()["free"], np.random.default_rng(0)
        for hour in range(hours):
            for _ in range(40):
                keys = np.minimum(chance.zipf(1.2, 8192), 30_000) + 3_000 * hour
                table.update(keys, np.ones((8192, 16), np.float32), SGD_ONE)
        facts, grown = table.stat(), free - space.describe()["free"]
    note = ", ".join(f"{facts[name]:,} {name}" for name in ("admitted", "evicted", "refused", "keys"))
    report.add(
        Row(
            "tables.day",
            f"{hours} hours of drifting keys: bytes that the table grew",
            grown,
            "bytes",
            "",
            None,
            None,
            bar="<= 0",
            note=note,
        )
    )


def main() -> None:
    args = arguments(__doc__ or "")
    report = Report("Tables over two hosts, and dynamic ids")
    hosts(report, args.quick)
    day(report, 24)
    dynamic(report, 200_000 if args.quick else 2_000_000, 15 if args.quick else 40)
    report.finish(args.json)


if __name__ == "__main__":
    main()
