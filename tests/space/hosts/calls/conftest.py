"""Another host on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openshelf import _core
from tests.processes import Peer
from tests.space.hosts.calls import faraway
from tests.space.hosts.calls.faraway import Place


@pytest.fixture
def server(home: Path) -> Iterator[Peer]:
    """The other host."""
    with Peer() as process:
        yield process


@pytest.fixture
def place(server: Peer) -> Place:
    return faraway.started(server)


@pytest.fixture
def remote(place: Place) -> Iterator[_core.Remote]:
    made = faraway.call_on(place)
    yield made
    made.close()
