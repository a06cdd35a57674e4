"""One table object that several threads of a process use while it grows, and while the process forks."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space, Table
from openshelf.errors import BadInput
from openshelf.tables import Uniform
from tests.processes import Peer


@contextlib.contextmanager
def beside(work: Callable[[], object], threads: int = 2) -> Iterator[None]:
    """Threads that do it again and again meanwhile."""
    end = threading.Event()

    def again() -> None:
        while not end.is_set():
            work()

    running = [threading.Thread(target=again) for _ in range(threads)]
    for one in running:
        one.start()
    try:
        yield
    finally:
        end.set()
        for one in running:
            one.join()


def test_a_part_is_added_once_though_another_thread_sees_it_first(space: Space) -> None:
    table = Table.create(space, "t", rows=16, dim=4, init=Uniform(-1, 1, seed=7))
    other = Table.open(space, "t")
    with beside(lambda: table.prefetch([0])):
        for _ in range(150):
            table.grow(table.rows // 16 + 1)
    firsts = [first for first, _, _ in table._core.parts()]
    assert firsts == sorted(set(firsts))
    other.grow(other.rows)
    ids = np.arange(other.rows)
    assert np.array_equal(table.lookup(ids), other.lookup(ids))


def test_results_do_not_overlap_what_is_read(space: Space) -> None:
    table = Table.create(space, "t", rows=1000, dim=64)
    out = np.zeros((4096, 64), np.float32)
    ids = out.reshape(-1)[:8192].view(np.int64)
    with pytest.raises(BadInput, match="overlaps"):
        table.lookup(ids, out=out)


def _fork_beside_threads(state: dict[str, Any], forks: int) -> None:
    with Space.create("forks", "16MiB") as space:
        table = Table.create(space, "t", rows=10, dim=4)
        first = np.zeros(1, np.int64)
        with beside(lambda: table.lookup(first)):
            for _ in range(forks):
                child = os.fork()
                if not child:
                    table.lookup(first)
                    os._exit(0)
                end = time.monotonic() + 60
                while not os.waitpid(child, os.WNOHANG)[0]:
                    if time.monotonic() > end:
                        os.kill(child, 9)
                        raise AssertionError("a child hangs")
                    time.sleep(0.0005)


def test_a_child_is_forked_while_threads_read(home: Path, peer: Peer) -> None:
    peer.call(_fork_beside_threads, 150)
