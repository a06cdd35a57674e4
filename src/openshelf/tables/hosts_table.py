"""A table whose rows are on several hosts of one space: the same calls as a Table of one host."""

from __future__ import annotations

import contextlib
import ctypes
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from openshelf import _core
from openshelf._dtypes import of_numpy
from openshelf._sizes import seconds_of, whole
from openshelf.errors import BadInput, Closed, HostLost, NoRoom
from openshelf.space import Cluster, Space, array_name
from openshelf.tables.arguments import NO_IDS, numbers_of, room_for
from openshelf.tables.optimizers import KINDS, NAMES, Optimizer, from_settings
from openshelf.tables.over_hosts import ADD, ROWS, STEPS, OverHosts, cluster_of, make_shard
from openshelf.tables.sharding import Sharding
from openshelf.tables.table import DTYPES, Table, check_offsets

_MAGIC = int.from_bytes(b"OSFTBLH1", "little")
_BLOCKS = 1024  # about so many a table begins with
_COPIES = 1 << 24  # more are of use only where there are more rows
_U64 = of_numpy(np.dtype(np.uint64))


class HostsTable(Table):
    """Rows on several hosts. Thread-safe. Rows of this host are read in place, others are fetched, each once a call.

    Rows that come from other hosts are whole. With `copies`, rows that are asked for often are kept in this process's
    memory, and are at most `fresh_s` seconds old.
    """

    def __init__(self, space: Space, over: OverHosts, name: str) -> None:
        """For Table.create and Table.open."""
        self.name = name
        self._over: OverHosts | None = over
        self._in, self._stake = space._native, space._stake
        facts = over.native.map()
        self.dim = int(facts["dim"])
        self.dtype = DTYPES[facts["row_type"]]
        self._row_bytes, self._state_bytes = int(facts["row_bytes"]), int(facts["state_bytes"])
        self._kind = KINDS[facts["optimizer"]]
        self.optimizer = from_settings(facts["optimizer"], facts["settings"])

    @property
    def _hosts(self) -> OverHosts:
        if self._over is None:
            raise Closed("this Table was closed; open it again")
        return self._over

    @property
    def _core(self) -> Any:
        return self._hosts

    @property
    def rows(self) -> int:
        """How many there are, as far as this process knows."""
        return int(self._hosts.native.rows)

    # Reading

    def _read(self, requests: list[tuple[Any, ...]], threads: int) -> None:
        for request in requests:
            over, ids, offsets, *rest = request[:-2]  # neither title nor winners
            if offsets[0]:
                check_offsets(_numbers_at(offsets), ids[2])
            over.check(ids)
            if request[-1]:
                self._read_maxima(request, threads)
            else:
                over.read((ids, offsets, *rest), threads)

    def _read_maxima(self, request: tuple[Any, ...], threads: int) -> None:
        """Bags of maxima, and the position of the id that each number came from: rows are compared here."""
        over, ids, offsets, bags, _, pooling, _, out, stride, _, consistent, _, winners = request
        rows = np.empty((ids[2], self.dim), np.float32)
        over.read(
            (ids, NO_IDS, ids[2], 1, pooling, 0, _core.address_of(rows), 4 * self.dim, False, consistent), threads
        )
        bounds = [*_numbers_at(offsets).tolist(), ids[2]]
        for bag in range(bags):
            some, first = rows[bounds[bag] : bounds[bag + 1]], bounds[bag]
            best = some.argmax(0) if len(some) else np.full(self.dim, -1 - first)
            _floats_at(out + bag * stride, self.dim)[:] = some[best, np.arange(self.dim)] if len(some) else 0
            _numbers_at((winners + bag * self.dim * 8, 8, self.dim))[:] = first + best

    def keep_copies(self, rows: int, *, fresh_s: float = 2.0) -> None:
        """Keeps copies of up to so many rows of other hosts in this process's memory: those that are asked for most.

        A copy is at most about `fresh_s` seconds old; what this process changes it sees at once. 0 rows: no copies. A
        forked process has none until it asks for some.
        """
        rows = whole(rows, "rows")
        if rows < 0 or not 0.1 <= seconds_of(fresh_s, "fresh_s") <= 3600:
            raise BadInput(f"copies are of 0 or more rows, and 0.1 to 3600 seconds old, got {rows} and {fresh_s!r}")
        most = min(rows, max(self.rows, _COPIES))  # uses of so many are counted from the start
        self._hosts.native.keep_copies(most, float(fresh_s))

    def keep_hot(self, nbytes: int | str) -> None:
        """Rows of a table over hosts are in memory."""
        raise BadInput(
            f"the rows of the table {self.name!r} are all in memory, on several hosts: keep_copies keeps those of "
            "other hosts here, keep_hot is for rows on flash"
        )

    def prefetch(self, ids: Any) -> None:
        """Asks for rows that will be looked up soon, and returns at once. Those of other hosts need keep_copies."""
        found = numbers_of(ids, "ids")
        self._hosts.native.prefetch(found.given)

    def states(self, ids: Any) -> Any:
        """The optimizer's states of these rows: float32 of the shape (ids, numbers a state), whole ones."""
        found = numbers_of(ids, "ids")
        if not self.optimizer_state_width:
            raise BadInput(f"the rows of the table {self.name!r} have no state: its optimizer needs none")
        room = room_for(None, (*found.shape, self.optimizer_state_width), "float32", ids)
        self._hosts.check(found.given)
        self._hosts.until(lambda: self._hosts.native.states(found.given, room.address))
        return room.out

    # Changing

    def _change(self, ids: Any, gradients: int, count: int, offsets: Any, bags: int, mean: bool, weights: int,
                winners: int, settings: Any, any_number: bool, threads: int) -> None:  # fmt: skip
        over = self._hosts
        over.check(ids)
        change = over.native.update(
            ids, gradients, self.dim, count, offsets, bags, mean, weights, winners, settings, any_number
        )  # fmt: skip
        over.change(change, threads)

    def _write(self, ids: Any, rows: int, raw: bool, states: int) -> int:
        over = self._hosts
        over.check(ids)
        over.change(over.native.write(ids, rows, raw, states), 1)
        return int(ids[2])

    def grow(self, more: int) -> None:
        """Adds rows, while others use the table. New blocks go to the hosts that have the fewest."""
        more = whole(more, "how many rows to add")
        if not 0 < more < 1 << 62:
            raise BadInput(f"a table grows by at least one row, got {more}")
        over = self._hosts
        with over.lock():
            over.native.refresh()
            found = over.native.map()
            rows, size = found["rows"] + more, found["block_rows"]
            if rows > size * found["blocks"]:
                raise NoRoom(
                    f"the table {self.name!r} can have {size * found['blocks']} rows, not {rows}: "
                    f"copy it into a new one"
                )
            here = {number: shard["here"] for number, shard in enumerate(found["shards"]) if shard is not None}
            for block in range(len(found["hosts"]), -(-rows // size)):
                host = min(here, key=lambda number: here[number])
                over.block(host, ADD, block)
                here[host] += 1
            for host in here:
                over.block(host, ROWS, 0, rows)
            over.native.refresh()

    # The whole

    def reshard(self, hosts: Sequence[str | int] | Sharding) -> int:
        """Moves blocks of rows to other hosts while the table is in use; how many moved. No update is lost.

        `hosts`: as Table.create takes them. Updates of a block wait while it is copied.
        """
        over = self._hosts
        over.mend(wait=True)
        with over.lock():
            over.native.refresh()
            found = over.native.map()
            wanted = sharding_of(over.cluster, hosts).hosts_of(len(found["hosts"]))
            over.shards(sorted(set(wanted)), _spec(found))
            moved = 0
            for block, (home, host) in enumerate(zip(found["hosts"], wanted, strict=True)):
                if home != host:
                    over.move(block, host)
                    moved += 1
                    over.native.refresh()
        return moved

    def set_steps(self, steps: int) -> None:
        """The optimizer's time, as it was when rows that were restored were saved."""
        over = self._hosts
        for host, shard in enumerate(over.native.map()["shards"]):
            if shard is not None:
                over.block(host, STEPS, 0, steps)

    def stat(self) -> dict[str, Any]:
        """Rows, sizes and counts of all hosts together; what each host has; what this process read from where."""
        over = self._hosts
        over.native.refresh()
        found = over.native.map()
        shards = {over.cluster.shard.hosts[number]: one for number, one in enumerate(found["shards"]) if one}
        lr, eps, *betas = found["settings"]
        kind = NAMES[found["optimizer"]]
        total = {name: sum(one[name] for one in shards.values()) for name in _SUMMED}
        return {
            "table": self.name,
            "dtype": self.dtype,
            **{name: found[name] for name in ("rows", "dim", "row_bytes", "state_bytes", "block_rows")},
            **total,
            "steps": max(one["steps"] for one in shards.values()),
            "optimizer": {"kind": kind if lr else "none", "lr": lr, "eps": eps, "betas": betas},
            "hosts": {host: {"blocks": one["here"], "bytes": one["bytes"]} for host, one in shards.items()},
            "silent": found["silent"],
            **over.native.counts(),
        }

    def close(self) -> None:
        """Forgets this handle and its copies; a second call does nothing."""
        if self._over is not None:
            self._over.native.keep_copies(0, 1.0)
        self._over = None
        self._native = None
        self._stake = None
        vars(self).pop("_in", None)

    def __repr__(self) -> str:
        if self._over is None:
            return "Table(closed)"
        return f"Table({self.name!r}, rows={self.rows}, dim={self.dim}, dtype={self.dtype!r}, over hosts)"


_SUMMED = ("bytes", "updated_rows", "interrupted", "read_rows")


def create_over_hosts(
    space: Space, name: str, rows: int, dim: int, kind: int, optimizer: Optimizer | None, given: tuple[Any, ...],
    hosts: Any, owner_sums: bool, fill: Callable[[Table], None],
) -> HostsTable:  # fmt: skip
    """Makes a shard on each host, fills it, and then publishes the table's name."""
    cluster, full = cluster_of(space), array_name("", name)
    sharding = sharding_of(cluster, hosts)
    shift = max(6, (max(1, rows // _BLOCKS) - 1).bit_length())
    count = -(-rows >> shift)
    room = min(_core.SHARD_BLOCKS, max(_BLOCKS, 16 * count))
    settings = (0.0, 0.0, 0.0, 0.0) if optimizer is None else optimizer.settings
    number = 0 if optimizer is None else KINDS.index(type(optimizer))
    table_id = secrets.randbits(63) | 1
    spec = (kind, rows, dim, number, settings, given, room, shift)
    wanted = sharding.hosts_of(count)
    made: list[int] = []
    try:
        for host in sorted({*wanted, *sharding.hosts}):
            made.append(host)
            make_shard(cluster, host, table_id, spec, [block for block in range(count) if wanted[block] == host])
        table = HostsTable(space, OverHosts(space, cluster, table_id, name, owner_sums), name)
        fill(table)
        words = np.array([_MAGIC, table_id], np.uint64)
        pin = cluster.core.make(16, _U64.code, int(_core.Kind.SHARDED), (2,), "", full, True)
        cluster.fill(pin, words, 16)
        cluster.publish(pin, False)
    except BaseException:
        for host in made:
            remote = None if host == cluster.shard.own else cluster.peer_of(host).remote
            with contextlib.suppress(HostLost):  # the first error says what is wrong
                _core.shard_discard(cluster.core, remote, table_id)
        raise
    return table


def open_over_hosts(space: Space, name: str, owner_sums: bool) -> HostsTable | None:
    """The table of this name, if there is one over several hosts."""
    native = space._native
    if not isinstance(native, Cluster):
        return None
    pin = native.find(array_name("", name))
    if pin is None or pin.kind != _core.Kind.SHARDED:
        return None
    words = np.empty(2, np.uint64)
    space.get(pin.address, words).wait()
    if int(words[0]) != _MAGIC:
        raise BadInput(f"{name!r} is a table of another version of Openshelf: export it there")
    return HostsTable(space, OverHosts(space, native, int(words[1]), name, owner_sums), name)


def sharding_of(cluster: Cluster, hosts: Any) -> Sharding:
    """`hosts`: "all", a list of hosts by address or number, or a Sharding."""
    if cluster.agreed:
        raise BadInput(
            "hosts=: a table over hosts needs a space with a hosts file. The hosts of this one agree in etcd, and a "
            "table would not follow those that join; a table on one host works"
        )
    if isinstance(hosts, Sharding):
        for host in {*hosts.hosts, *hosts.blocks}:
            cluster.number_of_host(host)
        return hosts
    if isinstance(hosts, str) and hosts == "all":
        there = [peer.number for peer, _ in cluster.peers.ask(lambda remote: remote.stats())]
        return Sharding(tuple(sorted([cluster.shard.own, *there])))
    if isinstance(hosts, str) or not isinstance(hosts, Collection) or not len(hosts):
        raise BadInput(f'hosts= is "all", a list of hosts, or a Sharding, got {hosts!r}')
    return Sharding(tuple(cluster.number_of_host(host) for host in hosts))


def _spec(found: dict[str, Any]) -> tuple[Any, ...]:
    return (
        found["row_type"], found["rows"], found["dim"], found["optimizer"], found["settings"], found["init"],
        found["blocks"], found["block_rows"].bit_length() - 1,
    )  # fmt: skip


def _numbers_at(given: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    """What native code is given, as an array."""
    address, size, count = given
    kind = ctypes.c_int64 if size == 8 else ctypes.c_int32
    return np.ctypeslib.as_array((kind * count).from_address(address)) if count else np.empty(0, np.int64)


def _floats_at(address: int, count: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
