"""Membership that the hosts agree on in a store.

Keys, below /openshelf/<space>/:

    spec             the Spec, written once. Never a secret.
    epoch            a number, raised by every transaction that changes a segment
    segments/<n>     {"host", "term", "life"}: whose the n-th range of addresses is. Never another host's.
                     term 0: not a member. life "": what lived there is gone.
    members/<n>      the term, with the member's lease. When the lease ends, the store takes the key away.
    names/<name>     the Owner

The end of a lease changes nothing by itself. Whoever sees that a member's key is gone gives the member up: one
transaction raises the epoch and takes the term away. So the list of members is a function of the epoch, and all hosts
see the same lists in the same order.
"""

from __future__ import annotations

import json
import urllib.parse

from openshelf.errors import BadInput, Closed, HostLost, NoAgreement, NoRoom
from openshelf.membership.base import Owner, Spec, Ticket, View
from openshelf.membership.records import (
    FORMAT,
    MOST_PLACES,
    Segment,
    number_of,
    owner_of,
    realm_of,
    segment_of,
    spec_of,
)
from openshelf.membership.store import Is, Pair, Store

LEASE_S = 4
LIST = ("epoch", "spec", "segments/", "members/")
_TRIES = 100  # of a transaction that others came before; each time somebody has got on


class GivenUp(HostLost):
    """The host is no member under the term of its ticket any more. It may have joined again under another."""


class Agreed:
    """The hosts of one space. With a realm, only of the one that was made with it: etcd may have lost that one, and
    hosts that do not know of it may have made another under its name."""

    agreed = True

    def __init__(self, store: Store, space: str, realm: int = 0) -> None:
        self.store, self._root = store, f"/openshelf/{urllib.parse.quote(space, safe='')}/"
        self._realm = realm
        self._revision = 0  # of the store, at the last view

    # The space

    def spec(self) -> Spec | None:
        """What the space is; None if nobody has made it."""
        _, found = self.store.read([self._root + "spec"])
        pair = found.get(self._root + "spec")
        return None if pair is None else spec_of(pair.value, self._root + "spec")

    def make(self, wanted: Spec) -> Spec:
        """Makes the space, unless somebody has; what it is."""
        key = self._root + "spec"
        text = json.dumps({"format": FORMAT, **wanted._asdict()})
        self.store.change([Is(key, revision=0)], {key: (text, 0)})
        made = self.spec()
        assert made is not None
        return made

    # The contract

    def join(self, host: str, life: str) -> Ticket:
        return self._join(host, life, again=False)

    def join_again(self, host: str, life: str, since: int = 0) -> Ticket:
        """As `join`, for a host that was a member. Closed if it has left, or its part was made anew.

        `since`: an epoch that it knows of. NoAgreement if the store does not.
        """
        return self._join(host, life, again=True, since=since)

    def _join(self, host: str, life: str, again: bool, since: int = 0) -> Ticket:
        lease = self.store.grant(LEASE_S)
        for _ in range(_TRIES):
            state = self._state()
            self.check_epoch(state.epoch, since)
            number = state.number_of(host)
            if again and (number is None or state.segments[number].life != life):
                self.store.revoke(lease)
                raise Closed(f"{host} has left the space, or its part was made anew")
            if number is None:
                number = state.free_place(self._places(state))
            term = state.epoch + 1
            conditions = [Is(self._root + "epoch", revision=state.epoch_revision)]
            if self._change(
                state, conditions, number, Segment(host, term, life), {self._member(number): (str(term), lease)}
            ):
                return Ticket(number, term, lease, life)
        self.store.revoke(lease)
        raise HostLost(f"{host} could not join: others changed the list all the time; try again", host)

    def lease(self, ticket: Ticket) -> bool:
        return self.store.renew(ticket.lease)

    def view(self) -> View:
        for _ in range(_TRIES):
            state = self._state()
            gone = [n for n, segment in state.segments.items() if segment.term and n not in state.members]
            if not gone:
                self._revision = state.revision
                return state.view(self._places(state))
            number = gone[0]
            conditions = [
                Is(self._root + "epoch", revision=state.epoch_revision),
                Is(self._member(number), revision=0),
            ]
            self._change(state, conditions, number, state.segments[number]._replace(term=0), {})
        raise HostLost("the list of hosts changes all the time; try again")

    def watch(self, known: View, timeout_s: float) -> View:
        self.pause(timeout_s)
        return self.view()

    def pause(self, timeout_s: float) -> bool:
        """True as soon as something may have changed since the last view, False when the time is over.

        Every change of the list comes with one of `members/`. Names are no news: there may be many.
        """
        return self.store.wait(self._root + "members/", self._revision, timeout_s)

    def cas(self, name: str, expected: Owner | None, owner: Owner | None, ticket: Ticket) -> Owner | None:
        key, member = self.name_key(name), self._member(ticket.number)
        spec = self._spec_revision()
        now = self.owner(name)
        for _ in range(_TRIES):
            found = None if now is None else now[0]
            if found != expected:
                return found
            conditions = [
                Is(self._root + "spec", revision=spec),  # another space may have a member with this number and term
                Is(member, value=str(ticket.term)),
                Is(key, revision=0 if now is None else now[1]),
            ]
            put = {} if owner is None else {key: (json.dumps(owner._asdict()), 0)}
            if self.store.change(conditions, put, [key] if owner is None else []):
                return owner
            spec = self._spec_revision()
            _, members = self.store.read([member])
            if member not in members or members[member].value != str(ticket.term):
                raise GivenUp(
                    f"this host was given up by the others; {name!r} can be published when it has joined again"
                )
            now = self.owner(name)
            if owner is not None and now is not None and now[0] == owner:
                return owner  # it was done at the first try, whose answer was lost
        raise HostLost(f"{name!r} is changed by others all the time; try again")

    def leave(self, ticket: Ticket) -> None:
        for _ in range(_TRIES):
            state = self._state()
            segment = state.segments.get(ticket.number)
            if segment is None or segment.life != ticket.life:
                return
            conditions = [Is(self._root + "epoch", revision=state.epoch_revision)]
            gone = segment._replace(term=0, life="")
            if self._change(state, conditions, ticket.number, gone, {}, [self._member(ticket.number)]):
                return
        raise HostLost("this host could not leave: others changed the list all the time; try again")

    # Names

    def name_key(self, name: str) -> str:
        return f"{self._root}names/{urllib.parse.quote(name, safe='')}"

    def owner(self, name: str) -> tuple[Owner, int] | None:
        """Who has a name, and since which revision of the store."""
        key = self.name_key(name)
        _, found = self.store.read([key])
        return None if key not in found else (owner_of(found[key].value, key), found[key].revision)

    def look(self, name: str) -> tuple[int, Owner | None, bool]:
        """The epoch, who has a name then, and whether its host is a member. Nobody if what has it is gone for good."""
        key = self.name_key(name)
        _, found = self.store.read([key, *(self._root + part for part in LIST)])
        owner = owner_of(found.pop(key).value, key) if key in found else None
        state = self._parsed(0, found)
        there = None if owner is None else state.segments.get(owner.number)
        gone = owner is None or owner.life != ("" if there is None else there.life)
        return state.epoch, None if gone else owner, owner is not None and owner.number in state.members

    def epoch(self) -> int:
        """How many changes there were of the list of hosts."""
        key = self._root + "epoch"
        _, found = self.store.read([key])
        return number_of(found[key].value, key) if key in found else 0

    def life_of(self, number: int) -> str:
        """The life of a host's part now; empty if what lived there is gone."""
        segment = self._state().segments.get(number)
        return "" if segment is None else segment.life

    def resign(self, ticket: Ticket) -> None:
        """The host is no member any more until it joins again; what lives there stays its own."""
        self.store.revoke(ticket.lease)

    # The table

    def check_epoch(self, epoch: int, since: int) -> None:
        """NoAgreement if the store is at an epoch before one that was seen: hosts that join could get old terms."""
        if epoch < since:
            raise NoAgreement(
                f"etcd has gone back from epoch {since} to {epoch}: what it knew was lost, or an older copy of it was "
                "restored. Hosts go on with what they have; restore a newer copy, or remove the space on all hosts "
                f"and what is in etcd below {self._root}, and make it anew"
            )

    def _spec_revision(self) -> int:
        key = self._root + "spec"
        _, found = self.store.read([key])
        self._check_realm(found.get(key))
        return found[key].revision if key in found else 0

    def _check_realm(self, spec: Pair | None) -> None:
        if not self._realm:
            return
        if spec is None:
            raise NoAgreement(
                f"there is no {self._root}spec in etcd any more: what etcd knew was lost, or somebody removed it. "
                "Hosts go on with what they have; restore a copy, or remove the space on all hosts and make it anew"
            )
        if realm_of(spec_of(spec.value, self._root + "spec")) != self._realm:
            raise NoAgreement(
                f"{self._root}spec in etcd is another space's: this one was lost there, and another has its name now. "
                "Hosts go on with what they have; restore etcd, or remove the space on this host and open it anew"
            )

    def _member(self, number: int) -> str:
        return f"{self._root}members/{number}"

    def _state(self) -> _State:
        revision, pairs = self.store.read([self._root + part for part in LIST])
        return self._parsed(revision, pairs)

    def _parsed(self, revision: int, pairs: dict[str, Pair]) -> _State:
        self._check_realm(pairs.get(self._root + "spec"))
        return _State(revision, {key.removeprefix(self._root): pair for key, pair in pairs.items()}, self._root)

    def _places(self, state: _State) -> int:
        if state.spec is None:
            raise BadInput(f"nobody has made the space at {self._root}; open it with contribute= first")
        return state.spec.places

    def _change(
        self,
        state: _State,
        conditions: list[Is],
        number: int,
        segment: Segment,
        put: dict[str, tuple[str, int]],
        delete: list[str] | None = None,
    ) -> bool:
        put = {
            self._root + "epoch": (str(state.epoch + 1), 0),
            f"{self._root}segments/{number}": (json.dumps(segment._asdict()), 0),
            **put,
        }
        return self.store.change(conditions, put, delete or [])


class _State:
    """The table at one moment. NoAgreement if no hosts can have made it."""

    def __init__(self, revision: int, pairs: dict[str, Pair], root: str) -> None:
        def numbered(part: str) -> dict[int, tuple[str, str]]:
            """By the number that ends the key: the key, and its value."""
            return {
                number_of(key.removeprefix(part), root + key, most): (root + key, pair.value)
                for key, pair in pairs.items()
                if key.startswith(part)
            }

        self.revision = revision
        self.spec = spec_of(pairs["spec"].value, f"{root}spec") if "spec" in pairs else None
        most = MOST_PLACES if self.spec is None else self.spec.places
        self.epoch = number_of(pairs["epoch"].value, f"{root}epoch") if "epoch" in pairs else 0
        self.epoch_revision = pairs["epoch"].revision if "epoch" in pairs else 0
        self.segments = {n: segment_of(text, key) for n, (key, text) in numbered("segments/").items()}
        self.members = {n: number_of(text, key) for n, (key, text) in numbered("members/").items()}
        hosts = [segment.host for segment in self.segments.values()]
        for number, segment in self.segments.items():
            if segment.term > self.epoch or hosts.count(segment.host) > 1:
                raise NoAgreement(
                    f"{root}segments/{number} in etcd does not go with the other keys there: two places of one host, "
                    f"or a term after epoch {self.epoch}. Hosts go on with what they have; put back what was there"
                )

    def number_of(self, host: str) -> int | None:
        return next((number for number, segment in self.segments.items() if segment.host == host), None)

    def free_place(self, places: int) -> int:
        for number in range(places):
            if number not in self.segments:
                return number
        raise NoRoom(
            f"all {places} places of the space are taken, also by hosts that have left: addresses are never given to "
            "another host. Hosts that come back at their old HOST:PORT get their places again"
        )

    def view(self, places: int) -> View:
        hosts, terms = [""] * places, [0] * places
        for number, segment in self.segments.items():
            hosts[number], terms[number] = segment.host, segment.term
        return View(self.epoch, tuple(hosts), tuple(terms))
