"""The rows of one table on several hosts, as native code reads and changes them from here.

Native code makes one attempt. Rows that are being moved to another host are refused by the one that had them. Then all
hosts are asked where they are, until the move is over. A move whose process died is undone, or completed, by whoever
waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from openshelf import _core
from openshelf.errors import BadInput, HostLost, NotPermitted
from openshelf.space import Cluster, Lock, Space

ADD, ARRIVE, LIVE, FREEZE, THAW, DROP, ROWS, STEPS = range(8)  # verbs of _core.shard_block
NONE, IS_LIVE, LEAVING, ARRIVING = range(4)  # what a block is on a host
_PAUSE_S = 0.001
_MEND_AFTER_S = 1.0
_HELD_S = 0.1  # whether the holder of a lock lives is asked after a few milliseconds
_GIVE_UP_S = 60.0


class OverHosts:
    """One table on the hosts of a space."""

    def __init__(self, space: Space, cluster: Cluster, table_id: int, name: str, owner_sums: bool) -> None:
        self.space, self.cluster, self.id, self.name = space, cluster, table_id, name
        self._remotes = [self.remote(number) for number in range(len(cluster.shard.hosts))]
        self.native = _core.ShardedCore(cluster.core, table_id, self._remotes, name, owner_sums)

    def remote(self, number: int) -> _core.Remote | None:
        """Another host; None: this one."""
        return None if number == self.cluster.shard.own else self.cluster.peer_of(number).remote

    def block(self, host: int, verb: int, block: int, number: int = 0) -> None:
        _core.shard_block(self.cluster.core, self._remotes[host], self.id, verb, block, number)

    def check(self, ids: Any) -> None:
        self.native.check(ids)

    def read(self, request: tuple[Any, ...], threads: int) -> None:
        self.until(lambda: self.native.read(request, threads))

    def change(self, change: _core.ShardedChange, threads: int) -> None:
        """Until every row of it has changed."""
        if self.cluster.core.stats()["read_only"]:
            raise NotPermitted(
                f'the space is open read-only (mode="r"): the table {self.name!r} can be read, not changed'
            )
        self.until(lambda: change.apply(threads))

    def until(self, attempt: Callable[[], bool]) -> None:
        """Attempts again while blocks move."""
        start = time.monotonic()
        mend_at = start + _MEND_AFTER_S
        while not attempt():
            self.native.refresh()
            now = time.monotonic()
            if now > mend_at:
                self.mend(wait=False)
                mend_at = now + _MEND_AFTER_S
            if now > start + _GIVE_UP_S:
                missing = sum(host < 0 for host in self.native.map()["hosts"])
                raise HostLost(
                    f"{missing} blocks of the table {self.name!r} are on no host that answers, after {_GIVE_UP_S:.0f} s"
                )
            time.sleep(_PAUSE_S)

    # Blocks

    def lock(self) -> Lock:
        """Who moves blocks of this table."""
        return self.space.lock(f"{self.name}.moves")

    def mend(self, wait: bool) -> None:
        """Ends the moves of a process that died. Without `wait`, not while another process moves blocks."""
        lock = self.lock()
        if not lock.acquire(timeout=None if wait else _HELD_S):
            return
        try:
            self._mend()
        finally:
            lock.release()

    def _mend(self) -> None:
        """With the lock. A block that arrives is gone from where it was, if it has arrived whole: then it stays."""
        self.native.refresh()
        found = self.native.map()
        if found["silent"]:
            return  # nobody knows what they have
        for block, states in enumerate(zip(*(places for places in found["places"] if places), strict=True)):
            if LEAVING not in states and ARRIVING not in states:
                continue
            hosts = [number for number, places in enumerate(found["places"]) if places]
            at = dict(zip(hosts, states, strict=True))
            there = any(state in (IS_LIVE, LEAVING) for state in states)
            for host, state in at.items():
                if state == ARRIVING:
                    self.block(host, DROP if there else LIVE, block)
            for host, state in at.items():
                if state == LEAVING:
                    self.block(host, THAW, block)
        self.native.refresh()

    def move(self, block: int, to: int) -> None:
        """With the lock. Rows and their states go to another host; updates of them wait meanwhile."""
        places = self.native.map()
        home = places["hosts"][block]
        if home == to:
            return
        if home < 0:
            raise HostLost(f"block {block} of the table {self.name!r} is on no host that answers")
        self.block(to, ARRIVE, block)
        frozen = False
        try:
            self.block(home, FREEZE, block)
            frozen = True
            self.native.copy_block(block, to)
        except BaseException:
            if frozen:
                self.block(home, THAW, block)
            self.block(to, DROP, block)
            raise
        self.block(home, DROP, block)  # the moment of the move: from here on it is completed, whoever dies
        self.block(to, LIVE, block)

    def shards(self, wanted: Sequence[int], spec: tuple[Any, ...]) -> None:
        """Makes empty shards on hosts that have none."""
        found = self.native.map()
        for host in wanted:
            if found["shards"][host] is None:
                make_shard(self.cluster, host, self.id, spec, [])
        self.native.refresh()


def make_shard(cluster: Cluster, host: int, table_id: int, spec: tuple[Any, ...], blocks: Sequence[int]) -> None:
    """`spec`: row type, rows, dim, optimizer, settings, init, blocks that there may be, shift."""
    remote = None if host == cluster.shard.own else cluster.peer_of(host).remote
    row_type, rows, dim, optimizer, settings, init, most, shift = spec
    _core.shard_make(
        cluster.core, remote, table_id, row_type, rows, dim, optimizer, settings, init, most, shift, list(blocks)
    )


def cluster_of(space: Space) -> Cluster:
    native = space._native
    if not isinstance(native, Cluster):
        raise BadInput(f"the space {space.name!r} is of one host: leave hosts= out, or open a space over several hosts")
    return native
