"""Names of a space with replicas: each names copies of one array on several hosts, all of which are made before the
name is published.

Where the copies are is written in etcd, and look-ups ask there: so nobody finds an array that others have replaced, and
a host that was given up decides nothing. The first copy is the one that is used. When its host is given up, whoever
looks the name up goes on with the next, at the addresses of that one. A copy has a hidden name of its own at its host.

A publication: the copies are made as drafts; they are announced; they get their hidden names; one transaction makes
them what the name names. A copy that was announced, and is not committed, is taken away: by its maker, or, if that
died, by the next `tidy` at its host.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from openshelf import _core
from openshelf.errors import Closed, HostLost, NameTaken, NoAgreement, NoRoom, OpenshelfError, UnknownName
from openshelf.membership import Copied, Copy, Found, Kept, Ticket
from openshelf.space.hosts.agreed_names import Clock
from openshelf.space.native import Listed, Native
from openshelf.space.numbers import KEPT

_FIND_S = 12.0  # for a copy that can be used: a host that died is given up in less
_AGREE_S = 10.0  # for etcd to say whether a transaction was done
_JOIN_S = 5.0  # for this host, which was given up, to join again
_AGAIN_S = 0.05
_TRIES = 100  # of a transaction that others came before


class Parts(Protocol):
    """What these names need of a space."""

    attachment: _core.Attachment
    hosts: tuple[str, ...]

    def number_of(self, address: int) -> int:
        """The home of an address."""
        ...

    def native_of(self, number: int) -> Native:
        """The part on one host."""
        ...

    def follow(self, epoch: int) -> None:
        """Afterwards all hosts of this epoch are known."""
        ...

    def copy(self, source: _core.Pin, target: _core.Pin) -> None:
        """All bytes of an array to another."""
        ...


class _Attempt:
    """To make copies what a name names."""

    def __init__(self, uids: list[str]) -> None:
        self.uids, self.done = uids, False


class _Made(NamedTuple):
    """A copy that somebody has just made, and holds."""

    copy: Copy
    pin: _core.Pin


def hidden(uid: str, name: str) -> str:
    """What a copy is called at its host."""
    return f"{KEPT}{uid}/{name}"


def new_hidden(name: str) -> str:
    return hidden(secrets.token_hex(8), name)


def _parts_of(hidden_name: str) -> tuple[str, str]:
    """The copy's uid and the name."""
    uid, _, name = hidden_name.removeprefix(KEPT).partition("/")
    return uid, name


class KeptNames:
    """The names of one space."""

    def __init__(self, own: int, life: str, membership: Copied, replicas: int, clock: Clock = time) -> None:
        self._own, self._life, self._membership, self._clock = own, life, membership, clock
        self._replicas = replicas

    # Finding

    def find(self, parts: Parts, name: str) -> _core.Pin | None:
        """The copy that is used. HostLost if no host that has one can be asked."""
        deadline = self._clock.monotonic() + _FIND_S
        while True:
            found = self._membership.found(name)
            if found.kept is None or not any(map(found.may_return, found.kept.copies)):
                return None
            first = found.kept.copies[0]
            host = parts.hosts[first.number]
            why = f"{name!r} is on {host}, which is not there, and no other host has a copy"
            if found.there(first):
                try:
                    parts.follow(found.epoch)
                    pin = parts.native_of(first.number).find(hidden(first.uid, name))
                    if pin is not None and pin.address == first.address:
                        return pin
                    why = f"{name!r} is replaced all the time, or {host} has lost it"
                except (HostLost, UnknownName) as error:
                    why = f"{name!r} is on {host}, which does not answer, but is no host that was given up: {error}"
            elif self._use_next(name, found):
                continue
            if self._clock.monotonic() > deadline:
                raise HostLost(why, host)
            self._clock.sleep(_AGAIN_S)

    def _use_next(self, name: str, found: Found) -> bool:
        """A copy on a member is the first from now on; False if there is none. Those of hosts that were given up, and
        may be back with them, stay: they have what was acknowledged until somebody flushes."""
        assert found.kept is not None
        left = tuple(filter(found.may_return, sorted(found.kept.copies, key=lambda copy: not found.there(copy))))
        if not found.there(left[0]):
            return False
        self._membership.reorder(name, found, left)
        return True

    def contains(self, name: str) -> bool:
        found = self._membership.found(name)
        return found.kept is not None and any(map(found.may_return, found.kept.copies))

    def entries(self, prefix: str) -> list[Listed]:
        every = self._membership.all_kept()
        return [
            (name, kept.nbytes, kept.copies[0].address, kept.dtype, kept.kind, kept.shape, kept.descr)
            for name, kept in sorted(every.items())
            if name.startswith(prefix)
        ]

    # Changing

    def publish(self, parts: Parts, pin: _core.Pin, replace: bool) -> None:
        """Publishes a draft, which has a hidden name, once all copies are made."""
        uid, name = _parts_of(pin.name)
        found = self._membership.found(name)
        self._refuse_taken(parts, name, found, replace)
        number = parts.number_of(pin.address)
        own = Copy(number, found.lives.get(number, ""), pin.address, uid)
        others = self._copies(parts, pin, name, found)
        copies = own, *(one.copy for one in others)
        kept = Kept(copies, pin.nbytes, pin.dtype, pin.kind, tuple(pin.shape), pin.descr)
        with self._announced(parts, name, [_Made(own, pin), *others]) as attempt:
            for _ in range(_TRIES):
                found = self._membership.found(name)
                self._refuse_taken(parts, name, found, replace)
                if self._commit(parts, name, found, kept, attempt):
                    break
            else:
                raise HostLost(f"{name!r} could not be published: others change it all the time, or this took too long")
        self._forget_copies(parts, name, found, found.kept.copies if found.kept else ())

    def flush(self, parts: Parts, pin: _core.Pin) -> None:
        """All copies have what was stored before; Closed if the array is not what its name names any more."""
        uid, name = _parts_of(pin.name)
        while True:
            found = self._membership.found(name)
            if found.kept is None or found.kept.copies[0].uid != uid:
                raise Closed(
                    f"{name!r} is another array by now: this one was replaced or deleted, or its host was given up and "
                    "another one's copy took its place. Look the name up again; what was not flushed is not there"
                )
            if not found.there(found.kept.copies[0]):  # nobody has taken its place yet
                raise HostLost(f"{parts.hosts[found.kept.copies[0].number]}, the home of {name!r}, was given up")
            others = self._copies(parts, pin, name, found)  # after it was found: it has what others flushed before
            kept = found.kept._replace(copies=(found.kept.copies[0], *(one.copy for one in others)))
            with self._announced(parts, name, others) as attempt:
                done = self._commit(parts, name, found, kept, attempt)
            if done:
                return self._forget_copies(parts, name, found, found.kept.copies[1:])

    def remove(self, parts: Parts, name: str, only: _core.Pin | None = None) -> bool:
        while True:
            found = self._membership.found(name)
            if found.kept is None or (only is not None and found.kept.copies[0].address != only.address):
                return False
            ticket = self._ticket(parts)
            if self._membership.discard(name, found, ticket):
                self._forget_copies(parts, name, found, found.kept.copies)
                return any(map(found.may_return, found.kept.copies))
            self._await_term(parts, name, ticket)

    # Making copies again

    def tidy(self, parts: Parts) -> bool:
        """What a host does for its copies after others came or went: false if something is left to do.

        Arrays whose first copy is here get new ones for those that are lost. What is nobody's goes.
        """
        whole = True
        for name in self._membership.all_kept():
            try:
                found = self._membership.found(name)
                if found.kept is None or not any(map(found.may_return, found.kept.copies)):
                    continue
                if not found.there(found.kept.copies[0]):
                    self._use_next(name, found)
                    found = self._membership.found(name)
                if found.kept is None or found.kept.copies[0].number != self._own:
                    continue
                if sum(map(found.there, found.kept.copies)) >= self._replicas:
                    continue
                pin = parts.native_of(self._own).find(hidden(found.kept.copies[0].uid, name))
                if pin is not None:
                    parts.follow(found.epoch)
                    self.flush(parts, pin)
            except Closed:
                continue
            except (HostLost, NoRoom):
                whole = False
        own = parts.native_of(self._own)
        here = own.list(KEPT)  # first: what is announced after this is not among them
        wanted = self._membership.wanted()
        for name, *_ in here:
            if _parts_of(name)[0] not in wanted:
                own.remove(name)
        return whole

    # Steps

    def _refuse_taken(self, parts: Parts, name: str, found: Found, replace: bool) -> None:
        if found.kept is None or not any(map(found.may_return, found.kept.copies)) or replace:
            return
        host = parts.hosts[found.kept.copies[0].number]
        raise NameTaken(f"{name!r} exists already, on {host}; delete it, choose another name, or put() to replace it")

    def _copies(self, parts: Parts, pin: _core.Pin, name: str, found: Found) -> list[_Made]:
        """Copies of an array as drafts on other hosts; NoRoom if there are too few with room."""
        parts.follow(found.epoch)
        home = parts.number_of(pin.address)
        after = sorted(found.terms, key=lambda number: (number != self._own, (number - home) % len(parts.hosts)))
        made: list[_Made] = []
        said = ""
        for number in after:
            if len(made) == self._replicas - 1:
                break
            if number == home:
                continue
            uid = secrets.token_hex(8)
            try:
                draft = parts.native_of(number).make(
                    pin.nbytes, pin.dtype, pin.kind, pin.shape, pin.descr, hidden(uid, name), False
                )
                parts.copy(pin, draft)
            except (HostLost, UnknownName, NoRoom) as error:
                said += f"; {parts.hosts[number]}: {error}"
                continue
            made.append(_Made(Copy(number, found.lives[number], draft.address, uid), draft))
        if len(made) < self._replicas - 1:
            raise NoRoom(
                f"{name!r} needs {self._replicas} hosts with room for {pin.nbytes} bytes, because the space was made "
                f"with replicas={self._replicas}; {len(made) + 1} of {len(found.terms)} that are there have it{said}"
            )
        return made

    @contextlib.contextmanager
    def _announced(self, parts: Parts, name: str, made: list[_Made]) -> Iterator[_Attempt]:
        """Inside, the copies may be committed; those that are not then go."""
        attempt = _Attempt([one.copy.uid for one in made])
        self._membership.announce(attempt.uids)
        try:
            for one in made:
                parts.native_of(one.copy.number).publish(one.pin, False)
            yield attempt
        finally:
            if not attempt.done:
                self._settle(parts, name, made, attempt.uids)

    def _settle(self, parts: Parts, name: str, made: list[_Made], uids: list[str]) -> None:
        """Takes the copies away, unless the name names them."""
        with contextlib.suppress(NoAgreement):  # then nobody knows, and tidy() does it
            self._membership.withdraw(uids)
            found = self._membership.found(name)
            named = {copy.uid for copy in found.kept.copies} if found.kept else set()
            for one in made:
                if one.copy.uid not in named:
                    self._take_away(parts, name, one.copy)

    def _commit(self, parts: Parts, name: str, found: Found, kept: Kept, attempt: _Attempt) -> bool:
        """False: others were first. HostLost if a copy's host is lost meanwhile, NoAgreement if nobody knows."""
        ticket = self._ticket(parts)
        for copy in kept.copies:
            if not found.there(copy):
                raise HostLost(f"{parts.hosts[copy.number]} was lost while {name!r} was copied there; try again")
        try:
            attempt.done = self._membership.commit(name, found, kept, attempt.uids, ticket)
        except NoAgreement:
            attempt.done = self._was_done(name, attempt.uids)
        if not attempt.done:
            self._await_term(parts, name, ticket)
        return attempt.done

    def _was_done(self, name: str, uids: list[str]) -> bool:
        """Whether a transaction was, whose answer was lost; it cannot be done any more afterwards."""
        deadline = self._clock.monotonic() + _AGREE_S
        while True:
            try:
                self._membership.withdraw(uids)
                now = self._membership.found(name).kept
                break
            except NoAgreement:
                if self._clock.monotonic() > deadline:
                    raise
                self._clock.sleep(_AGAIN_S)
        if now is not None and {copy.uid for copy in now.copies} & set(uids):
            return True
        raise NoAgreement(
            f"etcd did not answer while {name!r} was published or flushed, and it was not done; try again"
        )

    def _await_term(self, parts: Parts, name: str, ticket: Ticket) -> None:
        """If this host was given up: until its keeper has joined again. HostLost if it does not."""
        deadline = self._clock.monotonic() + _JOIN_S
        while self._membership.found(name).terms.get(self._own) != self._ticket(parts).term:
            if self._clock.monotonic() > deadline:
                raise HostLost("this host was given up by the others; names can be changed when it has joined again")
            self._clock.sleep(_AGAIN_S)

    def _forget_copies(self, parts: Parts, name: str, found: Found, copies: tuple[Copy, ...]) -> None:
        for copy in filter(found.there, copies):
            self._take_away(parts, name, copy)

    def _take_away(self, parts: Parts, name: str, copy: Copy) -> None:
        """If its host does not answer, it does that itself when it is back."""
        with contextlib.suppress(OpenshelfError):
            parts.native_of(copy.number).remove(hidden(copy.uid, name))

    def _ticket(self, parts: Parts) -> Ticket:
        return Ticket(self._own, parts.attachment.term, 0, self._life)
