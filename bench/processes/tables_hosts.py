"""A process of bench/tables_hosts.py on one of two hosts: it has the rows, serves from them, or reads them from afar.

Orders come as lines of JSON on standard input, answers go out the same way. Times are of the monotonic clock, which the
processes of one machine share.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from openshelf import Space, Table
from openshelf.tables import SGD, Uniform
from traffic.recsys_ids import KINDS

DIM, BATCH, LENGTH = 128, 65_536, 16
STAMPED = 7  # the row that holds the time of its last change


class Process:
    def __init__(self) -> None:
        self.space: Any = None
        self.table: Any = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, url: str, room: str) -> None:
        self.space = Space.open(url, contribute=room)

    def create(self, rows: int) -> None:
        init, optimizer = Uniform(-1, 1, 1), SGD(0.01)
        self.table = Table.create(
            self.space, "t", rows=rows, dim=DIM, init=init, optimizer=optimizer, hosts=[0], sums_at_owner=False
        )

    def find(self) -> None:
        self.table = Table.open(self.space, "t", sums_at_owner=False)

    def train(self, every_s: float, count: int) -> None:
        """Changes rows at random from now on, and the stamped one three times a second."""
        self._stop.clear()

        def work() -> None:
            chance, number = np.random.default_rng(5), 0
            while not self._stop.wait(every_s):
                number += 1
                ids = chance.integers(STAMPED + 1, self.table.rows, count)
                self.table.update(ids, np.ones((count, DIM), np.float32))
                if number % max(1, int(0.3 / every_s)) == 0:
                    self.table.write([STAMPED], np.full((1, DIM), time.monotonic() % 10_000))

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def rest(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def delays(self, seconds: float) -> list[float]:
        """How old the stamped row is whenever it is first seen to have changed."""
        end, found, before = time.monotonic() + seconds, [], None
        while time.monotonic() < end:
            now = float(self.table.lookup([STAMPED])[0, 0])
            if before is not None and now != before:
                found.append(time.monotonic() % 10_000 - now)
            before = now
            time.sleep(0.005)
        return found

    def one_by_one(self, count: int) -> float:
        ids = np.random.default_rng(1).integers(0, self.table.rows, count)
        begun = time.perf_counter()
        for one in ids:
            self.table.lookup([one])
        return count / (time.perf_counter() - begun)

    def together(self, rounds: int) -> float:
        ids = np.random.default_rng(2).permutation(self.table.rows)[:BATCH]
        out = np.empty((BATCH, DIM), np.float32)
        self.table.lookup(ids, out=out)
        best = 0.0
        for _ in range(rounds):
            begun = time.perf_counter()
            self.table.lookup(ids, out=out)
            best = max(best, BATCH / (time.perf_counter() - begun))
        return best

    def _stream(self, kind: str, count: int) -> Any:
        return KINDS[kind](self.table.rows, count, 3)

    def hot(self, kind: str, count: int) -> tuple[float, float]:
        """Copies of a tenth of the rows that are touched: what they serve of the second half, and what the tenth that
        is best for that half would."""
        ids = self._stream(kind, count)
        room = len(np.unique(ids)) // 10
        self.table.keep_copies(room, fresh_s=60.0)
        half = count // 2
        for first in range(0, count, 8192):
            if first == half // 8192 * 8192:
                before = self.table.stat()
            self.table.lookup(ids[first : first + 8192])
        after = self.table.stat()
        scored = ids[half // 8192 * 8192 :]
        served = (after["copied_ids"] - before["copied_ids"]) / len(scored)
        uses = np.sort(np.unique(scored, return_counts=True)[1])[::-1]
        self.table.keep_copies(0)
        return served, float(uses[:room].sum() / len(scored))

    def early(self, kind: str, batches: int) -> float:
        """The share of look-ups that are local when the next batch's ids are given while this one is computed with."""
        ids = self._stream(kind, (batches + 1) * BATCH)
        offsets, part = np.arange(0, BATCH, LENGTH), [ids[at * BATCH : (at + 1) * BATCH] for at in range(batches + 1)]
        begun = time.perf_counter()
        self.table.bag(part[0], offsets)
        think_s = 1.5 * (time.perf_counter() - begun)
        self.table.keep_copies(len(np.unique(ids)) // 10, fresh_s=60.0)
        self.table.prefetch(part[0])
        time.sleep(2 * think_s)
        before = self.table.stat()
        for at in range(batches):
            self.table.prefetch(part[at + 1])
            self.table.bag(part[at], offsets)
            time.sleep(think_s)  # what a model computes
        after = self.table.stat()
        self.table.keep_copies(0)
        far = sum(after[name] - before[name] for name in ("fetched_ids", "waited_ids"))
        return float(1 - far / (batches * BATCH))

    def warm(self, fresh_s: float) -> None:
        """Copies of a popular tenth, which is what `speed` reads, and the stamped row."""
        self.table.keep_copies(20_000, fresh_s=fresh_s)
        ids = np.random.default_rng(4).integers(0, 15_000, BATCH)
        for _ in range(3):
            self.table.lookup(ids)
            self.table.lookup([STAMPED])

    def speed(self, seconds: float) -> float:
        ids = np.random.default_rng(4).integers(0, 15_000, BATCH)
        offsets, out = np.arange(0, BATCH, LENGTH), np.empty((BATCH // LENGTH, DIM), np.float32)
        begun, done = time.perf_counter(), 0
        while time.perf_counter() < begun + seconds:
            self.table.bag(ids, offsets, out=out, threads=1)
            done += 1
        return done / (time.perf_counter() - begun)


if __name__ == "__main__":
    process = Process()
    for line in sys.stdin:
        name, *given = json.loads(line)
        print(json.dumps(getattr(process, name)(*given)), flush=True)
