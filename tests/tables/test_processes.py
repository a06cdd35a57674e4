"""Several processes and one table: what one changes the others read, rows are whole, and kill -9 leaves pairs whole."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import numpy as np

from openshelf import Space, Table
from openshelf.tables import Adagrad, Uniform
from tests.processes import WATCHDOG, Peer, fork_server
from tests.tables import worker
from tests.tables.worker import DIM, ROWS


def test_an_update_is_read_by_another_process_at_once(space: Space, peer: Peer) -> None:
    table = Table.create(space, "t", rows=10, dim=8, init=Uniform(0, 1, 1))
    assert peer.call(worker.open_table, "shelf", "t") == 10
    before = table.lookup(range(10))
    peer.call(worker.update, [3, 3, 4], 0.5)
    expected = before.copy()
    expected[3] -= 1.0
    expected[4] -= 0.5
    assert np.allclose(table.lookup(range(10)), expected)
    table.write([9], np.full((1, 8), 5.0))
    assert np.array_equal(peer.call(worker.lookup, [9]), np.full((1, 8), 5.0))


def test_a_table_that_another_process_grows_has_the_new_rows_and_the_old_addresses(space: Space, peer: Peer) -> None:
    table = Table.create(space, "t", rows=10, dim=8, init=Uniform(0, 1, 1))
    peer.call(worker.open_table, "shelf", "t")
    before, parts = table.lookup(range(10)), table._core.parts()
    peer.call(worker.grow, 90)
    assert table.rows == 100
    assert np.array_equal(table.lookup(range(10)), before)
    assert table._core.parts()[: len(parts)] == parts
    assert np.array_equal(table.lookup([99]), peer.call(worker.lookup, [99]))


def test_readers_go_on_while_a_table_grows(space: Space) -> None:
    table = Table.create(space, "t", rows=100, dim=8, init=Uniform(0, 1, 1))
    first, failed, done = table.lookup(range(100)), [], threading.Event()

    def read() -> None:
        chance = np.random.default_rng(0)
        while not done.is_set():
            rows = table.rows
            ids = chance.integers(0, rows, 50)
            if (
                not np.array_equal(table.lookup(ids[ids < 100]), first[ids[ids < 100]])
                or not table.lookup(ids).any(1).all()
            ):
                failed.append(rows)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(60):
        table.grow(37)
    done.set()
    reader.join()
    assert not failed
    assert table.rows == 100 + 60 * 37
    assert table.stat()["parts"] < 50  # steps that are small share one


def test_a_consistent_reader_sees_whole_rows_while_another_process_writes(space: Space, peer: Peer) -> None:
    table = Table.create(space, "t", rows=ROWS, dim=DIM)
    peer.call(worker.open_table, "shelf", "t")
    peer.start(worker.write_for, 1.0, 1)
    ids, reads = np.arange(ROWS), 0
    long = np.tile(ids, 4)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        rows = table.lookup(ids, consistent=True)
        assert (rows == rows[:, :1]).all()
        bags = table.bag(ids, np.arange(0, ROWS, 8), "max", consistent=True)
        assert (bags == bags[:, :1]).all()
        bags = table.bag(long, [0, 100], consistent=True)  # too long to be read at a go
        assert (bags == bags[:, :1]).all()
        reads += 1
    assert peer.finish() > 0
    assert reads > 0
    assert table.stat()["interrupted"] == 0


def known_pairs(steps: int) -> dict[float, float]:
    """The row that goes with each state, after any number of steps of the same gradient."""
    with Space.temporary("1MiB") as space:
        table = Table.create(space, "t", rows=1, dim=1, optimizer=Adagrad(0.5))
        found = {0.0: 0.0}
        for _ in range(steps):
            table.update([0], [[1.0]])
            found[float(table.states([0])[0, 0])] = float(table.lookup([0])[0, 0])
    return found


def test_killed_trainers_leave_each_row_with_its_state(home: Path) -> None:
    chance, context = random.Random(1), fork_server()
    kills, pairs = 0, {0.0: 0.0}
    with Space.create("crash", "8MiB") as space:
        table = Table.create(space, "t", rows=ROWS, dim=DIM, optimizer=Adagrad(0.5))
        while kills < 24:
            before, trainers = table.stat()["steps"], []
            for _ in range(2):
                arguments = (str(home), chance.getrandbits(32))
                trainers.append(context.Process(target=worker.train, args=arguments, daemon=True))
                trainers[-1].start()
            end = time.monotonic() + WATCHDOG
            while table.stat()["steps"] < before + 4:
                assert time.monotonic() < end, "the trainers do not begin"
                time.sleep(0.001)
            time.sleep(chance.random() * 0.02)
            for trainer in trainers:
                trainer.kill()
                trainer.join(WATCHDOG)
                kills += 1
            rows, states = table.lookup(range(ROWS), consistent=True), table.states(range(ROWS))
            if (most := float(states.max())) >= len(pairs):
                pairs = known_pairs(int(most) + 2000)
            assert (states == states[:, :1]).all()
            assert (rows == rows[:, :1]).all()
            assert [pairs[float(state)] for state in states[:, 0]] == rows[:, 0].tolist()
        # Two threads each, and a kill need not meet a batch. Native tests kill in the midst of one.
        assert Table.open(space, "t").stat()["interrupted"] <= 2 * kills
