"""What agreement needs of a store: reads at one moment, transactions, leases, and news.

etcd has these (membership/etcd.py). Tests have one with a virtual clock and a virtual network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class Pair(NamedTuple):
    value: str
    revision: int  # of the store when the key was last changed


class Is(NamedTuple):
    """A condition of a transaction: the key has this value, or was last changed at this revision (0: not there)."""

    key: str
    revision: int | None = None
    value: str | None = None


class Store(Protocol):
    """Every method raises NoAgreement if the store, or a majority of it, cannot be reached."""

    def read(self, prefixes: Sequence[str]) -> tuple[int, dict[str, Pair]]:
        """The store's revision, and all keys with one of the prefixes, at one moment. Never an old state."""
        ...

    def change(self, conditions: Sequence[Is], put: Mapping[str, tuple[str, int]], delete: Sequence[str] = ()) -> bool:
        """If all conditions hold, puts values, each with a lease or 0, and deletes keys: all or nothing.

        If it raises, it may have been done.
        """
        ...

    def grant(self, seconds: int) -> int:
        """A new lease. Keys with it go when it was not renewed for so long."""
        ...

    def renew(self, lease: int) -> bool:
        """False: it has ended."""
        ...

    def revoke(self, lease: int) -> None:
        """Ends it now."""
        ...

    def wait(self, prefix: str, revision: int, timeout_s: float) -> bool:
        """True when something with the prefix was changed after a revision, False when the time is over. A hint: it
        may be late, and may come for nothing."""
        ...
