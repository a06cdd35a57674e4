"""HOST:PORT, URLs, and which of several hosts this one is."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

from openshelf.errors import BadInput
from openshelf.space.create import registry

SCHEME = "openshelf://"
ETCD = "etcd://"
JOB = "job"  # in a URL: this node of a job; see hosts/job.py
_HOST_PORT = re.compile(r"(\[[^\[\]]*\]|[^\[\]:/\s]+):([0-9]{1,5})")
_HOST_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,62})(\.[a-z0-9][a-z0-9-]{0,62})*")


class Url(NamedTuple):
    """`openshelf://10.0.0.1:7400/demo`: a space, and one of its hosts."""

    host: str
    space: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.host}/{self.space}"


def split(host: str) -> tuple[str, int]:
    """The address, without brackets, and the port of a HOST:PORT."""
    address, _, port = host.rpartition(":")
    return address.strip("[]"), int(port)


def host_port(text: str) -> str:
    """A HOST:PORT in the one form that is compared and shown; BadInput if it is none that others could call."""
    if not isinstance(text, str) or not (match := _HOST_PORT.fullmatch(text.strip())):
        raise BadInput(f"{text!r} is not HOST:PORT; expected such as '10.0.0.1:7400', '[fd00::1]:7400', 'node1:7400'")
    host, port = match[1], int(match[2])
    if not 1 <= port <= 65535:
        raise BadInput(f"{text!r} is not HOST:PORT: ports are 1 to 65535")
    bracketed = host.startswith("[")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        name = host.lower()
        # All digits and dots would be an address that somebody mistyped.
        if bracketed or not _HOST_NAME.fullmatch(name) or re.fullmatch(r"[0-9.]+", name):
            raise BadInput(f"{text!r} is not HOST:PORT: {host} is neither an address nor a name of a host") from None
        return f"{name}:{port}"
    if address.is_unspecified or address.is_multicast:
        raise BadInput(f"{text!r}: {address} is no address that other hosts could call; give the host's own")
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id:
        raise BadInput(f"{text!r}: an address with a scope means another host on each host; give one without")
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def is_url(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and name.startswith((SCHEME, ETCD))


class EtcdUrl(NamedTuple):
    """`etcd://10.0.0.7:2379,10.0.0.8:2379/demo`: a space, and servers of the etcd in which its hosts agree."""

    servers: tuple[str, ...]
    space: str

    def __str__(self) -> str:
        return f"{ETCD}{','.join(self.servers)}/{self.space}"


def parse_etcd(text: str) -> EtcdUrl:
    """Takes a URL of etcd apart; BadInput says what is wrong with it."""
    expected = f"expected {ETCD}HOST:PORT/NAME, or several HOST:PORT with commas between them"
    servers, slash, space = text.removeprefix(ETCD).partition("/")
    if not slash or not space:
        raise BadInput(f"{text!r} names no space; {expected}")
    try:
        return EtcdUrl(tuple(host_port(server) for server in servers.split(",")), registry.check_name(space))
    except BadInput as error:
        raise BadInput(f"{text!r}: {error}; {expected}") from None


def parse_url(text: str) -> Url:
    """Takes a URL apart; BadInput says what is wrong with it."""
    expected = f"expected {SCHEME}HOST:PORT/NAME"
    rest = text.removeprefix(SCHEME)
    if rest == text:
        raise BadInput(f"{text!r} is not a URL of a space; {expected}")
    host, slash, space = rest.partition("/")
    if not slash or not space:
        raise BadInput(f"{text!r} names no space; {expected}")
    try:
        return Url(host if host == JOB else host_port(host), registry.check_name(space))
    except BadInput as error:
        raise BadInput(f"{text!r}: {error}; {expected}") from None


def is_local(host: str) -> bool:
    """Whether a host is this machine, or network namespace: then a socket can be bound to its address."""
    address, _ = split(host)
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(where)
                return True
        except OSError:
            continue
    return False


def own_host(named: str | None, hosts: Sequence[str]) -> str:
    """Which host we are: the one that a URL names if it is here, else the only one of the list that is."""
    if named is not None:
        if named not in hosts:
            raise BadInput(f"{named} is not in the hosts file, which lists {', '.join(hosts)}")
        if is_local(named):
            return named
    here = [host for host in hosts if is_local(host)]
    if len(here) == 1:
        return here[0]
    if here:
        raise BadInput(f"this machine is {' and '.join(here)}: name the one that is meant (in the URL, or --host)")
    raise BadInput(f"none of the hosts {', '.join(hosts)} is an address of this machine; add it to every hosts file")
