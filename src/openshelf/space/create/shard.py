"""What a shard knows of the space that it is a part of: a small file, written before anybody sees the directory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from openshelf import _files
from openshelf.errors import Corrupt, NotPermitted

FILE = "shard"


@dataclasses.dataclass(frozen=True)
class Shard:
    """One host's part of a space."""

    space: str
    base: int  # of host 0
    reserve: int  # of each host
    hosts: tuple[str, ...]
    own: int
    unit: int  # bytes that are fetched, invalidated and written back at once
    servers: tuple[str, ...] = ()  # of the etcd in which its hosts agree; none: the list is fixed
    realm: int = 0  # which agreement
    life: str = ""  # of this part: one that is made anew has another
    replicas: int = 1  # hosts that have each named array

    @property
    def directory(self) -> str:
        return f"{self.space}@{self.hosts[self.own]}"

    def write(self, directory: Path) -> None:
        _files.write_own(directory / FILE, json.dumps(dataclasses.asdict(self)).encode() + b"\n")


def read_shard(directory: Path) -> Shard:
    path = directory / FILE
    try:
        found = json.loads(_files.read_own(path))
        lists = {name: tuple(found.get(name, ())) for name in ("hosts", "servers")}
        return Shard(**{**found, **lists})
    except NotPermitted:
        raise
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"{path} cannot be read ({error}); remove the space on this host") from None


def range_of(directory: Path) -> tuple[int, int] | None:
    """The addresses of all hosts together; None if the directory is no shard's."""
    if not (directory / FILE).exists():
        return None
    shard = read_shard(directory)
    return shard.base, shard.base + len(shard.hosts) * shard.reserve
