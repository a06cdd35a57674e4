"""Where the bytes of a space are, and how they move: one contract for a space on one host, over hosts, with flash.

- A Locality owns no memory. Arrays own theirs by their pins. It keeps alive what a transfer reads and writes until that
  transfer is done.
- Questions (`home`, `owner`, `state`, `tier`, `where`) answer at once for bytes of this host. What another host knows
  takes a round trip. An answer may be out of date when it arrives: nothing is locked.
- Moves (`prefetch`, `demote`, `pin`, `flush`, `get`, `put`) return a Transfer and do not wait for the bytes, except
  that `get` and `put` copy bytes of this host before they return. `Transfer.wait` waits and raises what went wrong.
- A move that a space cannot make raises BadInput at once and says why. It never does less in silence.
- Bytes of a lost host raise HostLost, from the call or from `Transfer.wait`. An address outside of the space raises
  BadAddress.
- All calls are thread-safe.

An implementation is a file beside this one, which choose.py picks by the kind of space;
tests/conformance/test_localities.py runs over all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from openshelf import _core
from openshelf.space.copies import Copies, Ranges
from openshelf.space.native import Maker
from openshelf.space.transfer import Pinned, Transfer

Home = str | int | None
"""A host by name or by number; None leaves the choice to the space."""


class Locality(ABC):
    """Answers where the bytes of one space are, and moves them. Ranges are an address and a number of bytes."""

    # Hosts

    @abstractmethod
    def on(self, home: str | int) -> Maker:
        """What makes arrays whose memory is on one host. UnknownName if the space has no such host."""

    @abstractmethod
    def host_of(self, home: str | int) -> str:
        """The name of the host that a name or number means. UnknownName if the space has no such host."""

    @abstractmethod
    def hosts(self) -> list[dict[str, Any]]:
        """What is known of each host, in the order of their numbers; what a lost one has is None."""

    @abstractmethod
    def missing(self) -> list[str]:
        """Hosts that did not answer lately. Asks nobody."""

    # Where bytes are

    @abstractmethod
    def home(self, address: int) -> str:
        """The host whose memory an address is in. Asks nobody."""

    @abstractmethod
    def owner(self, address: int, nbytes: int) -> str | None:
        """The one host that may write all of a range now without asking; None if there is no such host."""

    @abstractmethod
    def state(self, address: int, nbytes: int) -> str:
        """What this host has of a range: 'home', 'invalid', 'shared', 'modified', or 'mixed'."""

    @abstractmethod
    def tier(self, address: int, nbytes: int) -> str:
        """Where the bytes of a range are: 'dram', 'flash', or 'mixed'."""

    @abstractmethod
    def together(self, one: int, other: int) -> bool:
        """Whether two addresses have one home."""

    @abstractmethod
    def where(self, address: int) -> tuple[int, int]:
        """Number of the segment that an address is in, and the offset there; BadAddress if it is in none."""

    # Moving them

    @abstractmethod
    def prefetch(self, address: int, nbytes: int, write: bool, priority: int) -> Transfer:
        """Brings a range into this host's memory before it is touched; with `write`, so that it can be written."""

    @abstractmethod
    def prefetch_many(self, ranges: Ranges, priority: int) -> Transfer:
        """The same for many ranges, for reading."""

    @abstractmethod
    def demote(self, address: int, nbytes: int, tier: str, priority: int) -> Transfer:
        """Takes a range out of memory to a slower tier. BadInput if the space has none."""

    @abstractmethod
    def pin(self, address: int, nbytes: int, priority: int) -> Pinned:
        """Brings a range into memory and keeps it there until the handle is released or dropped. BadInput over hosts;
        NoRoom, from the handle's wait(), if memory has no room left for pins."""

    @abstractmethod
    def flush(self) -> Transfer:
        """Makes what was written until now survive power cuts. BadInput if the space has no flash tier.

        NotPermitted, from the transfer, if the space was not made durable."""

    @abstractmethod
    def get(self, wanted: Copies) -> Transfer:
        """Copies from the space into the caller's buffer, which stays the caller's to leave alone until it is done.

        All addresses are checked before the first byte moves: BadAddress for one that is no array's."""

    @abstractmethod
    def put(self, wanted: Copies) -> Transfer:
        """Copies from the caller's buffer into the space, likewise. NotPermitted if the space is open with mode="r"."""

    @abstractmethod
    def buffer(self, pin: _core.Pin, offset: int, nbytes: int) -> tuple[Any, int]:
        """What a view of a part of an array is made of, and where the part begins there. It keeps the array alive."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What there is to tell about tiers; empty if there is one."""
