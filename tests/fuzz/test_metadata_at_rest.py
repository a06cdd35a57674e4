"""Damaged files of a closed space: opening it is an error that says so, or all arrays are there."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

from openshelf import Space
from tests.fuzz import cases

CASES = int(os.environ.get("OPENSHELF_FUZZ_CASES", "8000"))
FIRST = int(os.environ.get("OPENSHELF_SEED", "0"))
WATCHDOG = 60.0  # for one case
WORKERS = 2


def _work(directory: str, seeds: range, pipe: Connection) -> None:
    counts = cases.run(directory, seeds, pipe.send)
    pipe.send(counts)


def prepare(directory: str, sealed: bool) -> None:
    """In a process of its own, which leaves the space in order or not."""
    Space.create(Path(directory).name, "16MiB", reserve="32GiB").close()
    if sealed:
        cases.fill(directory).close()
    else:
        cases.fill_and_die(directory)


class Run:
    """One worker process with its part of the cases."""

    def __init__(self, directory: Path, sealed: bool, seeds: range) -> None:
        context: Any = multiprocessing.get_context("spawn")
        maker = context.Process(target=prepare, args=(str(directory), sealed))
        maker.start()
        maker.join()
        assert maker.exitcode == 0
        self.pipe, there = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(str(directory), seeds, there))
        self.process.start()
        there.close()
        self.case = "none"
        self.wrong: list[str] = []
        self.counts: dict[str, int] | None = None

    def listen(self) -> None:
        while self.counts is None:
            if not wait([self.pipe], WATCHDOG):
                self.wrong.append(f"hangs in case {self.case}")
                self.process.kill()
                return
            try:
                said = self.pipe.recv()
            except EOFError:
                self.process.join()
                self.wrong.append(f"ended with {self.process.exitcode} in case {self.case}")
                return
            if isinstance(said, dict):
                self.counts = said
            elif said.startswith("WRONG"):
                self.wrong.append(said)
            else:
                self.case = said


@pytest.mark.serial
@pytest.mark.parametrize("sealed", [True, False], ids=["closed in order", "all killed"])
def test_damaged_space_is_refused_or_right(home: Path, sealed: bool) -> None:
    share = CASES // 2 // WORKERS
    runs = [Run(home / f"fuzz{n}", sealed, range(FIRST + n * share, FIRST + (n + 1) * share)) for n in range(WORKERS)]
    listeners = [threading.Thread(target=run.listen) for run in runs]
    for listener in listeners:
        listener.start()
    for listener in listeners:
        listener.join()
    for run in runs:
        run.process.join()
    assert [wrong for run in runs for wrong in run.wrong] == []
    total = {kind: sum((run.counts or {}).get(kind, 0) for run in runs) for kind in ("right", "refused")}
    assert sum(total.values()) == 2 * share
    assert min(total.values()) > share / 20  # damage that is never, or always, noticed tests nothing
