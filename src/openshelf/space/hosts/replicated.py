"""A space over several hosts whose named arrays are on more than one of them: see kept_names.py.

Arrays without a name are on one host, as in other spaces. What is not an array is refused: only one host would have it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path

import numpy as np

from openshelf import _core
from openshelf.errors import BadInput
from openshelf.membership import Copied, Etcd
from openshelf.space.create.shard import Shard
from openshelf.space.hosts.cluster import Cluster
from openshelf.space.hosts.kept_names import KeptNames, new_hidden
from openshelf.space.hosts.peers import Peer, Peers
from openshelf.space.native import Listed
from openshelf.space.numbers import KEPT

_PIECE = 8 << 20  # of bytes that are neither from nor to this host


class Replicated(Cluster):
    """All parts of such a space, seen from one host."""

    def __init__(
        self,
        shard: Shard,
        core: _core.Core,
        peers: Peers,
        attachment: _core.Attachment,
        call: Callable[[int, str], Peer],
        hosts_file: Path | None = None,
    ) -> None:
        super().__init__(shard, core, peers, attachment, call, hosts_file)
        membership = Copied(Etcd(shard.servers), shard.space, shard.realm)
        self._kept = KeptNames(shard.own, shard.life, membership, shard.replicas)

    def called(self, name: str, kind: int) -> str:
        if kind:
            self.refuse_replicas("locks, barriers, channels and counters")
        return new_hidden(name) if name else ""

    def follow(self, epoch: int) -> None:
        """Afterwards all hosts of this epoch are known."""
        self._follow(epoch)

    def copy(self, source: _core.Pin, target: _core.Pin) -> None:
        """All bytes of an array to another of the same size."""
        nbytes, home, to = source.nbytes, self.number_of(source.address), self.number_of(target.address)
        if not nbytes:
            pass
        elif home == self.shard.own:
            self.fill(target, source.address, nbytes)
        elif to == self.shard.own:
            remote = self.peer_of(home).remote
            remote.get_bytes([source.address], memoryview(target).cast("B"), nbytes).wait(-1.0)
        else:
            piece = np.empty(min(_PIECE, nbytes), np.uint8)
            for first in range(0, nbytes, _PIECE):
                part = piece[: min(_PIECE, nbytes - first)]
                self.peer_of(home).remote.get_bytes([source.address + first], part, len(part)).wait(-1.0)
                self.peer_of(to).remote.put_bytes([target.address + first], part, len(part)).wait(-1.0)

    def mend(self) -> bool:
        return self._kept.tidy(self)

    def flush(self, pin: _core.Pin, /) -> None:
        if not pin.name.startswith(KEPT):
            raise BadInput("flush(): this array has no name, or has it no more, and so no copies")
        if pin.state == _core.State.DRAFT:
            raise BadInput("flush(): this is a draft, which has no copies; publish() makes them")
        self._kept.flush(self, pin)

    # Names

    def publish(self, pin: _core.Pin, replace: bool, /) -> None:
        if pin.name:
            self._kept.publish(self, pin, replace)
        else:
            super().publish(pin, replace)

    def name(self, pin: _core.Pin, name: str, /) -> None:
        raise BadInput(
            f"publish({name!r}): in a space with replicas an array gets its name when it is made, so that copies have "
            f"it, too: new({name!r}, ...), or put({name!r}, array)"
        )

    def find(self, name: str, /) -> _core.Pin | None:
        return self._kept.find(self, name)

    def contains(self, name: str, /) -> bool:
        return self._kept.contains(name)

    def list(self, prefix: str, /) -> builtins.list[Listed]:
        return self._kept.entries(prefix)

    def remove(self, name: str, only: _core.Pin | None = None) -> bool:
        return self._kept.remove(self, name, only)

    def rename(self, name: str, to: str, /) -> None:
        raise BadInput(
            f"rename({name!r}, {to!r}): in a space with replicas arrays keep their names; put({to!r}, space[{name!r}]) "
            f"copies it, and delete({name!r}) takes the old one away"
        )
