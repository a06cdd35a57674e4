"""Connections that say nothing, as many as anybody likes, keep no host out."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time

from openshelf.space.hosts.urls import split
from tests.processes import PATIENCE
from tests.space.hosts import losing
from tests.space.hosts.harness import worker
from tests.space.hosts.harness.cluster import Cluster

FLOOD = 600
ALLOWED = 200  # threads of a keeper, of which 64 may listen to strangers


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


def test_a_flood_of_connections_that_say_nothing_keeps_no_host_out() -> None:
    with Cluster(2) as two:
        home = two[0].peer()
        home.call(worker.enter, two[0].url())
        home.call(losing.put, "a", 7)
        (keeper,) = two[0].keepers()
        over, most = threading.Event(), 0
        flood = threading.Thread(target=_flood, args=(split(two[0].address), over))
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
        finally:
            over.set()
            flood.join()
        assert 0 < most < ALLOWED
