"""Keepers and processes of a space larger than memory are killed: nothing is lost, older than it was, or stuck."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from openshelf import Space
from tests.processes import fork_server
from tests.space.tiers import kill_worker
from tests.space.tiers.conftest import FORCED, with_faults
from tests.space.tiers.kill_worker import ARRAYS, ROUND, UNITS, WORKERS, check_array, check_counters
from tests.space.tiers.shelves import MIB, UNIT, demoted, keeper, kill_keeper, make, tiers, wait_until, words

SOAK = os.environ.get("OPENSHELF_SOAK") == "1"
SEED = int(os.environ.get("OPENSHELF_SEED", "1"))
WATCHDOG = 60.0


class Harness:
    """Workers, one of them without faults, and who kills them."""

    def __init__(self, home: Path, disk: Path, seed: int) -> None:
        self.home, self.random, self.told = home, random.Random(seed), disk / "told"
        self.context = fork_server()
        self.space = make(disk, "kill")
        for name in ("begun", "acked"):
            self.space.zeros(name, (WORKERS, ARRAYS + 1), "int64")
        self.space.zeros("counters", UNITS * UNIT // 8, "uint64")
        self.stop = self.space.zeros("stop", 1 + WORKERS, "int64").numpy()
        self.workers: list[Any] = [None] * WORKERS

    def start(self, slot: int) -> None:
        plain = slot == WORKERS - 1 and FORCED == "on"  # a keeper that it starts would not be one of an older kernel
        faults = "off" if plain else FORCED
        arguments = (str(self.home), slot, self.random.getrandbits(32), faults, str(self.told))
        self.workers[slot] = self.context.Process(target=kill_worker.work, args=arguments)
        self.workers[slot].start()

    def said(self) -> str:
        return self.told.read_text() if self.told.exists() else "nothing"

    def kill_worker(self) -> None:
        slot = self.random.randrange(WORKERS)
        process = self.workers[slot]
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.join(WATCHDOG)
        if process.exitcode != -signal.SIGKILL:
            self.explain(f"worker {slot} ended by itself")
        self.start(slot)

    def kill_keeper(self) -> None:
        """The next one, as soon as it says that it is there: it may still be recovering."""
        counts = self.space._native.tiers.counts  # type: ignore[attr-defined]
        deadline = time.monotonic() + WATCHDOG
        while time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError):
                if pid := counts()["keeper"]:
                    os.kill(pid, signal.SIGKILL)
                    return
            time.sleep(0.001)
        raise AssertionError(f"no keeper in {WATCHDOG} s: {self.said()}")

    def run(self, kills: int) -> None:
        try:
            for slot in range(WORKERS):
                self.start(slot)
            for number in range(kills):
                time.sleep(self.random.random() * self.random.choice([0.002, 0.05, 0.15]))
                if number % 3:
                    self.kill_keeper()
                else:
                    self.kill_worker()
                if number % 50 == 49:
                    self.see_progress()
            self.finish()
        finally:
            for process in self.workers:
                if process is not None and process.exitcode is None:
                    process.kill()
                    process.join(WATCHDOG)

    def see_progress(self) -> None:
        """Left alone, every worker does something."""
        before, deadline = self.stop[1:].copy(), time.monotonic() + WATCHDOG
        while not (self.stop[1:] > before).all():
            if time.monotonic() > deadline:
                self.explain(f"stuck: {(self.stop[1:] == before).nonzero()[0]}")
            time.sleep(0.005)

    def explain(self, what: str) -> None:
        for process in self.workers:
            if process.exitcode is None:
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.5)
        pytest.fail(f"{what}; exit codes {[process.exitcode for process in self.workers]}; said: {self.said()}")

    def finish(self) -> None:
        self.stop[0] = 1
        for process in self.workers:
            process.join(WATCHDOG)
        if any(process.exitcode != 0 for process in self.workers):
            self.explain("not all ended well")
        begun, acked = self.space["begun"].numpy(), self.space["acked"].numpy()
        assert acked[:, ROUND].all()
        for slot in range(WORKERS):
            for number in range(ARRAYS):
                least, most = int(acked[slot, number]), int(begun[slot, number])
                if least:
                    check_array(self.space[f"{slot}/{number}"].numpy(), slot, number, least, most)
            for unit in range(UNITS):
                part = self.space["counters"].numpy()[unit * UNIT // 8 : (unit + 1) * UNIT // 8]
                check_counters(part, slot, unit, int(acked[slot, ROUND]), int(begun[slot, ROUND]))
        found = self.space.check()
        assert not {kind: count for kind, count in found.items() if kind not in ("arrays", "bytes") and count}
        wait_until(lambda: tiers(self.space)["pinned_bytes"] == 0)


@pytest.mark.serial
@with_faults
@pytest.mark.parametrize("part", range(10 if SOAK else 1))
def test_nothing_is_lost_when_keepers_and_processes_are_killed(home: Path, disk: Path, mode: str, part: int) -> None:
    Harness(home, disk, SEED + part).run(kills=200)


def _touch(home: str, place: int) -> None:
    os.environ["OPENSHELF_DIR"] = home
    view = Space.open("shelf")["a"].numpy()
    os._exit(0 if view[place] == words(1, 1, 8 * MIB)[place] else 1)


@with_faults
def test_touches_that_wait_go_on_with_the_next_keeper(shelf: Space, home: Path) -> None:
    """The keeper is stopped when they come, and killed without having answered."""
    array = demoted(shelf.put("a", words(1, 1, 8 * MIB)))
    context = fork_server()
    for round_ in range(3):
        pid = keeper(shelf)
        touching = [context.Process(target=_touch, args=(str(home), place)) for place in range(0, 1 << 20, 1 << 18)]
        for process in touching:
            process.start()
        time.sleep(0.02 * round_)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        for process in touching:
            process.join(WATCHDOG)
        assert [process.exitcode for process in touching] == [0] * len(touching)
        demoted(array)


@with_faults
def test_touch_goes_on_though_the_first_to_touch_was_killed(shelf: Space, home: Path) -> None:
    array = shelf.put("a", words(1, 1, 8 * MIB))
    context = fork_server()
    for round_ in range(10):
        demoted(array)
        first, second = (context.Process(target=_touch, args=(str(home), 5)) for _ in range(2))
        first.start()
        second.start()
        time.sleep(0.003 * round_)
        first.kill()
        second.join(WATCHDOG)
        assert second.exitcode == 0
        first.join(WATCHDOG)


def test_everything_is_there_after_keepers_died_one_after_another(shelf: Space) -> None:
    for number in range(16):
        shelf.put(f"a{number}", words(number, 1, 4 * MIB))
        kill_keeper(shelf)
    for number in range(16):
        array = shelf[f"a{number}"]
        if number % 4 == 0:
            kill_keeper(shelf)
        check_array(array.numpy(), 0, number, 1, 1)
