"""Names whose arrays have copies on several hosts, as the hosts agree on them in a store.

Keys, beside those of agreed.py:

    kept/<name>      the Kept: where the copies are, the one that is used first. One transaction changes a name.
    making/<uid>     "1", with a lease: a copy that its maker may still commit. Without it no commit can happen.

A copy that is neither in a Kept nor being made is nobody's, and its host takes it away. Everything is decided by
conditions on the key of the name, on the members, and on the epoch; so a host that was given up decides nothing.
"""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Callable, Iterable
from typing import NamedTuple

from openshelf.errors import HostLost
from openshelf.membership.agreed import LIST, Agreed
from openshelf.membership.base import Copy, Kept, Ticket
from openshelf.membership.records import kept_of
from openshelf.membership.store import Is, Store

_MAKING_S, _FRESH_S = 60, 20  # a lease of copies that are being made, and how old it may be when one begins
_TRIES = 100


class Found(NamedTuple):
    """A name and the hosts at one moment."""

    kept: Kept | None
    revision: int  # of the name; 0: nobody has it
    spec_revision: int  # another space may have a member with the same number and term
    epoch: int
    epoch_revision: int
    terms: dict[int, int]  # of members
    lives: dict[int, str]

    def there(self, copy: Copy) -> bool:
        """Whether the copy's host is a member, with the part in which the copy is."""
        return copy.number in self.terms and self.may_return(copy)

    def may_return(self, copy: Copy) -> bool:
        return self.lives.get(copy.number) == copy.life


class Copied(Agreed):
    """The hosts of one space, and its names with copies."""

    def __init__(
        self, store: Store, space: str, realm: int = 0, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(store, space, realm)
        self._monotonic = monotonic
        self._making_lease, self._granted = 0, float("-inf")

    def found(self, name: str) -> Found:
        """Members whose lease has ended are given up first."""
        key = self._kept(name)
        for _ in range(_TRIES):
            _, pairs = self.store.read([key, *(self._root + part for part in LIST)])
            of_name, spec = pairs.pop(key, None), pairs.get(self._root + "spec")
            state = self._parsed(0, pairs)
            if all(number in state.members for number, segment in state.segments.items() if segment.term):
                return Found(
                    None if of_name is None else kept_of(of_name.value, key),
                    0 if of_name is None else of_name.revision,
                    0 if spec is None else spec.revision,
                    state.epoch,
                    state.epoch_revision,
                    dict(state.members),
                    {number: segment.life for number, segment in state.segments.items()},
                )
            self.view()
        raise HostLost("the list of hosts changes all the time; try again")

    def all_kept(self) -> dict[str, Kept]:
        """All names, as far as some of their copies may be there."""
        root = self._root + "kept/"
        _, pairs = self.store.read([root, *(self._root + part for part in LIST)])
        lives = {number: segment.life for number, segment in self._parsed(0, pairs).segments.items()}
        every = {
            urllib.parse.unquote(key.removeprefix(root)): kept_of(pair.value, key)
            for key, pair in pairs.items()
            if key.startswith(root)
        }
        return {name: kept for name, kept in every.items() if any(lives.get(c.number) == c.life for c in kept.copies)}

    def wanted(self) -> set[str]:
        """Copies that are somebody's, or may become so."""
        _, pairs = self.store.read([self._root + "kept/", self._root + "making/"])
        making = self._root + "making/"
        return {
            uid
            for key, pair in pairs.items()
            for uid in (
                [key.removeprefix(making)]
                if key.startswith(making)
                else [copy.uid for copy in kept_of(pair.value, key).copies]
            )
        }

    def announce(self, uids: Iterable[str]) -> None:
        """Copies that are about to be committed."""
        now = self._monotonic()
        if now - self._granted > _FRESH_S:
            self._making_lease, self._granted = self.store.grant(_MAKING_S), now
        self.store.change([], {self._making(uid): ("1", self._making_lease) for uid in uids})

    def withdraw(self, uids: Iterable[str]) -> None:
        """Afterwards they are not committed any more, also not by a request that is still under way."""
        self.store.change([], {}, [self._making(uid) for uid in uids])

    def commit(self, name: str, found: Found, kept: Kept, uids: Iterable[str], ticket: Ticket) -> bool:
        """Makes this what a name names, if all is as it was found. If it raises, it may have been done."""
        conditions = [
            *self._as_found(name, found),
            Is(self._member(ticket.number), value=str(ticket.term)),
            *(Is(self._member(copy.number), value=str(found.terms[copy.number])) for copy in kept.copies),
            *(Is(self._making(uid), value="1") for uid in uids),
        ]
        put = {self._kept(name): (json.dumps(kept._asdict()), 0)}
        return self.store.change(conditions, put, [self._making(uid) for uid in uids])

    def reorder(self, name: str, found: Found, left: tuple[Copy, ...]) -> bool:
        """Goes on with the copies that are left, in this order, while the hosts are as they were found."""
        assert found.kept is not None
        conditions = [
            *self._as_found(name, found),
            Is(self._root + "epoch", revision=found.epoch_revision),
        ]
        return self.store.change(
            conditions, {self._kept(name): (json.dumps(found.kept._replace(copies=left)._asdict()), 0)}
        )

    def discard(self, name: str, found: Found, ticket: Ticket) -> bool:
        """Nobody has the name afterwards, if all is as it was found. If it raises, it may have been done."""
        conditions = [
            *self._as_found(name, found),
            Is(self._member(ticket.number), value=str(ticket.term)),
        ]
        return self.store.change(conditions, {}, [self._kept(name)])

    def _as_found(self, name: str, found: Found) -> list[Is]:
        return [
            Is(self._kept(name), revision=found.revision),
            Is(self._root + "spec", revision=found.spec_revision),
        ]

    def _kept(self, name: str) -> str:
        return f"{self._root}kept/{urllib.parse.quote(name, safe='')}"

    def _making(self, uid: str) -> str:
        return f"{self._root}making/{uid}"
