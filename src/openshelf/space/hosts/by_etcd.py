"""A space whose hosts agree in etcd: which host this is, how it gets its place, and who the others are.

The file that `hosts=` names holds the key, as for a fixed list; nothing secret goes to etcd. A host that has its part
already needs no etcd to open it: its keeper knows the others, and joins again when etcd is there.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from pathlib import Path

from openshelf.errors import BadInput, Mismatch, NoAgreement, UnknownName
from openshelf.membership import Agreed, Etcd, Spec, Table, View, read_table, realm_of, write_table
from openshelf.space.create import registry
from openshelf.space.create.shard import Shard, read_shard
from openshelf.space.hosts.hosts_file import GRANULE, MOST_HOSTS, Agreement, Hosts, read_hosts
from openshelf.space.hosts.urls import EtcdUrl, host_port, is_local, split

ENVIRONMENT = "OPENSHELF_HOST"
_FIRST_PORT, _PORTS = 7400, 100
_HAS_PORT = re.compile(r"^[^:]+:[0-9]+$|\]:[0-9]+$")
Named = str | os.PathLike[str] | None  # a hosts file


def membership_of(url: EtcdUrl) -> Agreed:
    return Agreed(Etcd(url.servers), url.space)


def own_host(url: EtcdUrl, root: Path) -> str:
    """HOST:PORT of this host: what OPENSHELF_HOST says, where its part is, or a new one."""
    text = os.environ.get(ENVIRONMENT, "")
    named = host_port(text if _HAS_PORT.search(text) else f"{text}:{_FIRST_PORT}") if text else ""
    if named and not is_local(named):
        raise BadInput(f"{ENVIRONMENT}={text}: that is no address of this machine")
    if _HAS_PORT.search(text):
        return named
    address = split(named)[0] if named else _address_towards(url.servers)
    there = sorted(part for part in _parts(root, url.space) if split(part)[0] == address)
    if len(there) > 1:
        raise BadInput(
            f"this machine has parts of {url.space!r} as {' and '.join(there)}: {ENVIRONMENT} says which is meant"
        )
    if there:
        return there[0]
    port = _free_port(address, root)
    return host_port(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")


def _parts(root: Path, space: str = "*") -> list[str]:
    """HOST:PORT of the parts that this user has here."""
    found = root.glob(f"{space}@*:*") if root.exists() else ()
    return [path.name.rpartition("@")[2] for path in found if path.is_dir() and registry.url_of(path.name)]


def _address_towards(servers: tuple[str, ...]) -> str:
    """The address of this machine that etcd, and so probably the other hosts, can reach."""
    for server in servers:
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(*split(server), type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(where)  # sends nothing: the kernel chooses a route
                return str(probe.getsockname()[0])
        except OSError:
            continue
    raise BadInput(f"no route leads to {', '.join(servers)}; {ENVIRONMENT}=HOST says which address this host has")


def _free_port(address: str, root: Path) -> int:
    """One that no other space has: each has a keeper of its own, which may not be running now."""
    taken = {split(part)[1] for part in _parts(root) if split(part)[0] == address}
    for port in range(_FIRST_PORT, _FIRST_PORT + _PORTS):
        if port in taken:
            continue
        try:
            with socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET):
                return port
        except OSError:
            continue
    raise BadInput(f"no port from {_FIRST_PORT} on is free at {address}; {ENVIRONMENT}=HOST:PORT chooses another")


def _listed(
    url: EtcdUrl, key: Hosts, hosts: tuple[str, ...], base: int, reserve: int, realm: int, replicas: int
) -> Hosts:
    agreement = Agreement(url.servers, url.space, realm, replicas)
    return Hosts(key.path, key.key, hosts, reserve, base, agreement=agreement)


def locate(url: EtcdUrl, hosts: Named) -> tuple[Hosts, int]:
    """Who the hosts are, and the number of this one, from its part; UnknownName if it has none."""
    key, root = read_hosts(hosts, only_key=True), registry.root().resolve()
    directory = root / f"{url.space}@{own_host(url, root)}"
    if not directory.exists():
        raise UnknownName(f"this host has no part of {url}: nobody has opened it here")
    return of_part(url, key, directory)


def of_part(url: EtcdUrl, key: Hosts, directory: Path) -> tuple[Hosts, int]:
    shard, table = read_shard(directory), read_table(directory)
    hosts = table.view.hosts if table is not None else shard.hosts
    return _listed(url, key, hosts, shard.base, shard.reserve, shard.realm, shard.replicas), shard.own


def view_of(url: EtcdUrl) -> View:
    """The hosts, as etcd has them. Nothing is made; UnknownName if the space is not there."""
    membership = membership_of(url)
    if membership.spec() is None:
        raise UnknownName(f"there is no space {url.space!r} in the etcd at {', '.join(url.servers)}")
    return membership.view()


class Joined:
    """A host that has joined to make its part: what the part is to be, and what its keeper begins with."""

    def __init__(self, url: EtcdUrl, key: Hosts, host: str, unit: int, replicas: int | None) -> None:
        membership = membership_of(url)
        self.membership = membership
        spec = membership.spec() or membership.make(_new_spec(url, key, replicas or 1))
        check_replicas(url, spec.replicas, replicas)
        self.ticket = membership.join(host, secrets.token_hex(8))
        self.view = membership.view()
        realm = realm_of(spec)
        self.listed = _listed(url, key, self.view.hosts, spec.base, spec.reserve, realm, spec.replicas)
        own = tuple(name if number == self.ticket.number else "" for number, name in enumerate(self.view.hosts))
        self.shard = Shard(
            url.space, spec.base, spec.reserve, own, self.ticket.number, unit, url.servers, realm, self.ticket.life,
            spec.replicas,
        )  # fmt: skip


def finish_joining(url: EtcdUrl, host: str, directory: Path) -> None:
    """For a process that was killed between making the part and noting who the others are."""
    if read_table(directory) is None:
        membership = membership_of(url)
        ticket = membership.join_again(host, read_shard(directory).life)
        write_table(directory, Table(membership.view(), ticket))


def check_replicas(url: EtcdUrl, there: int, wanted: int | None) -> None:
    """Mismatch if the space was made with another number than is asked for."""
    if wanted not in (None, there):
        raise Mismatch(f"{url} was made with replicas={there}, not {wanted}: that is decided when a space is made")


def _new_spec(url: EtcdUrl, key: Hosts, replicas: int = 1) -> Spec:
    """Of a space that nobody has made: its addresses are those of a fixed list of as many hosts."""
    reserve = key.reserve or GRANULE
    full = Hosts(key.path, key.key, ("",) * MOST_HOSTS, reserve, key.base, key.bases)
    return Spec(secrets.token_hex(8), full.base_of(url.space), reserve, MOST_HOSTS, replicas)


def leave(directory: Path) -> bool:
    """Tells the others that what lives in this host's part goes for good, if its hosts agree; whether they do.

    NoAgreement if they cannot be told.
    """
    table = read_table(directory)
    if table is None:
        return False
    shard = read_shard(directory)
    try:
        membership_of(EtcdUrl(shard.servers, shard.space)).leave(table.ticket)
    except NoAgreement as error:
        raise NoAgreement(f"{directory} was not removed: its host could not leave the space: {error}") from None
    return True
