"""What tests of losses ask processes on hosts to do."""

from __future__ import annotations

import contextlib
import gc
import time
from typing import Any

import numpy as np

from openshelf.errors import HostLost
from tests.processes import State
from tests.space.hosts.harness import worker
from tests.space.hosts.harness.cluster import Cluster
from tests.space.hosts.harness.nursery import NurseryPeer

NOTICED_SECONDS = 3.5  # 3 are promised; the rest is for a busy machine
HANG_SECONDS = 5.0
WORDS = 2 * worker.WORDS


def put(state: State, name: str, value: int) -> int:
    return int(state["space"].put(name, np.full(WORDS, value, "uint64")).address)


def hold(state: State, name: str) -> int:
    state["array"] = state["space"][name]
    state["view"] = state["array"].numpy()
    return int(state["array"].address)


def fill(state: State, value: int) -> None:
    state["view"][:] = value


def values(state: State) -> list[int]:
    return [int(value) for value in np.unique(state["view"])]


def state_of(state: State) -> str:
    return str(state["array"].state)


CALLS = ("get", "put", "atomic", "new", "at", "lock")


def call(state: State, what: str, home: str) -> Any:
    """How an explicit call on a host ends: its error's parts, and the seconds it took."""
    space, array = state["space"], state["array"]
    start = time.monotonic()
    try:
        if what == "get":
            space.get(array, np.empty(WORDS, "uint64")).wait()
        elif what == "put":
            space.put(array.address, np.ones(8, "uint64")).wait()
        elif what == "atomic":
            array.atomic(3).add(1)
        elif what == "new":
            space.zeros(None, 10, "uint8", home=home)
        elif what == "at":
            space.at(array.address, 8, "uint64")
        elif what == "lock":
            state["lock"].acquire(20)
    except HostLost as error:
        return str(error), error.host, error.range, time.monotonic() - start
    return None


def find(state: State, name: str) -> None:
    state["array"] = state["space"][name]


def let_go_then_lock(state: State) -> float:
    """The seconds that a call on a lost host took which began a second after something was sent to it."""
    state.pop("array")
    gc.collect()
    time.sleep(1.2)
    start = time.monotonic()
    with contextlib.suppress(HostLost):
        state["lock"].acquire(20)
    return time.monotonic() - start


def meet(cluster: Cluster, count: int) -> list[NurseryPeer]:
    peers = [cluster[number].peer() for number in range(count)]
    for number, peer in enumerate(peers):
        peer.call(worker.enter, cluster[number].url())
    return peers


def prepare(state: State) -> None:
    state["lock"] = state["space"].lock("l")


def delete(state: State, name: str) -> None:
    state["space"].delete(name)
