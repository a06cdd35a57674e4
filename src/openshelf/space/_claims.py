"""Who may give out a name: a claim, one of 64 locks by the name's hash, on the lowest-numbered host that is up.

Names live with their arrays, so no host knows all of them. Who publishes one takes the claim, asks the others whether
they have the name, and publishes. Replacing a name that lives on another host takes two steps there, so the
claim first notes which array is to stay: if its holder dies in between, the next one finishes.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from openshelf import _core
from openshelf.errors import BadAddress, Closed, HostLost, NameTaken
from openshelf.space._dtypes import of_numpy

if TYPE_CHECKING:
    from openshelf.space._native import Native

import numpy as np

CLAIMS = 64
PREFIX = "\x02claim/"
_LOCK = 1  # native Kind
_NOTE = 64  # the offset of the noted address: after the lock's line
_WORDS = of_numpy(np.dtype(np.int64))


class Claim:
    """A claim that is held."""

    def __init__(self, pin: _core.Pin) -> None:
        self._pin = pin

    def note(self, address: int) -> None:
        """Writes down which array is to have the name; 0 when it is done."""
        _core.store_u8(self._pin, _NOTE, address)


class Claims:
    """The claims of a space. `hosts` yields number and native part of the hosts that are up, lowest first."""

    def __init__(
        self,
        hosts: Callable[[], Iterator[tuple[int, Native]]],
        finish: Callable[[int], None],
        lost: Callable[[int], None],
    ) -> None:
        self._hosts, self._finish, self._lost = hosts, finish, lost
        self._pins: dict[tuple[int, int], _core.Pin] = {}

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[Claim]:
        """Nobody else publishes the name, on any host, inside this block."""
        pin = self._take(zlib.crc32(name.encode()) % CLAIMS)
        try:
            yield Claim(pin)
        finally:
            with contextlib.suppress(HostLost):  # then its host has forgotten the claim too, or will
                _core.lock_drop(pin)

    def _take(self, slot: int) -> _core.Pin:
        for number, native in self._hosts():
            for _ in range(2):  # a pin from before its host went and came back is of no use
                known = (number, slot) in self._pins
                try:
                    pin = self._pins.get((number, slot)) or self._pin(number, native, slot)
                    died = _core.lock_take(pin, -1.0)
                except (HostLost, BadAddress, Closed):
                    self._pins.pop((number, slot), None)
                    if known:
                        continue
                    self._lost(number)
                    break
                if died:
                    self._repair(pin)
                return pin
        raise HostLost("no host is up that could hold the claim of a name")

    def _pin(self, number: int, native: Native, slot: int) -> _core.Pin:
        name = f"{PREFIX}{slot}"
        while (pin := native.find(name)) is None:
            draft = native.make(128, _WORDS.code, _LOCK, (16,), "", name, True)
            with contextlib.suppress(NameTaken):
                native.publish(draft, False)
        self._pins[number, slot] = pin
        return pin

    def _repair(self, pin: _core.Pin) -> None:
        address = int(_core.load_u8(pin, _NOTE))
        if address:
            self._finish(address)
            _core.store_u8(pin, _NOTE, 0)
