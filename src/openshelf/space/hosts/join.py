"""Opening a space by URL: this host's part is made if it is not there, its keeper is started, the others are called."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openshelf import _core
from openshelf._sizes import format_size, parse_size, whole
from openshelf.errors import (
    AddressOccupied,
    BadInput,
    Corrupt,
    HostLost,
    Mismatch,
    NotPermitted,
    OpenshelfError,
    Refused,
    WrongVersion,
)
from openshelf.membership import MOST_REPLICAS, Table, write_table
from openshelf.space import faults
from openshelf.space.create import registry
from openshelf.space.create.create import check_base, make
from openshelf.space.create.shard import Shard, read_shard
from openshelf.space.hosts import by_etcd, start_keeper
from openshelf.space.hosts.cluster import Cluster
from openshelf.space.hosts.hosts_file import Hosts, read_hosts
from openshelf.space.hosts.peers import Peer, Peers
from openshelf.space.hosts.replicated import Replicated
from openshelf.space.hosts.urls import ETCD, EtcdUrl, Url, parse_etcd, parse_url

DEFAULT_ROOM = 64 << 20  # of a part that is made without contribute=
DEFAULT_UNIT = 64 << 10
_KNOCK_MS = 300  # a host that takes longer to say hello is looked for when it is needed
_END_S = 5.0  # for the keeper of a part that was removed
_SMALLEST_UNIT, _LARGEST_UNIT = 4 << 10, 2 << 20

_open: weakref.WeakValueDictionary[tuple[int, int], Cluster] = weakref.WeakValueDictionary()
_gate = threading.Lock()


def _new_gate() -> None:
    global _gate
    _gate = threading.Lock()


os.register_at_fork(after_in_child=_new_gate)  # another thread may have held it


def join(
    text: str,
    read_only: bool,
    contribute: str | int | None,
    unit: str | int | None,
    hosts: str | os.PathLike[str] | None,
    replicas: int | None = None,
) -> Cluster:
    """This process's view of the space; the same object for all who open it here."""
    room = None if contribute is None else parse_size(contribute)
    _check_replicas(text, replicas)
    with _gate:
        if text.startswith(ETCD):
            root, shard, listed = _ensure_agreed(parse_etcd(text), hosts, room, unit, replicas)
        else:
            url, listed, own = locate(text, hosts)
            root, shard = _ensure_shard(url, listed, own, room, unit)
        directory = root / shard.directory
        status = directory.stat()
        try:
            core = _core.Core.open(str(directory), read_only, registry.boot_id())
        except AddressOccupied:
            registry.check_address_limit(shard.reserve)
            raise
        cluster = _open.get((status.st_dev, status.st_ino))
        if cluster is None or cluster.core is not core:
            cluster = _join(root, directory, core, shard, listed, read_only)
            _open[status.st_dev, status.st_ino] = cluster
    return cluster


def _check_replicas(text: str, replicas: int | None) -> None:
    if replicas is None:
        return
    if not text.startswith(ETCD):
        raise BadInput(
            f"replicas={replicas!r} with {text!r}: only hosts that agree in etcd can decide which copy counts when one "
            "of them is lost; open the space by etcd://HOST:2379/NAME"
        )
    if whole(replicas, "replicas") not in range(1, MOST_REPLICAS + 1):
        raise BadInput(f"replicas={replicas}: an array is on 1 to {MOST_REPLICAS} hosts")


def host_of(text: str, hosts: str | os.PathLike[str] | None) -> tuple[Hosts, int]:
    """The hosts of a space by URL, and the number of this one among them."""
    if text.startswith(ETCD):
        return by_etcd.locate(parse_etcd(text), hosts)
    _, listed, own = locate(text, hosts)
    return listed, own


def locate(text: str, hosts: str | os.PathLike[str] | None) -> tuple[Url, Hosts, int]:
    """The URL taken apart, the hosts file, and the number of this host in it."""
    url, listed = parse_url(text), read_hosts(hosts)
    return url, listed, listed.own_of(url.host)


def make_part(space: str, contribute: str | int | None, listed: Hosts, own: int) -> None:
    """Makes this host's part of a space, or lets it grow, without a keeper and without asking other hosts."""
    room = None if contribute is None else parse_size(contribute)
    _ensure_shard(Url(listed.hosts[own], registry.check_name(space)), listed, own, room, None)


def directory_of(text: str, hosts: str | os.PathLike[str] | None) -> Path:
    """The directory of this host's part of a space; UnknownName if there is none."""
    if text.startswith(ETCD):
        etcd = parse_etcd(text)
        root = registry.root().resolve()
        return registry.find_directory(text, root / f"{etcd.space}@{by_etcd.own_host(etcd, root)}")
    url, listed, own = locate(text, hosts)
    return registry.find_directory(text, registry.root().resolve() / f"{url.space}@{listed.hosts[own]}")


def let_go(directory: Path) -> None:
    """Has the keeper close this host's part; NotPermitted while processes of this host have it open."""
    sock = start_keeper.socket_path(directory.parent, directory.name.partition("@")[2])
    try:
        if start_keeper.answers(sock):
            _core.close_space(str(sock), str(directory), _id_of(directory))
        elif members := _core.live_members(
            str(directory), False
        ):  # their keeper was killed, and the next one is not there yet
            raise NotPermitted(f"{members} processes of this host have the space open")
    except NotPermitted as error:
        raise NotPermitted(f"{directory} is in use: {error}; close it there first, views included") from None
    except (Corrupt, WrongVersion):  # too damaged to be open anywhere
        pass
    if by_etcd.leave(directory):
        start_keeper.await_end(sock, _END_S)  # it hears that its part is gone


def _id_of(directory: Path) -> int:
    try:
        return _core.space_id(str(directory))
    except (Corrupt, WrongVersion):
        return 0  # whatever the keeper has under this path


def _ensure_shard(url: Url, listed: Hosts, own: int, room: int | None, unit: str | int | None) -> tuple[Path, Shard]:
    wanted = Shard(url.space, listed.base_of(url.space), listed.reserve, listed.hosts, own, _unit(unit))
    with registry.locked() as named:
        root = named.resolve()  # as the keeper, which is another process, must call it
        registry.clear_debris(root)
        directory = root / wanted.directory
        if not directory.exists():
            check_base(root, wanted.base, len(wanted.hosts) * wanted.reserve, url.space)
            base = wanted.base + own * wanted.reserve
            make(
                root, wanted.directory, room or DEFAULT_ROOM, None, None, base, wanted.reserve, wanted
            )  # fmt: skip
            return root, wanted
        there = read_shard(directory)
        _compare(there, wanted, directory, unit is not None)
        if room is not None:
            _grow(directory, room)
    return root, Shard(url.space, there.base, there.reserve, listed.hosts, own, there.unit)


def _ensure_agreed(
    url: EtcdUrl,
    hosts: str | os.PathLike[str] | None,
    room: int | None,
    unit: str | int | None,
    replicas: int | None,
) -> tuple[Path, Shard, Hosts]:
    """As `_ensure_shard`, where the hosts agree: one that has no part yet joins before it makes it."""
    key, size = read_hosts(hosts, only_key=True), _unit(unit)
    with registry.locked() as named:
        root = named.resolve()
        registry.clear_debris(root)
        host = by_etcd.own_host(url, root)
        directory = root / f"{url.space}@{host}"
        if not directory.exists():
            if not start_keeper.await_end(start_keeper.socket_path(root, host), _END_S):  # of a part that was removed
                raise NotPermitted(
                    f"a keeper of another space runs as {host}: set {by_etcd.ENVIRONMENT} to another HOST:PORT"
                )
            joined = by_etcd.Joined(url, key, host, size, replicas)
            shard = joined.shard
            check_base(root, shard.base, len(shard.hosts) * shard.reserve, url.space)
            base = shard.base + shard.own * shard.reserve
            make(root, shard.directory, room or DEFAULT_ROOM, None, None, base, shard.reserve, shard)
            write_table(directory, Table(joined.view, joined.ticket))
            return root, shard, joined.listed
        by_etcd.finish_joining(url, host, directory)
        listed, _ = by_etcd.of_part(url, key, directory)
        there = read_shard(directory)
        by_etcd.check_replicas(url, there.replicas, replicas)
        if unit is not None and there.unit != size:
            raise BadInput(f"{directory} has units of {format_size(there.unit)}, not {format_size(size)}")
        if room is not None:
            _grow(directory, room)
    return root, there, listed


def _unit(unit: str | int | None) -> int:
    size = DEFAULT_UNIT if unit is None else parse_size(unit)
    if not _SMALLEST_UNIT <= size <= _LARGEST_UNIT or size & (size - 1):
        raise BadInput(f"unit={unit!r}: expected a power of two from 4 KiB to 2 MiB")
    return size


def _compare(there: Shard, wanted: Shard, directory: Path, unit_given: bool) -> None:
    """What was made for other addresses, another place in the list, or another number of hosts cannot be used."""
    remedy = "; Space.remove() with its URL takes this host's part away, with the arrays that live here"

    def facts(shard: Shard) -> str:
        size = format_size(shard.reserve)
        return f"host {shard.own} of {len(shard.hosts)}, addresses from {shard.base:#x}, {size} a host"

    if facts(there) != facts(wanted):
        raise BadInput(f"{directory} was made as {facts(there)}; the hosts file says {facts(wanted)}{remedy}")
    if unit_given and there.unit != wanted.unit:
        raise BadInput(f"{directory} has units of {format_size(there.unit)}, not {format_size(wanted.unit)}{remedy}")


def _grow(directory: Path, room: int) -> None:
    core = _core.Core.open(str(directory), False, registry.boot_id())
    made = registry.header(directory).made
    if room < made:
        raise Mismatch(
            f"contribute={format_size(room)}: this host's part at {directory} was made with {format_size(made)}; leave "
            "it out, or ask for more"
        )
    more = room - int(core.stats()["bytes"])
    if more > 0:
        registry.check_room(directory, more)
        core.grow(more)


def _join(root: Path, directory: Path, core: _core.Core, shard: Shard, listed: Hosts, read_only: bool) -> Cluster:
    there = _prove(listed, shard) if listed.agreement is None else set()  # hosts of an agreement are met as they come
    keeper = start_keeper.of_host(root, listed, shard.own)
    faults.wanted()  # checked before a keeper takes it over
    names = [host or f"number {number}" for number, host in enumerate(listed.hosts)]
    attachment = start_keeper.meet(
        keeper, lambda sock: _core.attach(core, sock, names, shard.own, shard.unit, keeper.command)
    )
    if attachment.faults == "none":
        faults.tell_none(
            "views of other hosts' arrays do not work here; space.get, space.put, atomics, locks and channels do"
        )

    def peer(number: int, host: str) -> Peer:
        remote = _core.Remote(
            host, number, listed.key, shard.space, shard.own, len(shard.hosts), shard.base, shard.reserve,
            listed.realm, read_only,
        )  # fmt: skip
        remote.set_mapped(attachment.faults != "none")
        remote.keep(core)  # and with it the mapping: a view outlives the handle of its space
        return Peer(number, host, remote)

    peers = Peers([], lambda: _links(attachment))
    kind = Replicated if shard.replicas > 1 else Cluster
    cluster = kind(shard, core, peers, attachment, peer, listed.path)
    cluster.meet(listed.hosts)
    for number in there:
        _check_list(cluster.peer_of(number))
    return cluster


def _prove(listed: Hosts, shard: Shard) -> set[int]:
    """The numbers of hosts that answer to our key. Refused if one does not: its arrays would be missed in silence."""
    others = [(number, host) for number, host in enumerate(shard.hosts) if number != shard.own]

    def knock(host: str) -> str:
        name, _, port = host.rpartition(":")
        return _core.knock(name, int(port), listed.key, _KNOCK_MS)

    if not others:
        return set()
    with ThreadPoolExecutor(len(others)) as pool:
        found = list(pool.map(knock, [host for _, host in others]))
    if strangers := [host for (_, host), said in zip(others, found, strict=True) if said == "unanswered"]:
        raise Refused(
            f"{', '.join(strangers)} refused this host: what listens there has another key than {listed.path}. Copy "
            "one hosts file to all hosts, and restart the keepers that run with another"
        )
    return {number for (number, _), said in zip(others, found, strict=True) if said == "proven"}


def _check_list(peer: Peer) -> None:
    """Refused if the host has another list of hosts, or other addresses."""
    with contextlib.suppress(HostLost):  # it has just ended, or nobody there has opened the space
        peer.ask(lambda remote: remote.stats())


def _links(attachment: _core.Attachment) -> set[int]:
    try:
        return {int(one["number"]) for one in attachment.status() if one["up"]}
    except OpenshelfError:
        return set()
