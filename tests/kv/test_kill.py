"""kill -9 of workers while they match, read, put and evict: no wrong byte, nothing left behind, nothing lost."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from openshelf import KVPool, Space
from tests.kv.prompts import LAYOUT, assert_sound, check_hit, look, put, small_pool, tokens_of
from tests.kv.worker import OK, PATHS, SYSTEM, churn, path_of, store
from tests.processes import fork_server

WORKERS = 3


def run(home: Path, target: Callable[..., None], kills: int, seed: int, check: Callable[[], None]) -> None:
    """Lets workers work, kills one after another at random moments and starts the next."""
    chance, verdict = random.Random(seed), home / "verdict"
    context = fork_server()

    def start() -> Any:
        process = context.Process(target=target, args=(str(home), chance.getrandbits(32), str(verdict)), daemon=True)
        process.start()
        return process

    workers = [start() for _ in range(WORKERS)]
    try:
        time.sleep(0.3)
        for number in range(kills):
            time.sleep(chance.random() * 0.03)
            at = chance.randrange(WORKERS)
            os.kill(workers[at].pid, signal.SIGKILL)
            workers[at].join(30)
            assert workers[at].exitcode == -signal.SIGKILL, verdict.read_text()
            workers[at] = start()
            if number % 10 == 9:
                check()
    finally:
        for worker in workers:
            worker.kill()
            worker.join(30)
    assert not verdict.exists(), verdict.read_text()


def test_killed_workers_leave_no_wrong_block_pin_or_slot(home: Path) -> None:
    with Space.create("crash", "16MiB") as space, small_pool(space, 60) as pool:
        put(pool, SYSTEM)
        pool.pin(tokens_of(SYSTEM))
        held_path = path_of(1)
        put(pool, held_path)
        held = pool.match(tokens_of(held_path))
        assert held.blocks == len(held_path)

        def check() -> None:
            check_hit(held, held_path)
            assert look(pool, SYSTEM) == len(SYSTEM)

        run(home, churn, 100, 1, check)
        check()
        assert pool.stats()["evicted_blocks"] > 100  # it was full
        assert_sound(pool)
        held.release()
        pool.unpin(tokens_of(SYSTEM))
        pool.clear()
        assert pool.stats()["blocks"] == 0  # the dead hold nothing
        assert all(member["alive"] for member in space.describe()["members"])
        assert not any(count for name, count in space.check().items() if name not in ("arrays", "bytes"))


def test_killed_workers_lose_nothing_that_was_published(home: Path) -> None:
    with Space.create("crash", "16MiB") as space, small_pool(space, 3000) as pool:
        noted = space.zeros("noted", PATHS, "uint8").numpy()
        put(pool, SYSTEM)

        def check() -> None:
            for number in np.flatnonzero(noted == OK):
                path = path_of(int(number))
                assert look(pool, path) == len(path), f"prompt {number} is lost"

        run(home, store, 100, 2, check)
        check()
        assert np.count_nonzero(noted) > 50
        assert_sound(pool)


def test_a_pool_that_everybody_died_in_is_whole(home: Path) -> None:
    with Space.create("crash", "16MiB") as space, small_pool(space, 60) as pool:
        put(pool, SYSTEM)
        pool.pin(tokens_of(SYSTEM))
    for round_ in range(3):
        context = fork_server()
        workers = [context.Process(target=churn, args=(str(home), round_ * 10 + n, str(home / "v"))) for n in range(3)]
        for worker in workers:
            worker.start()
        time.sleep(0.4)
        for worker in workers:
            worker.kill()
            worker.join(30)
        with Space.open("crash") as space, KVPool(space, LAYOUT, 4, verify=True) as pool:
            assert look(pool, SYSTEM) == len(SYSTEM)
            assert_sound(pool)
    assert not (home / "v").exists(), (home / "v").read_text()
