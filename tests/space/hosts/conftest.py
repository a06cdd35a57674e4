"""Hosts for the tests of this directory; the namespaces of a test run are made once and shared by its tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.space.hosts.harness import net
from tests.space.hosts.harness.cluster import Cluster, close_nurseries


@pytest.fixture(scope="session")
def network() -> Iterator[net.Network]:
    """Three hosts as network namespaces."""
    if reason := net.why_not():
        pytest.skip(reason)
    with net.Network(3) as made:
        yield made
        close_nurseries()


@pytest.fixture
def three(network: net.Network) -> Iterator[Cluster]:
    """Three hosts in namespaces."""
    with Cluster(3, network) as made:
        yield made


@pytest.fixture
def two(network: net.Network) -> Iterator[Cluster]:
    """Two hosts in namespaces."""
    with Cluster(2, network) as made:
        yield made


@pytest.fixture
def loopback() -> Iterator[Cluster]:
    """Two hosts on loopback: no namespaces, no rights needed."""
    with Cluster(2) as made:
        yield made
