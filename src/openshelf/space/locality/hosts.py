"""A space over several hosts: every address has a home, and hosts keep copies of what they use."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

from openshelf import _core
from openshelf.errors import BadInput, HostLost
from openshelf.space.copies import Copies, Ranges
from openshelf.space.hosts.cluster import Cluster
from openshelf.space.locality.base import Locality
from openshelf.space.locality.local import copy_here
from openshelf.space.native import Maker
from openshelf.space.transfer import Asked, Part, Pinned, Transfer


class SeveralHosts(Locality):
    """A space over several hosts, as seen from this one."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def on(self, home: str | int) -> Maker:
        return self._cluster.on(home)

    def host_of(self, home: str | int) -> str:
        return self._cluster.hosts[self._cluster.number_of_host(home)]

    def home(self, address: int) -> str:
        number = self._cluster.number_of(address)
        return self._cluster.hosts[number] or self._cluster.peer_of(number).host

    def owner(self, address: int, nbytes: int) -> str | None:
        cluster = self._cluster
        home = cluster.number_of(address)  # which has the owner of each unit written down
        keeps: Any = cluster.attachment if home == cluster.shard.own else cluster.peer_of(home).remote
        owners = set()
        for (word,) in struct.iter_unpack("<Q", keeps.owners(address, max(1, nbytes))):
            state = word & 3
            owners.add(
                home
                if state == _core.HomeState.AT_HOME
                else word >> 8 & 0xFF
                if state == _core.HomeState.LENT
                else None
            )
        (owner,) = owners if len(owners) == 1 else {None}
        return None if owner is None else cluster.hosts[owner]

    def state(self, address: int, nbytes: int) -> str:
        invalid, shared, modified = self._cluster.attachment.states(address, max(1, nbytes))
        if bool(invalid) + bool(shared) + bool(modified) > 1:
            return "mixed"
        if modified:
            return "home" if self.home(address) == self._cluster.hosts[self._cluster.shard.own] else "modified"
        return "shared" if shared else "invalid"

    def tier(self, address: int, nbytes: int) -> str:
        return "dram"

    def demote(self, address: int, nbytes: int, tier: str, priority: int) -> Transfer:
        raise BadInput(f"demote({tier!r}): a space over several hosts has no flash tier")

    def pin(self, address: int, nbytes: int, priority: int) -> Pinned:
        raise BadInput("pin(): a space over several hosts moves its bytes to where they are used; prefetch() them")

    def buffer(self, pin: _core.Pin, offset: int, nbytes: int) -> tuple[Any, int]:
        return pin, offset

    def flush(self) -> Transfer:
        raise BadInput("flush(): a space over several hosts has no flash tier")

    def describe(self) -> dict[str, Any]:
        return {}

    def prefetch(self, address: int, nbytes: int, write: bool, priority: int) -> Transfer:
        attachment = self._cluster.attachment
        parts = [Asked(attachment, attachment.prefetch(address, nbytes, write))] if nbytes else []
        return Transfer("prefetch", nbytes, parts)

    def prefetch_many(self, ranges: Ranges, priority: int) -> Transfer:
        attachment = self._cluster.attachment
        pairs = zip(ranges.addresses.tolist(), ranges.sizes.tolist(), strict=True)
        parts = [Asked(attachment, attachment.prefetch(address, size, False)) for address, size in pairs if size]
        return Transfer("prefetch", ranges.nbytes, parts, ranges.kept)

    def get(self, wanted: Copies) -> Transfer:
        return self._move(wanted, write=False)

    def put(self, wanted: Copies) -> Transfer:
        self._cluster.refuse_replicas("puts by address")
        return self._move(wanted, write=True)

    def _move(self, wanted: Copies, write: bool) -> Transfer:
        cluster = self._cluster
        rows = self._rows_of(wanted.addresses)
        parts: list[Part] = []
        for number, of_host in rows.items():
            if number == cluster.shard.own or not wanted.row:
                continue
            remote = cluster.peer_of(number).remote
            move = remote.put_bytes if write else remote.get_bytes
            if len(of_host) == len(wanted.addresses) <= _core.RANGES_MAX:
                parts.append(move(wanted.addresses, wanted.buffer, wanted.row))
                continue
            for first, last in _runs(of_host):  # of rows that are together in the buffer
                piece = wanted.buffer[first * wanted.row : last * wanted.row]
                parts.append(move(wanted.addresses[first:last], piece, wanted.row))
        copy_here(cluster.core, wanted, rows.get(cluster.shard.own, ()), write)
        return Transfer("put" if write else "get", wanted.nbytes, parts, wanted)

    def _rows_of(self, addresses: list[int]) -> dict[int, Sequence[int]]:
        """Which rows are of which host."""
        number_of = self._cluster.number_of
        if addresses and number_of(min(addresses)) == (number := number_of(max(addresses))):
            return {number: range(len(addresses))}
        rows: dict[int, list[int]] = {}
        for row, address in enumerate(addresses):
            rows.setdefault(number_of(address), []).append(row)
        return dict(rows)

    def together(self, one: int, other: int) -> bool:
        return self._cluster.number_of(one) == self._cluster.number_of(other)

    def missing(self) -> list[str]:
        return self._cluster.missing()

    def where(self, address: int) -> tuple[int, int]:
        number = self._cluster.number_of(address)
        native = self._cluster.native_of(number)
        stats = native.stats()
        offset = address - int(stats["data_address"])
        if not 0 <= offset < int(stats["bytes"]):
            native.at(address)
        return number, offset

    def hosts(self) -> list[dict[str, Any]]:
        self._cluster.peers  # noqa: B018  # those that have just joined are known then
        status = {int(one["number"]): one for one in self._cluster.attachment.status()}
        return [self._one(number, status.get(number, {})) for number, host in enumerate(self._cluster.hosts) if host]

    def _one(self, number: int, status: dict[str, Any]) -> dict[str, Any]:
        shard = self._cluster.shard
        one = {"host": self._cluster.hosts[number], "number": number, "up": True, "own": number == shard.own}
        one |= {"bytes": None, "free": None, "round_trip_us": None, "bandwidth": None, "misses": None, "recalls": None}
        one |= {name: value for name, value in status.items() if name not in ("host", "number", "own")}
        try:
            if number == shard.own:
                stats = self._cluster.core.stats()
            else:
                peer = self._cluster.peer_of(number)
                peer.ask(lambda remote: remote.check_usable())
                start = time.perf_counter()
                stats = peer.ask(lambda remote: remote.stats())
                one["round_trip_us"] = one["round_trip_us"] or (time.perf_counter() - start) * 1e6
            one.update(up=True, state="up", bytes=stats["bytes"], free=stats["free"])
        except HostLost:
            unopened = number != shard.own and self._cluster.peer_of(number).unopened
            one.update(up=False, state="unopened" if unopened else "down")
        return one


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Rising numbers as ranges, none too long for one transfer."""
    first = last = rows[0]
    for row in rows[1:]:
        if row != last + 1 or row - first == _core.RANGES_MAX:
            yield first, last + 1
            first = row
        last = row
    yield first, last + 1
