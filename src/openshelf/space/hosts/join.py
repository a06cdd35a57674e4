"""Opening a space by URL: this host's part is made if it is not there, its keeper is started, the others are called."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openshelf import _core
from openshelf._sizes import format_size, parse_size
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
from openshelf.space import faults
from openshelf.space.create import registry
from openshelf.space.create.create import check_base, make
from openshelf.space.create.shard import Shard, read_shard
from openshelf.space.hosts import start_keeper
from openshelf.space.hosts.cluster import Cluster
from openshelf.space.hosts.hosts_file import Hosts, read_hosts
from openshelf.space.hosts.peers import Peer, Peers
from openshelf.space.hosts.urls import Url, parse_url

DEFAULT_ROOM = 64 << 20  # of a part that is made without contribute=
DEFAULT_UNIT = 64 << 10
_KNOCK_MS = 300  # a host that takes longer to say hello is looked for when it is needed
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
) -> Cluster:
    """This process's view of the space; the same object for all who open it here."""
    url, listed, own = locate(text, hosts)
    room = None if contribute is None else parse_size(contribute)
    with _gate:
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
    there = _prove(listed, shard)
    keeper = start_keeper.of_host(root, listed, shard.own)
    faults.wanted()  # checked before a keeper takes it over
    attachment = start_keeper.meet(
        keeper, lambda sock: _core.attach(core, sock, list(shard.hosts), shard.own, shard.unit, keeper.command)
    )
    if attachment.faults == "none":
        faults.tell_none(
            "views of other hosts' arrays do not work here; space.get, space.put, atomics, locks and channels do"
        )
    peers = []
    for number, host in enumerate(shard.hosts):
        if number != shard.own:
            remote = _core.Remote(
                host, number, listed.key, shard.space, shard.own, len(shard.hosts), shard.base, shard.reserve,
                _core.hosts_hash(list(shard.hosts)), read_only,
            )  # fmt: skip
            remote.set_mapped(attachment.faults != "none")
            remote.keep(core)  # and with it the mapping: a view outlives the handle of its space
            peers.append(Peer(number, host, remote))
            if number in there:
                _check_list(peers[-1])
    return Cluster(shard, core, Peers(peers, lambda: _links(attachment)), attachment, listed.path)


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
