"""Makes tests that were written for one host run across two, unchanged.

The space that they call "shelf" is opened by URL on host 1; everything made without a word about its home lives on
host 0. Their other processes are on the two hosts in turn, the first on host 0.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from openshelf import Space
from openshelf.space.hosts.cluster import Cluster as Parts
from tests import processes
from tests.processes import Peer, State
from tests.space.hosts.harness.cluster import Cluster

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
    Parts._anywhere = _elsewhere  # type: ignore[method-assign, assignment]


def _enter(state: State, url: str, room: str) -> None:
    state["space"] = _open(url, contribute=room)
    for number in range(200):  # the space keeps a lock for each of 64 kinds of names: made now, they change no figures
        state["space"].put(f"name {number}", b"x")
        state["space"].delete(f"name {number}")
    state["space"].check()  # lets go of what it has just held


def _clear(state: State) -> bool:
    """Whether the space is as it was at first, once all names are gone."""
    space: Space = state["space"]
    for name in space:
        space.delete(name)
    return not any(space.check().values())


class Across:
    """Two hosts on loopback; this process is on the second of them while `applied`."""

    def __init__(self, name: str) -> None:
        self.cluster, self._turn = Cluster(2), itertools.count()
        self.url = self.cluster[1].url(name)
        self._resident = self.cluster[0].peer()  # somebody on host 0 who has it open all the time
        self._resident.call(_enter, self.cluster[0].url(name), ROOM)

    def peer(self, method: str = "spawn") -> Peer:
        """What Peer is called for here."""
        if method == "fork":
            return Peer("fork")  # of this process, which is on a host already
        host = self.cluster[next(self._turn) % 2]
        made = host.peer()
        made.call(redirect, host.url(self.url.rsplit("/", 1)[1]))
        return made

    @contextlib.contextmanager
    def applied(self, *modules: ModuleType) -> Iterator[Across]:
        """`modules` get processes on these hosts where they ask for a Peer."""
        self._turn = itertools.count()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENSHELF_DIR", str(self.cluster[1].directory))
            patch.setenv("OPENSHELF_HOSTS", str(self.cluster.file))
            patch.setattr(Space, "open", staticmethod(_opened(self.url)))
            patch.setattr(Parts, "_anywhere", _elsewhere)
            for module in (processes, *modules):
                if hasattr(module, "Peer"):
                    patch.setattr(module, "Peer", self.peer)
            yield self

    def clear(self) -> bool:
        """Whether the next test can have it."""
        return bool(self._resident.call(_clear))

    def close(self) -> None:
        self.cluster.close()
