"""The log of a keeper says what happened to another host: lost, ended, closed, or never there."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator

import pytest

from openshelf import Space
from tests.processes import PATIENCE, State
from tests.space.hosts.harness.cluster import Cluster


@pytest.fixture
def five() -> Iterator[Cluster]:
    with Cluster(5, environment={"OPENSHELF_LINGER": "1000"}) as made:
        yield made


def _open(state: State, url: str) -> None:
    state["space"] = Space.open(url, contribute="16MiB")


def _all_there(state: State, hosts: int) -> None:
    deadline = time.monotonic() + 60 * PATIENCE
    while sum(bool(host["up"]) for host in state["space"].hosts()) < hosts:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _close(state: State) -> None:
    state["space"].close()


def _remove(state: State, url: str) -> None:
    Space.remove(url)


def _said(cluster: Cluster) -> str:
    return (cluster[0].directory / f"keeper@{cluster[0].address}.log").read_text()


def _await(cluster: Cluster, *texts: str) -> None:
    deadline = time.monotonic() + 30 * PATIENCE
    while missing := [text for text in texts if text not in _said(cluster)]:
        assert time.monotonic() < deadline, f"{missing}\n{_said(cluster)}"
        time.sleep(0.05)


def test_a_host_is_called_lost_only_if_nothing_is_known_of_its_end(five: Cluster) -> None:
    peers = [five[number].peer() for number in range(4)]
    for number, peer in enumerate(peers):
        peer.call(_open, five[number].url())
    peers[0].call(_all_there, 4)
    closes, ends, dies = (five[number].address for number in (1, 2, 3))
    never = five[4].address
    for peer in peers[1:]:
        peer.call(_close)
    peers[1].call(_remove, five[1].url())
    five[2].kill_keeper(signal.SIGTERM)
    five[3].kill_keeper()
    for peer in peers[1:]:
        peer.stop()
    _await(
        five,
        *(f"host {host} is connected" for host in (closes, ends, dies)),
        f"host {closes} disconnected: it closed the space",
        f"host {closes} stays away since it closed the space",
        f"host {ends} disconnected: its keeper ended",
        f"host {ends} stays away since its keeper ended",
        f"host {dies} is lost: it was silent for 2700 ms",
        f"host {never} has not been there yet",
    )
    assert set(re.findall(r"host (\S+) is lost", _said(five))) == {dies}
