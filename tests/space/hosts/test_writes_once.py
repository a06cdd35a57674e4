"""A put by address is not done twice, though its connection broke before the answer came."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import numpy as np

from openshelf import Space
from openshelf.space.transfer import Transfer
from tests.processes import PATIENCE, State
from tests.space.hosts.harness.cluster import Cluster

ROUNDS = 6
LARGE = 8 << 20


def _make(state: State, url: str) -> tuple[int, int]:
    state["space"] = Space.open(url, contribute="32MiB")
    state["word"] = state["space"].zeros("word", (8,), np.int64).numpy()
    state["large"] = state["space"].zeros("large", (LARGE,), np.uint8)
    return int(state["space"]["word"].address), int(state["large"].address)


def _answer(state: State, keeper: int, value: int) -> bool:
    """Waits for a word, writes another one over it, and has the keeper killed at once."""
    word, deadline = state["word"], time.monotonic() + 60 * PATIENCE
    while word[0] != value:
        if time.monotonic() > deadline:
            return False
    word[0] = -value
    with contextlib.suppress(ProcessLookupError):  # the one of the round before was still on its way out
        os.kill(keeper, signal.SIGKILL)
    return True


def _read(state: State) -> int:
    return int(state["word"][0])


def _join(state: State, url: str) -> None:
    state["space"] = Space.open(url)


def _write(state: State, word: int, large: int, value: int) -> None:
    """A short write, and behind it a long one, which keeps the home too busy to answer the first at once."""
    space, bytes_ = state["space"], np.zeros(LARGE, np.uint8)
    under_way: list[Transfer] = [space.put(word, np.full(8, value, np.int64)), space.put(large, bytes_)]
    assert all(one.wait(timeout=60 * PATIENCE) for one in under_way)


def test_what_was_written_over_a_put_stays_when_the_keeper_is_killed_before_it_answers(loopback: Cluster) -> None:
    home, other = loopback[0].peer(), loopback[1].peer()
    word, large = home.call(_make, loopback[0].url())
    other.call(_join, loopback[1].url())
    for value in range(1, ROUNDS + 1):
        while not (keepers := loopback[0].keepers()):
            time.sleep(0.01)
        home.start(_answer, keepers[0], value)
        other.call(_write, word, large, value)
        assert home.finish()
        assert home.call(_read) == -value  # what came after the put, not the put again
