"""The other hosts of a space: asked all at once, and not asked for a while when it took long to find them gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from openshelf import _core
from openshelf.errors import HostLost, UnknownName

T = TypeVar("T")
_QUICK_S = 0.05  # a host that is found missing in less is asked every time: one that joins is seen at once
_AGAIN_S = 5.0  # others not before this, unless the keeper has a link to them
_FRESH_S = 0.05  # how old what the keeper said may be


class Peer:
    """Another host, and whether it was there when last asked."""

    __slots__ = ("again_at", "host", "member", "missing", "number", "remote", "unopened")

    def __init__(self, number: int, host: str, remote: _core.Remote) -> None:
        self.number, self.host, self.remote = number, host, remote
        self.missing = False
        self.unopened = False  # it answered, and said that nobody there has opened the space
        self.member = True  # False: the hosts agree that it is not there
        self.again_at = 0.0

    def ask(self, call: Callable[[_core.Remote], T]) -> T:
        """The answer, or HostLost, which is remembered."""
        start = time.monotonic()
        self.unopened = False
        try:
            answer = call(self.remote)
        except HostLost:
            self.miss(time.monotonic() - start)
            raise
        except UnknownName as error:  # it is up, but nobody there has opened the space
            self.miss(0.0)
            self.unopened = True
            raise HostLost(f"{self.host} has not joined the space: {error}", self.host) from None
        self.missing, self.again_at = False, 0.0
        return answer

    def miss(self, took_s: float) -> None:
        """It did not answer."""
        self.missing = True
        self.again_at = time.monotonic() + _AGAIN_S if took_s > _QUICK_S else 0.0


class Peers(Sequence[Peer]):
    """All other hosts, in the order of their numbers. `linked` tells the numbers of those that the keeper hears."""

    def __init__(self, peers: Sequence[Peer], linked: Callable[[], set[int]]) -> None:
        self._peers = tuple(sorted(peers, key=lambda peer: peer.number))
        self._linked, self._links, self._linked_at = linked, set[int](), 0.0
        self._pool: ThreadPoolExecutor | None = None
        self._pid, self._threads_for = 0, 0

    def __getitem__(self, index: int) -> Peer:  # type: ignore[override]  # no slices
        return self._peers[index]

    def __len__(self) -> int:
        return len(self._peers)

    def of(self, number: int) -> Peer | None:
        """The host of a number; None if there is none yet."""
        return next((peer for peer in self._peers if peer.number == number), None)

    def add(self, peers: Sequence[Peer]) -> None:
        """Hosts that have joined."""
        self._peers = tuple(sorted((*self._peers, *peers), key=lambda peer: peer.number))

    def up(self, peer: Peer, missing: bool = True) -> bool:
        """Whether it is worth asking. Without `missing`, not to see whether one that did not answer does by now."""
        if not peer.member:
            return False
        now = time.monotonic()
        if now >= peer.again_at and (missing or not peer.missing):
            return True
        if now - self._linked_at > _FRESH_S:
            self._links, self._linked_at = self._linked(), now
        return peer.number in self._links

    def ask(
        self, call: Callable[[_core.Remote], T], besides: int = -1, missing: bool = True
    ) -> Iterator[tuple[Peer, T]]:
        """The answers of all hosts that are up, in the order of their numbers, in the time of the slowest."""

        def answer(peer: Peer) -> tuple[T] | None:
            return _answer(peer, call) if self.up(peer, missing) else None  # it may have been lost while this waited

        asked = self._asked(besides, missing)
        answers = [answer(peer) for peer in asked] if len(asked) <= 1 else list(self._threads().map(answer, asked))
        return ((peer, answer[0]) for peer, answer in zip(asked, answers, strict=True) if answer)

    def find(self, name: str, besides: int = -1) -> list[tuple[Peer, _core.Pin]]:
        """Who has the name. All are asked before the first has answered, without threads."""
        asked = self._asked(besides)
        if len(asked) > 1:
            start = time.monotonic()
            try:
                answers = _core.find_all([peer.remote for peer in asked], name)
            except UnknownName:  # one has not joined: ask() finds out which
                answers = []
            if answers:
                return list(_found(asked, answers, time.monotonic() - start))
        return [(peer, pin) for peer, pin in self.ask(lambda remote: remote.find(name), besides) if pin is not None]

    def missing(self) -> list[str]:
        """Hosts that did not answer when they were last asked."""
        return [peer.host for peer in self._peers if peer.missing or not peer.member]

    def _asked(self, besides: int, missing: bool = True) -> list[Peer]:
        return [peer for peer in self._peers if peer.number != besides and self.up(peer, missing)]

    def _threads(self) -> ThreadPoolExecutor:
        wanted = len(self._peers)
        if (
            self._pool is None or self._pid != os.getpid() or self._threads_for < wanted
        ):  # a fork leaves the threads behind
            self._pool = ThreadPoolExecutor(wanted, thread_name_prefix="openshelf")
            self._pid, self._threads_for = os.getpid(), wanted
        return self._pool


def _answer(peer: Peer, call: Callable[[_core.Remote], T]) -> tuple[T] | None:
    try:
        return (peer.ask(call),)
    except HostLost:
        return None


def _found(
    asked: list[Peer], answers: Sequence[_core.Pin | HostLost | None], took_s: float
) -> Iterator[tuple[Peer, _core.Pin]]:
    for peer, answer in zip(asked, answers, strict=True):
        if isinstance(answer, HostLost):
            peer.miss(took_s)
            continue
        peer.missing, peer.again_at = False, 0.0
        if answer is not None:
            yield peer, answer
