"""One host's part of a space is removed while others go on: its keeper lives; what it had borrowed is given back."""

from __future__ import annotations

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import OpenshelfError
from tests.processes import State
from tests.space.hosts.harness import worker
from tests.space.hosts.harness.cluster import Cluster
from tests.space.hosts.harness.nursery import NurseryPeer


def _remove(state: State, url: str) -> None:
    Space.remove(url)


def _put(state: State, name: str, value: int) -> None:
    state["space"].put(name, np.full(worker.WORDS, value, "uint64"))


def _fill(state: State, name: str, value: int) -> None:
    state["space"][name].numpy()[:] = value


def _values(state: State, name: str) -> list[int]:
    return [int(value) for value in np.unique(state["space"][name].numpy())]


def _first(state: State) -> int | str:
    """The first word of the array that is held, asked of its home, or the name of the error."""
    try:
        return int(state["held"].atomic(0).add(0))
    except OpenshelfError as error:
        return type(error).__name__


def _hold(state: State, name: str) -> None:
    state["held"] = state["space"][name]


def _meet(cluster: Cluster) -> list[NurseryPeer]:
    peers = [cluster[number].peer() for number in range(2)]
    for number, peer in enumerate(peers):
        peer.call(worker.enter, cluster[number].url())
    return peers


@pytest.mark.parametrize("which", [0, 1])
def test_a_part_is_removed_and_made_again_by_the_same_keepers(loopback: Cluster, which: int) -> None:
    peers = _meet(loopback)
    keepers = [loopback[number].keepers() for number in range(2)]
    leaver, other = peers[which], peers[1 - which]
    other.call(_put, "stays", 7)
    for round in range(5):
        leaver.call(_put, "goes", round)
        assert other.call(_values, "goes") == [round]
        assert leaver.call(_values, "stays") == [7]
        leaver.call(worker.leave)
        leaver.call(_remove, loopback[which].url())
        leaver.call(worker.enter, loopback[which].url())
    if type(loopback) is Cluster:  # a keeper of hosts that agree ends with the part that it keeps
        assert [loopback[number].keepers() for number in range(2)] == keepers, loopback.keeper_texts()


def test_what_was_written_to_another_hosts_array_survives_the_removal_of_the_writers_part(loopback: Cluster) -> None:
    home, writer = _meet(loopback)
    home.call(_put, "a", 1)
    writer.call(_fill, "a", 2)  # in its own copy, and so far nowhere else
    writer.call(worker.leave)
    writer.call(_remove, loopback[1].url())
    assert home.call(_values, "a") == [2]


def test_a_process_elsewhere_that_holds_an_array_of_a_removed_part_is_told(
    loopback: Cluster,
) -> None:
    home, other = _meet(loopback)
    home.call(_put, "a", 1)
    other.call(_hold, "a")
    assert other.call(_first) == 1
    home.call(worker.leave)
    home.call(_remove, loopback[0].url())
    home.call(worker.enter, loopback[0].url())
    home.call(_put, "a", 2)
    assert other.call(_first) == "HostLost"
    other.call(_hold, "a")
    assert other.call(_first) == 2
