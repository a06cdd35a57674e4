"""Makes tests that were written for one host run across two, unchanged.

The space that they call "shelf" is opened by URL on host 1; everything made without a word about its home lives on
host 0. Their other processes are on the two hosts in turn, the first on host 0.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from openshelf import Space
from openshelf.space._cluster import Cluster as Parts
from tests import processes
from tests.hosts.cluster import Cluster
from tests.processes import Peer, State

NAMES = ("shelf", "model")
ROOM = "64MiB"
_open = Space.open


def _opened(url: str) -> Callable[..., Space]:
    def opened(name: str, mode: str = "rw", **options: Any) -> Space:
        return _open(url if name in NAMES else name, mode, **options)

    return opened


def _elsewhere(parts: Parts) -> Any:
    return parts.on(0)


def redirect(state: State, url: str) -> None:
    """In a process of its own: for good."""
    Space.open = staticmethod(_opened(url))  # type: ignore[method-assign]
    Parts._anywhere = _elsewhere  # type: ignore[method-assign]


def _enter(state: State, url: str, room: str) -> None:
    state["held"] = _open(url, contribute=room)


class Across:
    """Two hosts on loopback and this process on the second of them."""

    def __init__(self, cluster: Cluster, patch: pytest.MonkeyPatch, name: str) -> None:
        self.cluster, self._turn = cluster, itertools.count()
        self.url = cluster[1].url(name)
        patch.setenv("OPENSHELF_DIR", str(cluster[1].directory))
        patch.setenv("OPENSHELF_HOSTS", str(cluster.file))
        patch.setattr(Space, "open", staticmethod(_opened(self.url)))
        patch.setattr(Parts, "_anywhere", _elsewhere)
        patch.setattr(processes, "Peer", self.peer)
        self._resident = cluster[0].peer()  # somebody who has opened it on host 0, for as long as the test
        self._resident.call(_enter, cluster[0].url(name), ROOM)

    def peer(self, method: str = "spawn") -> Peer:
        """What Peer is called for here."""
        if method == "fork":
            return Peer("fork")  # of this process, which is on a host already
        host = self.cluster[next(self._turn) % 2]
        made = host.peer()
        made.call(redirect, host.url(self.url.rsplit("/", 1)[1]))
        return made


@contextlib.contextmanager
def across(name: str, *modules: ModuleType) -> Iterator[Across]:
    """Two hosts; `modules` get other processes where they ask for a Peer."""
    before = dict(os.environ)
    with pytest.MonkeyPatch.context() as patch, Cluster(2) as cluster:
        made = Across(cluster, patch, name)
        for module in modules:
            if hasattr(module, "Peer"):
                patch.setattr(module, "Peer", made.peer)
        yield made
    assert dict(os.environ) == before
