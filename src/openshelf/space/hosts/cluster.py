"""A space over several hosts, with the methods of a native one: each call goes to the host whose address or name it is.

The own part is plain shared memory; the others are asked over the network. Look-ups skip hosts that are gone;
calls that concern their bytes raise HostLost.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openshelf import _core
from openshelf.errors import BadAddress, BadInput, HostLost, NameTaken, NoRoom, UnknownName
from openshelf.membership import Agreed, Etcd, read_table
from openshelf.space.create.shard import Shard
from openshelf.space.hosts.agreed_names import AgreedNames
from openshelf.space.hosts.name_claims import PREFIX, Claims
from openshelf.space.hosts.peers import Peer, Peers
from openshelf.space.native import Listed, Maker, Native

_HEAR_S = 5.0  # a keeper asks etcd every two seconds, and it may take two to find that a server is dead


class Cluster:
    """All parts of a space, seen from one host."""

    def __init__(
        self,
        shard: Shard,
        core: _core.Core,
        peers: Peers,
        attachment: _core.Attachment,
        call: Callable[[int, str], Peer],
        hosts_file: Path | None = None,
    ) -> None:
        self.shard, self.core, self._peers, self.attachment = shard, core, peers, attachment
        self.hosts_file = hosts_file
        self.agreed = bool(shard.servers)
        self.hosts = shard.hosts  # their names; those that never were there have none
        self._call, self._epoch, self._gate = call, -1, threading.Lock()
        self._claims = Claims()
        self._names = None
        if self.agreed:
            self._names = AgreedNames(shard.own, shard.life, Agreed(Etcd(shard.servers), shard.space, shard.realm))

    # Hosts

    @property
    def peers(self) -> Peers:
        """The other hosts, as this host's keeper knows them now."""
        if self.agreed and (epoch := self.attachment.epoch) != self._epoch:
            with self._gate:
                table = read_table(self.core.directory)
                if table is not None:
                    self.meet(table.view.hosts)
                    for peer in self._peers:
                        peer.member = bool(table.view.terms[peer.number])
                self._epoch = epoch
        return self._peers

    def _hear_news(self) -> None:
        """Afterwards all hosts are known that have joined before this."""
        if self._names is not None:
            self._follow(self._names.epoch())

    def _follow(self, epoch: int) -> None:
        """Waits until this host's keeper goes by the list of an epoch, or a newer one."""
        deadline = time.monotonic() + _HEAR_S
        while self.attachment.epoch < epoch:
            if time.monotonic() > deadline:
                raise HostLost(f"the keeper of this host does not follow the list of hosts to epoch {epoch}")
            time.sleep(0.002)
        self.peers  # noqa: B018  # those that have joined are known then

    def meet(self, hosts: tuple[str, ...]) -> None:
        """Hosts that were not known yet can be called from now on."""
        known = {peer.number for peer in self._peers} | {self.shard.own}
        fresh = [(number, host) for number, host in enumerate(hosts) if host and number not in known]
        self.hosts = hosts
        for number, host in fresh:
            self.attachment.name_host(number, host)
        self._peers.add([self._call(number, host) for number, host in fresh])

    def number_of(self, address: int) -> int:
        """The home of an address; BadAddress if it is no host's."""
        shard = self.shard
        number = (address - shard.base) // shard.reserve
        if not 0 <= number < len(shard.hosts):
            end = shard.base + len(shard.hosts) * shard.reserve
            raise BadAddress(
                f"address {address:#x} is outside of the space {shard.space!r}, which has {shard.base:#x} to {end:#x}"
            )
        return number

    def number_of_host(self, home: str | int) -> int:
        """The number of a host given by name or number."""
        self.peers  # noqa: B018  # those that have just joined are known then
        if isinstance(home, str) and home not in self.hosts:
            self._hear_news()
        hosts = self.hosts
        if isinstance(home, int) and not isinstance(home, bool) and 0 <= home < len(hosts) and hosts[home]:
            return home
        if home and home in hosts:
            return hosts.index(str(home))
        listed = ", ".join(f"{number} ({host})" for number, host in enumerate(hosts) if host)
        raise UnknownName(f"there is no host {home!r}; the space {self.shard.space!r} is on {listed}")

    def native_of(self, number: int) -> Native:
        """The part on one host."""
        if number == self.shard.own:
            return self.core
        return self.peer_of(number).remote

    def peer_of(self, number: int) -> Peer:
        peer = self._peers.of(number) or self.peers.of(number)
        if peer is None:
            self._hear_news()
            peer = self._peers.of(number)
        if peer is None:
            raise UnknownName(f"there is no host {number} in the space {self.shard.space!r} yet")
        return peer

    def on(self, home: str | int) -> Maker:
        """Where to make an array that is to live on a host."""
        return _On(self, (self.number_of_host(home),))

    def up(self) -> Iterator[tuple[int, Native]]:
        """Hosts that are worth asking, lowest number first."""
        up = {peer.number for peer in self.peers if self.peers.up(peer)} | {self.shard.own}
        return ((number, self.native_of(number)) for number in sorted(up))

    def missing(self) -> builtins.list[str]:
        """Who did not answer when last asked: a name may be there that only they know."""
        etcd = [f"etcd at {', '.join(self.shard.servers)}"] if self._names is not None and self._names.away else []
        return self.peers.missing() + etcd

    def missed(self, number: int) -> None:
        if number != self.shard.own:
            self.peer_of(number).miss(0.0)

    # Copies

    @property
    def replicas(self) -> int:
        """Hosts that have each named array."""
        return self.shard.replicas

    def refuse_replicas(self, what: str) -> None:
        """BadInput for what only one host would have."""
        if self.replicas > 1:
            raise BadInput(
                f"{what} in {self.shard.space!r}, which was made with replicas={self.replicas}: they would be lost "
                "with their host. Such a space keeps named arrays; use a space without replicas for the rest"
            )

    def flush(self, pin: _core.Pin, /) -> None:
        """What was stored into an array before survives the loss of a host."""
        raise BadInput("flush(): arrays of this space are on one host each; a space made with replicas=2 has copies")

    def mend(self) -> bool:
        """Makes copies again that were lost, and takes away what is nobody's here; false if some cannot be made now."""
        raise BadInput("arrays of this space are on one host each; a space made with replicas=2 has copies")

    def called(self, name: str, kind: int) -> str:
        """What an array that is to have this name is called at its home."""
        return name

    # Making

    def make(
        self, nbytes: int, dtype: int, kind: int, shape: Sequence[int], descr: str, name: str, zero: bool
    ) -> _core.Pin:
        return self._anywhere().make(nbytes, dtype, kind, shape, descr, name, zero)

    def put(
        self,
        source: Any,
        nbytes: int,
        dtype: int,
        kind: int,
        shape: Sequence[int],
        descr: str,
        name: str,
        replace: bool,
    ) -> _core.Pin:
        return self._anywhere().put(source, nbytes, dtype, kind, shape, descr, name, replace)

    def _anywhere(self) -> _On:
        own = self.shard.own
        return _On(self, (own, *(number for number, _ in self.up() if number != own)))

    def fill(self, pin: _core.Pin, source: Any, nbytes: int) -> None:
        """Copies bytes from an address, or from a buffer, into a draft."""
        if isinstance(source, np.ndarray):
            flat = source.reshape(-1).view(np.uint8)
        else:
            raw: Any = (ctypes.c_char * nbytes).from_address(source) if isinstance(source, int) else source
            flat = np.frombuffer(raw, np.uint8)
        if len(flat) != nbytes:
            raise BadInput("the buffer does not have the array's size")
        home = self.number_of(pin.address)
        if home == self.shard.own:
            ctypes.memmove(pin.address, flat.ctypes.data, nbytes)
        else:
            self.peer_of(home).remote.put_bytes([pin.address], flat, nbytes).wait(-1.0)

    def publish(self, pin: _core.Pin, replace: bool, /) -> None:
        home, name = self.number_of(pin.address), pin.name
        if self._names is not None and name:
            return self._names.publish(self, pin, name, replace)
        if not name or not self.peers:
            return self.native_of(home).publish(pin, replace)
        with self._claims.hold(self, name) as claim:
            others = self.elsewhere(name, home)
            if others and (not replace or any(other.kind for _, other in others)):
                raise _taken(name, self.hosts[others[0][0]])
            if others:
                claim.note(pin.address)
            self.native_of(home).publish(pin, replace)
            if others:
                self.drop(name, others)
                claim.note(0)
        return None

    def name(self, pin: _core.Pin, name: str, /) -> None:
        home = self.number_of(pin.address)
        if self._names is not None:
            self._names.give(self, pin, name, lambda draft: self._name(home, pin, name, draft))
            return
        with self._claims.hold(self, name):
            if others := self.elsewhere(name, home):
                raise _taken(name, self.hosts[others[0][0]])
            self.native_of(home).name(pin, name)

    def _name(self, home: int, pin: _core.Pin, name: str, draft: _core.Pin) -> None:
        if home == self.shard.own:
            self.core.name(pin, name)
        else:
            self.peer_of(home).remote.name(pin, name, draft)

    def elsewhere(self, name: str, home: int) -> builtins.list[tuple[int, _core.Pin]]:
        """Where a name is, other than on one host."""
        found = [(peer.number, pin) for peer, pin in self.peers.find(name, besides=home)]
        if home != self.shard.own and (pin := self.core.find(name)) is not None:
            found.append((self.shard.own, pin))
        return found

    def drop(self, name: str, others: builtins.list[tuple[int, _core.Pin]]) -> None:
        """Takes the name away from arrays of some hosts."""
        for number, pin in others:
            with contextlib.suppress(HostLost):
                self.native_of(number).remove(name, pin)

    def finish_replacing(self, address: int) -> None:
        """What the dead holder of a claim was at: the array at the address has its name for itself, if it got it."""
        with contextlib.suppress(BadAddress, HostLost):
            pin = self.at(address)
            home = self.number_of(address)
            if pin.address == address and pin.name and pin.state == _core.State.LIVE:
                self.drop(pin.name, self.elsewhere(pin.name, home))

    # Finding

    def find(self, name: str, /) -> _core.Pin | None:
        pin = self.core.find(name)
        if pin is None:
            pin = next((pin for _, pin in self.peers.find(name)), None)
        return self._find_late(name) if pin is None and self._names is not None else pin

    def _find_late(self, name: str) -> _core.Pin | None:
        """What a look-up missed: etcd knows the name, and this host may not have heard of its owner."""
        found = self._names.look(name) if self._names is not None else None
        if found is None:
            return None
        epoch, owner, member = found
        self._follow(epoch)
        if owner.number == self.shard.own:
            return self.core.find(name)
        peer = self.peer_of(owner.number)
        try:
            return peer.ask(lambda remote: remote.find(name))
        except HostLost:
            if member:
                raise
            return None  # what lives on a lost host is not found; the error that there is no such name tells the host

    def contains(self, name: str, /) -> bool:
        if self.core.contains(name) or self.peers.find(name):
            return True
        return self._names is not None and self._find_late(name) is not None

    def at(self, address: int, /) -> _core.Pin:
        return self.native_of(self.number_of(address)).at(address)

    def list(self, prefix: str, /) -> builtins.list[Listed]:
        self._hear_news()
        found = {entry[0]: entry for _, there in self.peers.ask(lambda r: r.list(prefix)) for entry in reversed(there)}
        found |= {entry[0]: entry for entry in self.core.list(prefix)}
        return [found[name] for name in sorted(found)]

    # Changing

    def remove(self, name: str, only: _core.Pin | None = None) -> bool:
        if only is not None:
            gone = self.native_of(self.number_of(only.address)).remove(name, only)
        else:
            here = self.core.remove(name)  # and everywhere else: after a partition there may be two
            gone = any([here, *(there for _, there in self.peers.ask(lambda r: r.remove(name)))])
        if gone and self._names is not None:
            self._names.forget(self, name)
        return gone

    def discard_shards(self, pin: _core.Pin) -> None:
        """The rows of a table over hosts, on all of them; HostLost if one does not answer. Its name stays."""
        home, words = self.number_of(pin.address), np.empty(2, np.uint64)
        if home == self.shard.own:
            ctypes.memmove(words.ctypes.data, pin.address, 16)
        else:
            self.peer_of(home).remote.get_bytes([pin.address], words, 16).wait(-1.0)
        _core.shard_discard(self.core, None, int(words[1]))
        for peer in self.peers:
            if self.peers.up(peer):
                peer.ask(lambda remote: _core.shard_discard(self.core, remote, int(words[1])))

    def rename(self, name: str, to: str, /) -> None:
        pin = self.find(name)
        if pin is None:
            raise UnknownName(f"there is no array {name!r}")
        home = self.number_of(pin.address)
        if self._names is not None:
            self._names.give(self, pin, to, lambda draft: self._rename(home, name, to, draft))
            self._names.forget(self, name)
            return
        with self._claims.hold(self, to):
            if others := self.elsewhere(to, home):
                raise _taken(to, self.hosts[others[0][0]])
            self.native_of(home).rename(name, to)

    def _rename(self, home: int, name: str, to: str, draft: _core.Pin) -> None:
        if home == self.shard.own:
            self.core.rename(name, to)
        else:
            self.peer_of(home).remote.rename(name, to, draft)

    # The whole

    def grow(self, nbytes: int, /) -> None:
        self.core.grow(nbytes)

    def collect(self) -> None:
        self.core.collect()
        list(self.peers.ask(lambda r: r.collect()))

    def audit(self) -> dict[str, int]:
        """Of all hosts that are up, together; claims are not counted."""
        total = _audit(self.core)
        for _, there in self.peers.ask(_audit):
            total = {name: count + there.get(name, 0) for name, count in total.items()}
        return total

    def stats(self) -> dict[str, Any]:
        """The own part's, with the room and the arrays of all hosts that are up."""
        total = dict(_stats(self.core), name=self.shard.space, unit=self.shard.unit, faults=self.attachment.faults)
        for _, there in self.peers.ask(_stats):
            for name in ("bytes", "free", "limit", "metadata_bytes", "arrays"):
                total[name] += there[name]
            total["largest_free"] = max(total["largest_free"], there["largest_free"])
        return total

    def check_usable(self) -> None:
        self.core.check_usable()

    @property
    def directory(self) -> str:
        return self.core.directory


class _On:
    """Makes arrays on the first of some hosts that has room."""

    def __init__(self, cluster: Cluster, numbers: tuple[int, ...]) -> None:
        self._cluster, self._numbers = cluster, numbers

    def make(
        self, nbytes: int, dtype: int, kind: int, shape: Sequence[int], descr: str, name: str, zero: bool
    ) -> _core.Pin:
        first: NoRoom | None = None
        name = self._cluster.called(name, kind)
        for number in self._numbers:
            try:
                return self._cluster.native_of(number).make(nbytes, dtype, kind, shape, descr, name, zero)
            except NoRoom as error:
                first = first or error
            except (HostLost, UnknownName):  # the latter: up, but nobody there has opened the space
                if len(self._numbers) == 1:
                    raise
        assert first is not None
        if len(self._numbers) == 1:
            raise first
        raise NoRoom(f"no host that is up has room for {nbytes} bytes; this one: {first}") from None

    def put(
        self,
        source: Any,
        nbytes: int,
        dtype: int,
        kind: int,
        shape: Sequence[int],
        descr: str,
        name: str,
        replace: bool,
    ) -> _core.Pin:
        # Copied before the claim is taken: it must not wait for a long copy.
        pin = self.make(nbytes, dtype, kind, shape, descr, name, False)
        if nbytes:
            self._cluster.fill(pin, source, nbytes)
        if name:
            self._cluster.publish(pin, replace)
        return pin


def _audit(native: Native) -> dict[str, int]:
    claims, found = native.list(PREFIX), native.audit()
    found["arrays"] -= len(claims)
    found["bytes"] -= sum(nbytes for _, nbytes, *_ in claims)
    return found


def _stats(native: Native) -> dict[str, Any]:
    found = native.stats()
    found["arrays"] -= len(native.list(PREFIX))
    return found


def _taken(name: str, host: str) -> NameTaken:
    return NameTaken(f"{name!r} exists already, on {host}; delete it, choose another name, or put() to replace it")
