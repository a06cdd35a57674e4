"""Names that the hosts agree on: etcd has the owner of each, and only who is written there may publish it.

An owner is written before its array is published, and counts while that array, or the draft that is to become it, is
there. So a publisher that dies leaves a record that the next one replaces. A host that is lost keeps its names: nobody
can ask it whether their arrays are there. They are free when the host leaves, or comes back without them. Look-ups
never ask etcd: they go to the hosts, as those of other spaces do.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from openshelf import _core
from openshelf.errors import BadAddress, HostLost, NameTaken, NoAgreement, UnknownName
from openshelf.membership import Agreed, GivenUp, Owner, Ticket
from openshelf.space.native import Native

_MAKING_S = 5.0  # that is waited for another who is publishing the same name
_AGAIN_S = 0.005
_RENAMING = "\x02rename/"  # no user's name begins so
_JOIN_S = 3.0  # that is waited for a host that is joining again
_AWAY_S = 1.0  # that etcd is not asked again by look-ups when it did not answer one


class Clock(Protocol):
    """The module `time`, or one that is turned by hand."""

    @property
    def monotonic(self) -> Callable[[], float]: ...
    @property
    def sleep(self) -> Callable[[float], None]: ...


class Parts(Protocol):
    """What names need of a space."""

    attachment: _core.Attachment
    hosts: tuple[str, ...]

    def number_of(self, address: int) -> int:
        """The home of an address."""
        ...

    def native_of(self, number: int) -> Native:
        """The part on one host."""
        ...

    def elsewhere(self, name: str, home: int) -> list[tuple[int, _core.Pin]]:
        """Where a name is, other than on one host."""
        ...

    def drop(self, name: str, others: list[tuple[int, _core.Pin]]) -> None:
        """Takes the name away from arrays of some hosts."""
        ...


class AgreedNames:
    """The names of one space."""

    def __init__(self, own: int, life: str, membership: Agreed, clock: Clock = time) -> None:
        self._own, self._life, self._membership, self._clock = own, life, membership, clock
        self._away_until = 0.0

    @property
    def away(self) -> bool:
        """Whether etcd did not answer just now."""
        return self._clock.monotonic() < self._away_until

    def look(self, name: str) -> tuple[int, Owner, bool] | None:
        """An epoch, who has a name then, and whether its host is a member. None: nobody, or etcd cannot tell now."""
        if self.away:
            return None
        try:
            epoch, owner, member = self._membership.look(name)
        except NoAgreement:
            self._away_until = self._clock.monotonic() + _AWAY_S
            return None
        return None if owner is None else (epoch, owner, member)

    def epoch(self) -> int:
        """Of the list of hosts in etcd; 0: etcd cannot tell now."""
        if self.away:
            return 0
        try:
            return self._membership.epoch()
        except NoAgreement:
            self._away_until = self._clock.monotonic() + _AWAY_S
            return 0

    def publish(self, parts: Parts, pin: _core.Pin, name: str, replace: bool) -> None:
        """Publishes a draft under its name, which it then has alone."""
        home = parts.number_of(pin.address)
        with self._owned(parts, pin, name, replace) as old:
            others = parts.elsewhere(name, home)  # what it replaces, or what a dead publisher left: no owner of it
            if old is not None and old.number not in (home, *(number for number, _ in others)):
                with contextlib.suppress(HostLost):
                    if (there := self._there(parts, name, old)) is not None:
                        others.append((old.number, there))
            parts.native_of(home).publish(pin, replace)
            parts.drop(name, others)

    def give(self, parts: Parts, pin: _core.Pin, name: str, step: Callable[[_core.Pin], None]) -> None:
        """Does what gives an array a name that nobody has. What is done needs a draft: who lets go of that, or dies,
        cannot do it any more, so others need not wait for it."""
        native = parts.native_of(parts.number_of(pin.address))
        draft = native.make(64, 0, 0, (8,), "", f"{_RENAMING}{secrets.token_hex(8)}", False)
        with self._owned(parts, pin, name, replace=False, before=pin.name, draft=draft.address):
            step(draft)

    def forget(self, parts: Parts, name: str) -> None:
        """The array of a name is gone. If etcd does not hear of it, the next who wants the name finds out."""
        with contextlib.suppress(NoAgreement, HostLost):
            found = self._membership.owner(name)
            if found is not None and not self._there(parts, name, found[0]):
                self._membership.cas(name, found[0], None, self._ticket(parts))

    @contextlib.contextmanager
    def _owned(
        self, parts: Parts, pin: _core.Pin, name: str, replace: bool, before: str | None = None, draft: int = 0
    ) -> Iterator[Owner | None]:
        """Inside, the array is the owner of the name, after another one. If what is done inside fails, it goes back."""
        home = parts.number_of(pin.address)
        life = self._life if home == self._own else self._membership.life_of(home)
        owner = Owner(home, life, pin.address, secrets.token_hex(8), before, draft)
        ticket = self._ticket(parts)
        try:
            old = self._take(parts, name, owner, replace, ticket)
        except GivenUp as error:
            ticket = self._next_ticket(parts, ticket, error)
            old = self._take(parts, name, owner, replace, ticket)
        try:
            yield old
        except HostLost:  # nobody knows whether it was done: the record stays, and counts if the array has its name
            raise
        except BaseException:
            with contextlib.suppress(NoAgreement, HostLost):  # then it is a record of an array that is not there
                self._membership.cas(name, owner, old, ticket)
            raise

    def _take(self, parts: Parts, name: str, owner: Owner, replace: bool, ticket: Ticket) -> Owner | None:
        """Makes it the owner; who was it before."""
        deadline = self._clock.monotonic() + _MAKING_S
        old: Owner | None = None
        while (now := self._membership.cas(name, old, owner, ticket)) != owner:
            old = now
            while old is not None and (there := self._there(parts, name, old)) is not None:
                if there.state == _core.State.LIVE and there.name == name:
                    if replace and not there.kind:
                        break
                    raise NameTaken(
                        f"{name!r} exists already, on {parts.hosts[old.number]}; delete it, choose another name, or "
                        "put() to replace it"
                    )
                if self._clock.monotonic() > deadline:
                    raise NameTaken(f"{name!r} is just being published by another process, which does not get on")
                del there  # it would keep the draft of a dead process
                parts.native_of(old.number).collect()
                self._clock.sleep(_AGAIN_S)
        return old

    def _there(self, parts: Parts, name: str, owner: Owner) -> _core.Pin | None:
        """The array of an owner, or its draft. HostLost if nobody can tell."""
        if owner.life != self._membership.life_of(owner.number):
            return None
        try:
            pin = parts.native_of(owner.number).at(owner.address)
        except BadAddress:
            return None
        except (HostLost, UnknownName) as error:
            host = parts.hosts[owner.number]
            raise HostLost(
                f"{name!r} is on {host}, which does not answer; it stays that host's until the host is back, or "
                f"has left the space: {error}",
                host,
            ) from None
        if pin.address != owner.address or pin.state not in (_core.State.LIVE, _core.State.DRAFT):
            return None  # deleted, though somebody still has a view of it
        may_be = pin.name == owner.before and self._may_be_renamed(
            parts, owner
        )  # asked first: afterwards it has the name
        return pin if may_be or pin.name == name else None

    def _may_be_renamed(self, parts: Parts, owner: Owner) -> bool:
        try:
            draft = parts.native_of(owner.number).at(owner.draft)
        except BadAddress:
            return False
        return draft.address == owner.draft and draft.name.startswith(_RENAMING)

    def _next_ticket(self, parts: Parts, ticket: Ticket, error: GivenUp) -> Ticket:
        """That of the next term: the keeper is just joining again. HostLost if it does not."""
        deadline = self._clock.monotonic() + _JOIN_S
        while parts.attachment.term == ticket.term:
            if self._clock.monotonic() > deadline:
                raise HostLost(str(error)) from None
            self._clock.sleep(_AGAIN_S)
        return self._ticket(parts)

    def _ticket(self, parts: Parts) -> Ticket:
        return Ticket(self._own, parts.attachment.term, 0, self._life)
