"""Looking at a space without taking part in it: nothing is made, no keeper is started, no host joins.

Commands that only show use this: a question must not change what it asks about. By `Space.open`, a URL would make this
host's part of a space, and a space with a flash tier would get a keeper.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from openshelf import _core
from openshelf.errors import HostLost, NotPermitted, UnknownName
from openshelf.space.create import registry
from openshelf.space.create.shard import read_shard
from openshelf.space.hosts import by_etcd, join, start_keeper
from openshelf.space.hosts.hosts_file import Hosts
from openshelf.space.hosts.urls import ETCD, is_url, parse_etcd
from openshelf.space.locality.flash import tiers_of
from openshelf.space.space import Space

Named = str | os.PathLike[str] | None  # a hosts file


def look(name: str, *, hosts: Named = None) -> Space:
    """A space, read-only, by name, path or URL, if it can be read without a keeper or has one that runs.

    By URL: this host's part, with the other hosts if its keeper runs; UnknownName if this host has no part.
    """
    if not is_url(name):
        directory = registry.find(name)
        if _tiered(directory) and not start_keeper.answers(start_keeper.of_space(directory).socket):
            raise NotPermitted(
                f"the space {name!r} has a flash tier, and no process has it open: its bytes can be read only through "
                "its keeper, which looking does not start; open the space in some process first"
            )
        return Space.open(name, "r", hosts=hosts)
    directory = _part(name, hosts)
    return Space.open(name, "r", hosts=hosts) if _kept(directory) else _unattached(directory)


def describe_space(name: str, *, hosts: Named = None) -> dict[str, Any]:
    """What Space.describe() says, and its arrays as `entries`. No keeper is needed; who looks is no member."""
    directory = None if is_url(name) else registry.find(name)
    tiered = directory is not None and _tiered(directory)
    with _unattached(directory) if tiered and directory else look(name, hosts=hosts) as space:
        facts, entries = space.describe(), space.list()
    facts["members"] = [one for one in facts["members"] if not (one["read_only"] and one["pid"] == os.getpid())]
    if tiered:
        facts["tiers"] = tiers_of(name)[name]
    return facts | {"entries": [entry._asdict() for entry in entries]}


def hosts_of(url: str, *, hosts: Named = None) -> list[dict[str, Any]]:
    """As Space.hosts(). If no keeper runs here, or this host has no part of the space, the others are called."""
    if url.startswith(ETCD):
        return _agreed_hosts(url, hosts)
    found, listed, own = join.locate(url, hosts)
    directory = registry.root().resolve() / f"{found.space}@{listed.hosts[own]}"
    if directory.exists() and _kept(directory):
        with Space.open(url, "r", hosts=hosts) as space:
            return space.hosts()
    numbers = range(len(listed.hosts))
    with ThreadPoolExecutor(len(listed.hosts)) as pool:
        return list(pool.map(lambda number: _called(found.space, listed, own, number, directory), numbers))


def _agreed_hosts(text: str, hosts: Named) -> list[dict[str, Any]]:
    """Of hosts that agree in etcd: by this host's keeper if it runs, else what etcd knows of them."""
    url = parse_etcd(text)
    try:
        directory = join.directory_of(text, hosts)
        if _kept(directory):
            with Space.open(text, "r", hosts=hosts) as space:
                return space.hosts()
    except UnknownName:  # this host has no part
        pass
    view = by_etcd.view_of(url)
    nothing = dict.fromkeys(("round_trip_us", "bandwidth", "misses", "recalls", "bytes", "free"))
    return [
        {"host": host, "number": number, "own": False, "up": bool(term), "state": "up" if term else "down", **nothing}
        for number, (host, term) in enumerate(zip(view.hosts, view.terms, strict=True))
        if host
    ]


def _called(space: str, listed: Hosts, own: int, number: int, directory: Path) -> dict[str, Any]:
    """One host, as it answers now."""
    one: dict[str, Any] = {"host": listed.hosts[number], "number": number, "own": number == own}
    one |= {"round_trip_us": None, "bandwidth": None, "misses": None, "recalls": None}
    try:
        if number == own:
            if not directory.exists():
                raise UnknownName(f"nobody has opened {space!r} on this host")
            stats: dict[str, Any] = _core.Core.open(str(directory), True, registry.boot_id()).stats()
        else:
            remote = _core.Remote(
                listed.hosts[number], number, listed.key, space, own, len(listed.hosts), listed.base_of(space),
                listed.reserve, listed.realm, True,
            )  # fmt: skip
            remote.stats()  # it connects
            start = time.perf_counter()
            stats = remote.stats()
            one["round_trip_us"] = (time.perf_counter() - start) * 1e6
            remote.close()
        return one | {"up": True, "state": "up", "bytes": stats["bytes"], "free": stats["free"]}
    except UnknownName:
        return one | {"up": False, "state": "unopened", "bytes": None, "free": None}
    except HostLost:
        return one | {"up": False, "state": "down", "bytes": None, "free": None}


def _part(url: str, hosts: Named) -> Path:
    try:
        return join.directory_of(url, hosts)
    except UnknownName:
        raise UnknownName(
            f"this host has no part of {url}: nobody has opened it here. Space.open() with the URL makes one; "
            "`openshelf hosts` with the URL shows who has opened it"
        ) from None


def _kept(directory: Path) -> bool:
    """Whether the keeper of this host runs."""
    shard = read_shard(directory)
    return start_keeper.answers(start_keeper.socket_path(directory.parent, shard.hosts[shard.own]))


def _tiered(directory: Path) -> bool:
    return (directory / "tiers").exists()


def _unattached(directory: Path) -> Space:
    """Without a keeper. Of a space with a flash tier only names and counts can be read."""
    core = _core.Core.open(str(directory), True, registry.boot_id())
    core.check_usable()
    return Space(core)
