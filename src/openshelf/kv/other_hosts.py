"""A pool on several hosts: each has its own part, and what one misses the others are asked for.

All of them are asked at once, each by one call for all blocks that are missing; the longest answer is fetched into the
own part, once for all processes of the host. A host that does not answer has nothing, as far as we know.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterator
from typing import TypeVar

from openshelf import _core
from openshelf.errors import HostLost, OpenshelfError, UnknownName
from openshelf.space import Cluster, Space

_PATIENCE_S = 2.0  # for another process that fetches the same; then it is a miss
_log = logging.getLogger(__name__)
T = TypeVar("T")


class OtherHosts:
    """The parts of one pool on the other hosts."""

    def __init__(self, cluster: Cluster, core: _core.KVCore, name: str) -> None:
        self._cluster, self._core, self._name = cluster, core, name
        self._told: set[tuple[str, type[OpenshelfError]]] = set()

    def fetch(self, draft: _core.KVDraft) -> bool:
        """Fetches what the others have of a prompt's missing blocks; whether anything came, from whomever."""
        first, missing = draft.next, draft.keys()
        if not missing:
            return True
        with self._turn(missing[:32]) as ours:
            draft.catch_up()  # another process may have fetched it meanwhile
            found = self._longest(_core.KVWhat.USE, draft.next, draft.keys()) if ours else None
            if found is not None:
                self._fetch(draft, *found)
        return draft.next > first

    def fetch_value(self, key: bytes, draft: Callable[[int], _core.KVDraft]) -> None:
        """Fetches a plain value; `draft(nbytes)` makes room for it."""
        with self._turn(key) as ours:
            found = self._longest(_core.KVWhat.USE_VALUE, 0, key) if ours else None
            if found is not None:
                self._fetch(draft(found[1].nbytes), *found)

    def blocks(self, first: int, keys: bytes) -> int:
        """How many of the blocks from `first` on some other host has."""
        found = self._longest(_core.KVWhat.LOOK, first, keys)
        return len(found[1]) if found else 0

    def has_value(self, key: bytes) -> bool:
        return self._longest(_core.KVWhat.LOOK_VALUE, 0, key) is not None

    def evict(self, keys: bytes, keep: int) -> int:
        return sum(sight.gone for _, sight in self._seek(_core.KVWhat.EVICT, 0, keys, keep))

    def evict_value(self, key: bytes) -> int:
        return sum(sight.gone for _, sight in self._seek(_core.KVWhat.EVICT_VALUE, 0, key))

    def clear(self, tenant: str | None) -> int:
        return sum(gone for _, gone in self._ask(lambda remote: _core.kv_clear(remote, self._name, tenant)))

    def _seek(
        self, what: _core.KVWhat, first: int, keys: bytes, keep: int = 0
    ) -> list[tuple[_core.Remote, _core.KVSight]]:
        if not keys:
            return []
        keys = keys[: 32 * _core.KV_KEYS_MAX]
        return self._ask(lambda remote: _core.kv_seek(remote, self._name, what, first, keep, keys))

    def _longest(self, what: _core.KVWhat, first: int, keys: bytes) -> tuple[_core.Remote, _core.KVSight] | None:
        found = [(remote, sight) for remote, sight in self._seek(what, first, keys) if len(sight)]
        return max(found, key=lambda one: (len(one[1]), random.random()), default=None)

    def _ask(self, call: Callable[[_core.Remote], T]) -> list[tuple[_core.Remote, T]]:
        def answer(remote: _core.Remote) -> list[T]:
            try:
                return [call(remote)]
            except (HostLost, UnknownName):  # it is not there, or has not joined: for peers.ask to remember
                raise
            except OpenshelfError as error:
                self._tell(remote, error)
                return []

        asked = self._cluster.peers.ask(answer, missing=False)
        return [(peer.remote, one) for peer, answers in asked for one in answers]

    def _fetch(self, draft: _core.KVDraft, remote: _core.Remote, sight: _core.KVSight) -> None:
        try:
            pool = remote.find(self._name)  # its memory stays while this is held
            if pool is not None and pool.address == sight.address:
                _core.kv_fetch(draft, remote, sight, draft.next)
        except OpenshelfError as error:
            self._tell(remote, error)

    def _tell(self, remote: _core.Remote, error: OpenshelfError) -> None:
        """Serving goes on without a host that cannot help; what is wrong with it is said once."""
        if (kind := (remote.host, type(error))) not in self._told:
            self._told.add(kind)
            _log.warning("the KV pool %r goes on without %s: %s", self._name, remote.host, error)

    @contextlib.contextmanager
    def _turn(self, key: bytes) -> Iterator[bool]:
        """One process of the host at a time; False: another takes all too long."""
        turn = _core.kv_take_turn(self._core, key, _PATIENCE_S)
        try:
            yield turn is not None
        finally:
            if turn is not None:
                turn.drop()


def other_hosts_of(space: Space, core: _core.KVCore, name: str) -> OtherHosts | None:
    """None for a space of one host, and where nothing may be fetched into it."""
    native = space._native
    if not isinstance(native, Cluster) or not (native.agreed or native.peers) or native.core.stats()["read_only"]:
        return None
    return OtherHosts(native, core, name)
