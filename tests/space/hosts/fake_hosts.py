"""Several hosts in one process: spaces of this host at the addresses of a cluster, and a switch for each."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from openshelf import Space, _core
from openshelf.errors import HostLost
from openshelf.space.create import registry
from openshelf.space.create.create import make
from openshelf.space.create.shard import Shard
from openshelf.space.hosts.cluster import Cluster
from openshelf.space.hosts.peers import Peer, Peers

RESERVE = 128 << 30
_bases = itertools.count(0x2800_0000_0000, 4 * RESERVE)  # a failed test may hold on to its own


class FakeRemote:
    """A space of this process in the part of another host's; raises HostLost while it is `down`."""

    def __init__(self, core: _core.Core, host: str) -> None:
        self.core, self.host = core, host
        self.down = False
        self.calls = 0
        self.dies_before: set[str] = set()  # methods that lose the host instead

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        if name == "owners":
            return lambda address, nbytes: bytes(8)
        if self.down or name in self.dies_before:
            raise HostLost(f"{self.host} is lost", self.host)
        return getattr(self.core, name)

    def get_bytes(self, addresses: Sequence[int], into: Any, row: int) -> FakeTransfer:
        return FakeTransfer(self, [(into.ctypes.data + n * row, at, row) for n, at in enumerate(addresses)])

    def put_bytes(self, addresses: Sequence[int], source: Any, row: int) -> FakeTransfer:
        return FakeTransfer(self, [(at, source.ctypes.data + n * row, row) for n, at in enumerate(addresses)])


class FakeTransfer:
    """Copies when it is waited for, and not before."""

    def __init__(self, remote: FakeRemote, copies: list[tuple[int, int, int]]) -> None:
        self.remote, self.copies = remote, copies
        self.done = False

    def wait(self, timeout_s: float) -> bool:
        if self.remote.down:
            self.done = True
            raise HostLost(f"{self.remote.host} is lost", self.remote.host)
        for target, source, nbytes in self.copies:
            ctypes.memmove(target, source, nbytes)
        self.done = True
        return True


class FakePeers(Peers):
    def find(self, name: str, besides: int = -1) -> list[tuple[Peer, _core.Pin]]:
        return [(peer, pin) for peer, pin in self.ask(lambda remote: remote.find(name), besides) if pin is not None]


class FakeAttachment:
    faults = "full"

    def __init__(self) -> None:
        self.fetched: list[tuple[int, int, bool]] = []
        self.counts = (0, 0, 1)
        self.words = bytes(8)

    def prefetch(self, address: int, nbytes: int, write: bool) -> int:
        self.fetched.append((address, nbytes, write))
        return len(self.fetched)

    def wait(self, number: int, timeout_s: float) -> bool:
        return True

    def done(self, number: int) -> bool:
        return True

    def states(self, address: int, nbytes: int) -> tuple[int, int, int]:
        return self.counts

    def owners(self, address: int, nbytes: int) -> bytes:
        return self.words

    def status(self) -> list[dict[str, Any]]:
        return [{"number": 1, "misses": 7, "recalls": 3}]


class FakeHosts:
    """A space 'demo' over hosts of this process, seen from each."""

    def __init__(self, home: Path, count: int, size: int = 16 << 20) -> None:
        self.hosts = tuple(f"10.0.0.{number + 1}:7400" for number in range(count))
        self.base = next(_bases)
        self.cores: list[_core.Core] = []
        for own in range(count):
            shard = self.shard(own)
            with registry.locked() as root:
                make(root, shard.directory, size, None, None, self.base + own * RESERVE, RESERVE, shard)
            self.cores.append(_core.Core.open(str(home / shard.directory), False, registry.boot_id()))
        self.attachment = FakeAttachment()

    def shard(self, own: int) -> Shard:
        return Shard("demo", self.base, RESERVE, self.hosts, own, 65536)

    def seen_from(self, own: int) -> tuple[Space, dict[int, FakeRemote]]:
        """The space, and its view of the other hosts."""
        remotes = {n: FakeRemote(core, self.hosts[n]) for n, core in enumerate(self.cores) if n != own}
        listed = [Peer(n, self.hosts[n], cast("_core.Remote", remote)) for n, remote in remotes.items()]
        peers = FakePeers(listed, lambda: {n for n, remote in remotes.items() if not remote.down})
        attachment = cast("_core.Attachment", self.attachment)
        cluster = Cluster(self.shard(own), self.cores[own], peers, attachment, lambda number, host: peers[number])
        return Space(cluster), remotes
