"""Hosts for the tests of this directory; the namespaces of a test run are made once and shared by its tests."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.space.hosts.harness import net
from tests.space.hosts.harness.agreed import AgreedCluster
from tests.space.hosts.harness.cluster import Cluster, close_nurseries, free_ports
from tests.space.hosts.harness.etcd import Servers


@pytest.fixture(scope="session")
def network() -> Iterator[net.Network]:
    """Three hosts as network namespaces."""
    if reason := net.why_not():
        pytest.skip(reason)
    with net.Network(3) as made:
        yield made
        close_nurseries()


@contextlib.contextmanager
def _cluster(count: int, network: net.Network | None) -> Iterator[Cluster]:
    """With a file of hosts; or all that these tests ask for by etcd, if OPENSHELF_TEST_MEMBERSHIP says so."""
    if os.environ.get("OPENSHELF_TEST_MEMBERSHIP") != "etcd":
        with Cluster(count, network) as made:
            yield made
        return
    ports = [2379, 2380] * 3 if network else free_ports(6)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="openshelf-etcd-") as place:
        with Servers(ports, Path(place), network) as servers, AgreedCluster(count, servers, network) as agreed:
            agreed.number_as_listed()
            yield agreed


@pytest.fixture
def three(network: net.Network) -> Iterator[Cluster]:
    """Three hosts in namespaces."""
    with _cluster(3, network) as made:
        yield made


@pytest.fixture
def two(network: net.Network) -> Iterator[Cluster]:
    """Two hosts in namespaces."""
    with _cluster(2, network) as made:
        yield made


@pytest.fixture
def loopback() -> Iterator[Cluster]:
    """Two hosts on loopback: no namespaces, no rights needed."""
    with _cluster(2, None) as made:
        yield made
