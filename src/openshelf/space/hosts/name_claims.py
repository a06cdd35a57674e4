"""Who may give out a name: a claim, one of 64 locks by the name's hash, on the lowest-numbered host that is up.

Names live with their arrays, so no host knows all of them. Who publishes one takes the claim, asks the others whether
they have the name, and publishes. Replacing a name that lives on another host takes two steps there, so the
claim first notes which array is to stay: if its holder dies in between, the next one finishes.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from openshelf import _core
from openshelf._dtypes import of_numpy
from openshelf.errors import BadAddress, Closed, HostLost, NameTaken, UnknownName
from openshelf.space.native import Native

CLAIMS = 64
PREFIX = "\x02claim/"
_NOTE = 64  # the offset of the noted address: after the lock's line
_WORDS = of_numpy(np.dtype(np.int64))


class Claim:
    """A claim that is held."""

    def __init__(self, pin: _core.Pin) -> None:
        self._pin = pin

    def note(self, address: int) -> None:
        """Writes down which array is to have the name; 0 when it is done."""
        _core.store_u8(self._pin, _NOTE, address)


class Hosts(Protocol):
    """What claims need of a space."""

    def up(self) -> Iterator[tuple[int, Native]]:
        """Number and native part of the hosts that are worth asking, lowest first."""
        ...

    def missed(self, number: int) -> None:
        """It did not answer."""
        ...

    def finish_replacing(self, address: int) -> None:
        """What the dead holder of a claim was at."""
        ...


class Claims:
    """The claims of a space, by host and number."""

    def __init__(self) -> None:
        self._pins: dict[tuple[int, int], _core.Pin] = {}

    @contextlib.contextmanager
    def hold(self, hosts: Hosts, name: str) -> Iterator[Claim]:
        """Nobody else publishes the name, on any host, inside this block."""
        pin = self._take(hosts, zlib.crc32(name.encode()) % CLAIMS)
        try:
            yield Claim(pin)
        finally:
            with contextlib.suppress(HostLost):  # then its host has forgotten the claim too, or will
                _core.lock_drop(pin)

    def _take(self, hosts: Hosts, claim: int) -> _core.Pin:
        for number, native in hosts.up():
            for _ in range(2):  # a pin from before its host went and came back is of no use
                known = (number, claim) in self._pins
                try:
                    pin = self._pins.get((number, claim)) or self._pin(number, native, claim)
                    died = _core.lock_take(pin, -1.0)
                except (HostLost, BadAddress, Closed, UnknownName):
                    self._pins.pop((number, claim), None)
                    if known:
                        continue
                    hosts.missed(number)
                    break
                if died:
                    _repair(hosts, pin)
                return pin
        raise HostLost("no host is up that could hold the claim of a name")

    def _pin(self, number: int, native: Native, claim: int) -> _core.Pin:
        name = f"{PREFIX}{claim}"
        while (pin := native.find(name)) is None:
            draft = native.make(128, _WORDS.code, _core.Kind.LOCK, (16,), "", name, True)
            with contextlib.suppress(NameTaken):
                native.publish(draft, False)
        self._pins[number, claim] = pin
        return pin


def _repair(hosts: Hosts, pin: _core.Pin) -> None:
    address = int(_core.load_u8(pin, _NOTE))
    if address:
        hosts.finish_replacing(address)
        _core.store_u8(pin, _NOTE, 0)
