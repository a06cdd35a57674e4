"""Hosts that agree in a real etcd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.space.hosts.harness.agreed import AgreedCluster
from tests.space.hosts.harness.etcd import Servers


@pytest.fixture
def hosts(etcd_servers: Servers) -> Iterator[AgreedCluster]:
    """Three hosts on loopback. None has joined yet."""
    with AgreedCluster(3, etcd_servers) as made:
        yield made
