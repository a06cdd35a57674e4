"""The hosts of a space: the private file that lists them with their common key, and URLs that name one of them.

The file is the same on every host. Its `key` stands on a line of its own: a keeper starts without a YAML parser and
reads only that line.

    key: 5f0c...                              # 64 hex digits; who has them can read and write every space
    hosts: ["10.0.0.1:7400", "10.0.0.2:7400"] # a host's number is its place here
    reserve: 128GiB                           # optional: addresses of one host
    base: {demo: 0x2400_0000_0000}            # optional: where a space's addresses begin; or one number for all

Instead of a list, `hosts: job` means the nodes of the Slurm or torchrun job that the process is of, with one `port`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from openshelf import _core, _files
from openshelf._sizes import format_size, parse_size
from openshelf.errors import BadInput, NameTaken, NotPermitted, UnknownName
from openshelf.space.hosts import job
from openshelf.space.hosts.urls import JOB, host_port, own_host

ENVIRONMENT = "OPENSHELF_HOSTS"
MOST_HOSTS = 32
FIRST, LAST, GRANULE = 0x2400_0000_0000, 0x3000_0000_0000, 128 << 30
_KEY_LINE = re.compile(rb"""^key:[ \t]*["']?([0-9a-fA-F]{64})["']?[ \t]*(#.*)?\r?$""", re.MULTILINE)
_MOST_BYTES = 1 << 16


class Agreement(NamedTuple):
    """Where the hosts of a space agree on who they are."""

    servers: tuple[str, ...]  # of etcd
    space: str
    realm: int  # which agreement: hosts of another one are refused
    replicas: int = 1  # hosts that have each named array


@dataclasses.dataclass(frozen=True)
class Hosts:
    """What the file says, or, with an agreement, who the hosts are now: those that are not there yet have no name."""

    path: Path
    key: bytes = dataclasses.field(repr=False)  # never in a log
    hosts: tuple[str, ...]
    reserve: int = GRANULE
    base: int | None = None  # of every space
    bases: tuple[tuple[str, int], ...] = ()  # of some
    own: int | None = None  # in a job: which host this one is
    agreement: Agreement | None = None

    @property
    def realm(self) -> int:
        """What all hosts must have alike: the agreement, or the list."""
        return self.agreement.realm if self.agreement else _core.hosts_hash(list(self.hosts))

    def base_of(self, space: str) -> int:
        """Where the addresses of host 0 begin: equal on all hosts without a word between them."""
        chosen = dict(self.bases).get(space, self.base)
        if chosen is not None:
            if chosen + len(self.hosts) * self.reserve > 1 << 47:
                raise BadInput(f"{self.path}: with base {chosen:#x} the last host's addresses are beyond 128 TiB")
            return chosen
        bases = (LAST - FIRST - len(self.hosts) * self.reserve) // GRANULE + 1
        if bases < 1:
            raise BadInput(
                f"{self.path}: {len(self.hosts)} hosts with {format_size(self.reserve)} each do not fit the "
                f"{format_size(LAST - FIRST)} of addresses that are free in every process; reserve less, or give a base"
            )
        return FIRST + _hash(space) % bases * GRANULE

    def own_of(self, named: str | None) -> int:
        """Which host this one is: what a URL or an option names if that is here, else the only one that is."""
        if self.own is not None and named in (None, JOB, self.hosts[self.own]):
            return self.own
        if named == JOB:
            raise BadInput(f"the host 'job' goes with `hosts: job`; {self.path} lists {', '.join(self.hosts)}")
        return self.number(own_host(named, self.hosts))

    def number(self, host: str) -> int:
        """Which host of the list that is."""
        name = host_port(host)
        if name not in self.hosts:
            raise UnknownName(f"{name} is not one of the hosts in {self.path}: {', '.join(self.hosts)}")
        return self.hosts.index(name)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def default_path() -> Path:
    """The file that is read if none is given."""
    chosen = os.environ.get(ENVIRONMENT)
    if chosen:
        return Path(chosen)
    from openshelf.fabric import local_path  # here: most processes need nothing else of it, and it is large

    return local_path().with_name("hosts.yaml")


def read_hosts(path: str | os.PathLike[str] | None = None, *, only_key: bool = False) -> Hosts:
    """Reads and checks the file; NotPermitted if anybody else could read it, BadInput with line and reason.

    `only_key`: the file need not list hosts, and those that it lists do not count.
    """
    where = _files.given_path(path if path is not None else default_path(), "hosts")
    text = _private_bytes(where)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BadInput(f"{where}{line}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError):
        raise BadInput(f"{where}: not YAML") from None
    return _Reader(where, text).hosts(node, only_key)


def _private_bytes(path: Path) -> bytes:
    try:
        text = _files.read_own(path, _MOST_BYTES + 1, secret=True)
    except FileNotFoundError:
        raise UnknownName(
            f"there is no hosts file {path}; `openshelf hosts new {path} HOST:PORT...` makes one, hosts= or "
            f"{ENVIRONMENT} name another"
        ) from None
    except NotPermitted as error:
        raise NotPermitted(f"the hosts file holds a key: {error}; if it is yours: chmod 600 {path}") from None
    except OSError as error:
        raise NotPermitted(f"the hosts file {path} cannot be read: {error.strerror}") from None
    if len(text) > _MOST_BYTES:
        raise BadInput(f"{path}: longer than {_MOST_BYTES} bytes, which no hosts file is")
    return text


class _Reader:
    """From YAML nodes, which know their line; scalars are taken as written, so that a key of digits stays text."""

    def __init__(self, path: Path, text: bytes) -> None:
        self.path, self.text = path, text

    def wrong(self, node: yaml.Node | None, message: str) -> BadInput:
        line = f", line {node.start_mark.line + 1}" if node is not None else ""
        return BadInput(f"{self.path}{line}: {message}")

    def hosts(self, node: yaml.Node | None, only_key: bool) -> Hosts:
        if not isinstance(node, yaml.MappingNode):
            raise self.wrong(node, "expected a mapping with the keys 'key' and 'hosts'")
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name not in ("key", "hosts", "base", "reserve", "port"):
                raise self.wrong(key, f"unknown key {name!r}; expected key, hosts, base, reserve, port")
            if name in found:
                raise self.wrong(key, f"{name!r} is given twice")
            found[name] = value
        for name in ("key",) if only_key else ("key", "hosts"):
            if name not in found:
                raise self.wrong(node, f"{name!r} is missing")
        made: dict[str, Any] = {"key": self.key(found["key"])}
        if only_key:
            made["hosts"] = ()
        elif isinstance(found["hosts"], yaml.ScalarNode) and found["hosts"].value == JOB:
            listed = job.of_environment(self.port(found["port"]) if "port" in found else job.DEFAULT_PORT)
            if len(listed.hosts) > MOST_HOSTS:
                raise self.wrong(found["hosts"], f"the job has {len(listed.hosts)} nodes, the most are {MOST_HOSTS}")
            made |= {"hosts": tuple(host_port(name) for name in listed.hosts), "own": listed.own}
        elif "port" in found:
            raise self.wrong(found["port"], "'port' goes with `hosts: job`; in a list each host has its own")
        else:
            made["hosts"] = self.names(found["hosts"])
        if "reserve" in found:
            made["reserve"] = self.reserve(found["reserve"])
        if "base" in found:
            base = found["base"]
            if isinstance(base, yaml.MappingNode):
                made["bases"] = tuple((self.scalar(space, "a space"), self.base(at)) for space, at in base.value)
            else:
                made["base"] = self.base(base)
        return Hosts(self.path, **made)

    def scalar(self, node: yaml.Node, what: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self.wrong(node, f"expected {what}")
        return str(node.value)

    def key(self, node: yaml.Node) -> bytes:
        text = self.scalar(node, "a key of 64 hex digits")
        if not re.fullmatch("[0-9a-fA-F]{64}", text):
            raise self.wrong(node, f"'key' must be 64 hex digits, these are {len(text)} characters")  # not shown
        plain = _KEY_LINE.findall(self.text)
        if len(plain) != 1 or plain[0][0].decode() != text:
            raise self.wrong(node, "write `key: ` and the digits on a line of their own, without indentation")
        return bytes.fromhex(text)

    def names(self, node: yaml.Node) -> tuple[str, ...]:
        if not isinstance(node, yaml.SequenceNode):
            raise self.wrong(node, "'hosts' must be a list of HOST:PORT")
        names: list[str] = []
        for each in node.value:
            text = self.scalar(each, "HOST:PORT")
            try:
                name = host_port(text)
            except BadInput as error:
                raise self.wrong(each, str(error)) from None
            if name in names:
                raise self.wrong(each, f"{text!r} is in the list twice")
            names.append(name)
        if not 1 <= len(names) <= MOST_HOSTS:
            raise self.wrong(node, f"expected 1 to {MOST_HOSTS} hosts, got {len(names)}")
        return tuple(names)

    def port(self, node: yaml.Node) -> int:
        text = self.scalar(node, "a port")
        if not text.isdecimal() or not 1 <= int(text) <= 65535:
            raise self.wrong(node, f"'port' must be 1 to 65535, got {text!r}")
        return int(text)

    def reserve(self, node: yaml.Node) -> int:
        text = self.scalar(node, "a size")
        try:
            size = parse_size(int(text) if text.isdecimal() else text)
        except BadInput as error:
            raise self.wrong(node, str(error)) from None
        if size % (1 << 30):
            raise self.wrong(node, f"'reserve' must be a multiple of 1 GiB, got {text!r}")
        if size < _core.SMALLEST_RESERVE:
            raise self.wrong(node, f"'reserve' must be at least {format_size(_core.SMALLEST_RESERVE)}, got {text!r}")
        return size

    def base(self, node: yaml.Node) -> int:
        text = self.scalar(node, "an address")
        try:
            base = int(text, 0)
        except ValueError:
            base = -1
        if base % (2 << 20) or not 1 << 32 <= base < 1 << 47:
            raise self.wrong(node, f"a base is an address from 4 GiB to 128 TiB, a multiple of 2 MiB, got {text!r}")
        return base


def own_number(listed: Hosts, named: str | None = None) -> int:
    """Which host we are: `named`, or the only one of the list that is here."""
    return listed.own_of(None) if named is None else listed.number(named)


def new_hosts_file(path: str | os.PathLike[str], hosts: Sequence[str], *, key: bytes | None = None) -> Hosts:
    """Writes a file with `key` (a new random one), readable by its owner only. NameTaken if there is one.

    Without hosts it is a key for spaces whose hosts agree in etcd.
    """
    if key is not None and len(key) != 32:
        raise BadInput(f"a key has 32 bytes, this one has {len(key)}")
    if isinstance(hosts, str | bytes) or not isinstance(hosts, Iterable):
        raise BadInput(f"expected a list of HOST:PORT, got {hosts!r}")
    names = [host_port(host) for host in hosts]
    if len(names) > MOST_HOSTS:
        raise BadInput(f"expected at most {MOST_HOSTS} hosts, got {len(names)}")
    if len(set(names)) != len(names):
        raise BadInput(f"a host is in the list twice: {', '.join(names)}")
    where = _files.given_path(path, "a hosts file")
    listed = "".join(f'  - "{name}"\n' for name in names)
    text = f"key: {(key or secrets.token_bytes(32)).hex()}\n" + (f"hosts:\n{listed}" if names else "")
    try:
        where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = _files.open_own(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        raise NameTaken(f"{where} exists already; remove it first if no host needs its key any more") from None
    except OSError as error:
        raise NotPermitted(f"the hosts file {where} cannot be made: {error.strerror}") from None
    with os.fdopen(handle, "w") as file:
        file.write(text)
    return read_hosts(where, only_key=not names)
