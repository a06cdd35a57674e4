"""A store as etcd is, in memory, with a clock that is turned by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from openshelf.membership.store import Is, Pair


@dataclasses.dataclass
class _Lease:
    seconds: int
    until: float


class VirtualStore:
    """One for all hosts: what goes wrong between a host and the store is for those who call it to add."""

    def __init__(self) -> None:
        self.now = 0.0
        self.revision = 1
        self._pairs: dict[str, Pair] = {}
        self._leases: dict[int, _Lease] = {}
        self._leased: dict[str, int] = {}
        self._next_lease = 1

    def turn(self, seconds: float) -> None:
        """Time passes, and leases end."""
        self.now += seconds
        for lease in [number for number, one in self._leases.items() if one.until <= self.now]:
            self.revoke(lease)

    def read(self, prefixes: Sequence[str]) -> tuple[int, dict[str, Pair]]:
        def wanted(key: str) -> bool:
            return any(key.startswith(prefix) if prefix.endswith("/") else key == prefix for prefix in prefixes)

        return self.revision, {key: pair for key, pair in self._pairs.items() if wanted(key)}

    def change(self, conditions: Sequence[Is], put: Mapping[str, tuple[str, int]], delete: Sequence[str] = ()) -> bool:
        for one in conditions:
            found = self._pairs.get(one.key)
            if one.value is not None and (found is None or found.value != one.value):
                return False
            if one.value is None and (0 if found is None else found.revision) != one.revision:
                return False
        if any(lease and lease not in self._leases for _, lease in put.values()):
            raise AssertionError("a key with a lease that has ended")  # etcd refuses it; Agreed joins at once
        self.revision += 1
        for key, (value, lease) in put.items():
            self._pairs[key] = Pair(value, self.revision)
            self._leased[key] = lease
        for key in delete:
            self._pairs.pop(key, None)
            self._leased.pop(key, None)
        return True

    def grant(self, seconds: int) -> int:
        lease, self._next_lease = self._next_lease, self._next_lease + 1
        self._leases[lease] = _Lease(seconds, self.now + seconds)
        return lease

    def renew(self, lease: int) -> bool:
        if lease not in self._leases:
            return False
        self._leases[lease].until = self.now + self._leases[lease].seconds
        return True

    def revoke(self, lease: int) -> None:
        if self._leases.pop(lease, None) is None:
            return
        self.revision += 1
        for key in [key for key, of in self._leased.items() if of == lease]:
            del self._pairs[key], self._leased[key]

    def wait(self, prefix: str, revision: int, timeout_s: float) -> bool:
        """It is a hint: there is none."""
        return False
