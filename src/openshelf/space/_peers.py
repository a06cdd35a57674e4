"""The other hosts of a space: asked all at once, and not asked for a while when they are gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from openshelf import _core
from openshelf.errors import HostLost

T = TypeVar("T")
_AGAIN_S = 1.0  # a host that did not answer is not asked for names before this


class Peer:
    """Another host, and when it was last found missing."""

    __slots__ = ("host", "lost_until", "number", "remote")

    def __init__(self, number: int, host: str, remote: _core.Remote) -> None:
        self.number, self.host, self.remote = number, host, remote
        self.lost_until = 0.0

    @property
    def up(self) -> bool:
        """Whether it is worth asking."""
        return self.lost_until == 0.0 or time.monotonic() >= self.lost_until

    def ask(self, call: Callable[[_core.Remote], T]) -> T:
        """The answer, or HostLost, which is remembered."""
        try:
            answer = call(self.remote)
        except HostLost:
            self.miss()
            raise
        self.lost_until = 0.0
        return answer

    def miss(self) -> None:
        """It did not answer."""
        self.lost_until = time.monotonic() + _AGAIN_S


class Peers(Sequence[Peer]):
    """All other hosts, in the order of their numbers."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        self._peers = tuple(sorted(peers, key=lambda peer: peer.number))
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    def __getitem__(self, index: int) -> Peer:  # type: ignore[override]  # no slices
        return self._peers[index]

    def __len__(self) -> int:
        return len(self._peers)

    def ask(self, call: Callable[[_core.Remote], T], besides: int = -1) -> Iterator[tuple[Peer, T]]:
        """The answers of all hosts that are up, in the order of their numbers, in the time of the slowest."""
        asked = [peer for peer in self._peers if peer.up and peer.number != besides]
        if len(asked) <= 1:
            answers = [_answer(peer, call) for peer in asked]
        else:
            answers = list(self._threads().map(lambda peer: _answer(peer, call), asked))
        return ((peer, answer[0]) for peer, answer in zip(asked, answers, strict=True) if answer)

    def missing(self) -> list[str]:
        """Hosts that did not answer lately."""
        return [peer.host for peer in self._peers if not peer.up]

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pid != os.getpid():  # a fork leaves the threads behind
            self._pool = ThreadPoolExecutor(len(self._peers), thread_name_prefix="openshelf")
            self._pid = os.getpid()
        return self._pool


def _answer(peer: Peer, call: Callable[[_core.Remote], T]) -> tuple[T] | None:
    try:
        return (peer.ask(call),)
    except HostLost:
        return None
