"""Connections that say nothing, as many as anybody likes, keep no host out."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque

import pytest

from openshelf import _core
from openshelf.errors import OpenshelfError
from openshelf.space.hosts.urls import split
from tests.processes import PATIENCE
from tests.space.hosts import losing
from tests.space.hosts.harness import worker
from tests.space.hosts.harness.cluster import Cluster

FLOOD = 600
ALLOWED = 200  # threads of a keeper, of which 64 may listen to strangers, and 64 to those who say nothing more


def _threads(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


def _flood(address: tuple[str, int], over: threading.Event) -> None:
    """Keeps so many connections open, from an address of its own; a new one for each that is cut."""
    with selectors.DefaultSelector() as cut:
        while not over.is_set():
            while len(cut.get_map()) < FLOOD and not over.is_set():
                with contextlib.suppress(OSError):
                    sock = socket.create_connection(address, timeout=1, source_address=("127.0.0.2", 0))
                    cut.register(sock, selectors.EVENT_READ)
            for key, _ in cut.select(0.01):
                cut.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
        for key in list(cut.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]


def _stay_silent(address: tuple[str, int], key: bytes, over: threading.Event) -> None:
    """As many that prove the key and then say nothing, a new one for the oldest."""
    silent: deque[_core.Wire] = deque(maxlen=FLOOD)
    while not over.is_set():
        with contextlib.suppress(OpenshelfError):
            silent.append(_core.Wire.connect(*address, key, 1.0))


@pytest.mark.parametrize("proven", [False, True], ids=["unproven", "proven"])
def test_a_flood_of_connections_that_say_nothing_keeps_no_host_out(proven: bool) -> None:
    with Cluster(2) as two:
        home = two[0].peer()
        home.call(worker.enter, two[0].url())
        home.call(losing.put, "a", 7)
        (keeper,) = two[0].keepers()
        over, most, address = threading.Event(), 0, split(two[0].address)
        floods = [threading.Thread(target=_flood, args=(address, over))]
        if proven:
            floods = [
                threading.Thread(target=_stay_silent, args=(address, bytes.fromhex(two.key), over)) for _ in range(2)
            ]
        for flood in floods:
            flood.start()
        try:
            time.sleep(0.5)
            other, start = two[1].peer(), time.monotonic()
            other.start(worker.enter, two[1].url())
            while not other.pipe.poll(0.05):
                most = max(most, _threads(keeper))
                assert time.monotonic() - start < 20 * PATIENCE, "the host is kept out"
            other.finish()
            assert other.call(losing.hold, "a")
            assert other.call(losing.values) == [7]
            most = max(most, _threads(keeper))
        finally:
            over.set()
            for flood in floods:
                flood.join()
        assert 0 < most < ALLOWED
