"""A space on one host, without a flash tier: all of its bytes are here, in memory."""

from __future__ import annotations

import ctypes
import socket
from typing import Any

from openshelf import _core
from openshelf.errors import BadAddress, BadInput, NotPermitted, UnknownName
from openshelf.space.copies import Copies, Ranges
from openshelf.space.locality.base import Locality
from openshelf.space.native import Maker
from openshelf.space.transfer import Pinned, Transfer

NO_FLASH = "this space has no flash tier; Space.create(name, dram=, flash='/path/file:64GiB') makes one that has"


class OneHost(Locality):
    """A space of this host alone, seen as a space over one host."""

    def __init__(self, core: _core.Core) -> None:
        self._core = core
        self._host = socket.gethostname()

    def on(self, home: str | int) -> Maker:
        self.host_of(home)
        return self._core

    def host_of(self, home: str | int) -> str:
        if home not in (0, self._host):
            raise UnknownName(f"home={home!r}: this space is on one host, {self._host}; home=None or 0 is this one")
        return self._host

    def home(self, address: int) -> str:
        return self._host

    def owner(self, address: int, nbytes: int) -> str | None:
        return self._host

    def state(self, address: int, nbytes: int) -> str:
        return "home"

    def tier(self, address: int, nbytes: int) -> str:
        return "dram"

    def prefetch(self, address: int, nbytes: int, write: bool, priority: int) -> Transfer:
        return Transfer("prefetch", nbytes)

    def prefetch_many(self, ranges: Ranges, priority: int) -> Transfer:
        return Transfer("prefetch", ranges.nbytes)

    def demote(self, address: int, nbytes: int, tier: str, priority: int) -> Transfer:
        raise BadInput(f"demote({tier!r}): {NO_FLASH}")

    def pin(self, address: int, nbytes: int, priority: int) -> Pinned:
        return Pinned("pin", nbytes)  # it is there already, and stays

    def buffer(self, pin: _core.Pin, offset: int, nbytes: int) -> tuple[Any, int]:
        return pin, offset

    def flush(self) -> Transfer:
        raise BadInput(f"flush(): {NO_FLASH}")

    def describe(self) -> dict[str, Any]:
        return {}

    def get(self, wanted: Copies) -> Transfer:
        copy_here(self._core, wanted, range(len(wanted.addresses)), write=False)
        return Transfer("get", wanted.nbytes)

    def put(self, wanted: Copies) -> Transfer:
        copy_here(self._core, wanted, range(len(wanted.addresses)), write=True)
        return Transfer("put", wanted.nbytes)

    def together(self, one: int, other: int) -> bool:
        return True

    def missing(self) -> list[str]:
        return []

    def where(self, address: int) -> tuple[int, int]:
        stats = self._core.stats()
        offset = address - int(stats["data_address"])
        if not 0 <= offset < int(stats["bytes"]):
            self._core.at(address)  # raises, and says where the space is
        return 0, offset

    def hosts(self) -> list[dict[str, Any]]:
        stats = self._core.stats()
        return [
            {
                "host": self._host,
                "number": 0,
                "up": True,
                "own": True,
                "state": "up",
                "bytes": stats["bytes"],
                "free": stats["free"],
                "round_trip_us": 0.0,
                "bandwidth": None,
                "misses": 0,
                "recalls": 0,
            }
        ]


def copy_here(core: _core.Core, wanted: Copies, rows: Any, write: bool) -> None:
    """Plain copies between the caller's buffer and arrays of this host, all checked before the first."""
    pins = [core.at(wanted.addresses[row]) for row in rows] if wanted.row else []
    if write and pins and core.stats()["read_only"]:
        raise NotPermitted('the space is open read-only (mode="r")')
    for row, pin in zip(rows, pins, strict=False):
        address = wanted.addresses[row]
        if address + wanted.row > pin.address + pin.nbytes:
            raise BadAddress(
                f"{wanted.row} bytes at {address:#x} reach beyond the array there, which ends at "
                f"{pin.address + pin.nbytes:#x}"
            )
    buffer, tiers = wanted.buffer.ctypes.data, core.tiers
    for row in rows if pins else ():
        ours, theirs = buffer + row * wanted.row, wanted.addresses[row]
        if tiers is not None:
            tiers.within(theirs, ours, wanted.row, write)
        else:
            ctypes.memmove(theirs if write else ours, ours if write else theirs, wanted.row)
