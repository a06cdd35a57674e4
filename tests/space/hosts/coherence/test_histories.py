"""Random histories on two and three hosts: every answer is one that a single memory could have given."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.space.hosts.coherence import run_histories
from tests.space.hosts.harness.cluster import Cluster
from tests.space.hosts.harness.net import Network

SOAK = os.environ.get("OPENSHELF_SOAK") == "1"
SEED = int(os.environ.get("OPENSHELF_SEED", "1"))


def _good(network: Network) -> None:
    """As the links are made: fast."""


def _far(network: Network) -> None:
    network.shape(1, delay_ms=1)


def _bad(network: Network) -> None:
    network.shape(0, loss=0.005)
    network.shape(1, rate_mbit=300)


class Setting(NamedTuple):
    hosts: int
    each: int  # processes of a host
    steps: int  # of a process
    histories: int  # in the normal run; 10,000 of all settings together in a soak
    link: Callable[[Network], None]


SETTINGS = {
    "two hosts": Setting(2, 2, 60, 100, _good),
    "three hosts": Setting(3, 2, 50, 120, _good),
    "three hosts, one far": Setting(3, 1, 40, 40, _far),
    "three hosts, bad links": Setting(3, 1, 50, 40, _bad),
}
assert sum(setting.histories for setting in SETTINGS.values()) == 300
SOAK_FACTOR, PART = 34, 400  # the words of a space are enough for so many histories


def _parts() -> list[tuple[str, int, int]]:
    made = []
    for name, setting in SETTINGS.items():
        total = setting.histories * (SOAK_FACTOR if SOAK else 1)
        made += [(name, first, min(PART, total - first)) for first in range(0, total, PART)]
    return made


@pytest.mark.parametrize(("name", "first", "count"), _parts(), ids=str)
def test_histories_are_linearizable(network: Network, name: str, first: int, count: int) -> None:
    setting = SETTINGS[name]
    with Cluster(setting.hosts, network) as cluster:
        peers = [[host.peer() for _ in range(setting.each)] for host in cluster.hosts]
        run_histories.begin(peers, [host.url() for host in cluster.hosts])
        setting.link(network)
        everybody = [peer for of_host in peers for peer in of_host]
        done = sum(
            run_histories.run(everybody, SEED, history, setting.hosts, setting.steps)
            for history in range(first, first + count)
        )
        assert done > count * setting.steps * len(everybody) // 2
