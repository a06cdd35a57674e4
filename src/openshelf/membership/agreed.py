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

from openshelf.errors import BadInput, Closed, HostLost, NoRoom
from openshelf.membership.base import Owner, Spec, Ticket, View
from openshelf.membership.store import Is, Pair, Store

LEASE_S = 4
FORMAT = 1
_TRIES = 100  # of a transaction that others came before; each time somebody has got on


class GivenUp(HostLost):
    """The host is no member under the term of its ticket any more. It may have joined again under another."""


class Agreed:
    """The hosts of one space."""

    agreed = True

    def __init__(self, store: Store, space: str) -> None:
        self.store, self._root = store, f"/openshelf/{urllib.parse.quote(space, safe='')}/"
        self._revision = 0  # of the store, at the last view

    # The space

    def spec(self) -> Spec | None:
        """What the space is; None if nobody has made it."""
        _, found = self.store.read([self._root + "spec"])
        pair = found.get(self._root + "spec")
        return None if pair is None else _spec(pair.value, self._root)

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

    def join_again(self, host: str, life: str) -> Ticket:
        """As `join`, for a host that was a member. Closed if it has left, or its part was made anew."""
        return self._join(host, life, again=True)

    def _join(self, host: str, life: str, again: bool) -> Ticket:
        lease = self.store.grant(LEASE_S)
        for _ in range(_TRIES):
            state = self._state()
            number = state.number_of(host)
            if again and (number is None or state.segments[number]["life"] != life):
                self.store.revoke(lease)
                raise Closed(f"{host} has left the space, or its part was made anew")
            if number is None:
                number = state.free_place(self._places(state))
            term = state.epoch + 1
            conditions = [Is(self._root + "epoch", revision=state.epoch_revision)]
            segment = {"host": host, "term": term, "life": life}
            if self._change(state, conditions, number, segment, {self._member(number): (str(term), lease)}):
                return Ticket(number, term, lease, life)
        self.store.revoke(lease)
        raise HostLost(f"{host} could not join: others changed the list all the time; try again", host)

    def lease(self, ticket: Ticket) -> bool:
        return self.store.renew(ticket.lease)

    def view(self) -> View:
        for _ in range(_TRIES):
            state = self._state()
            gone = [n for n, segment in state.segments.items() if segment["term"] and n not in state.members]
            if not gone:
                self._revision = state.revision
                return state.view(self._places(state))
            number = gone[0]
            conditions = [
                Is(self._root + "epoch", revision=state.epoch_revision),
                Is(self._member(number), revision=0),
            ]
            self._change(state, conditions, number, {**state.segments[number], "term": 0}, {})
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
        now = self.owner(name)
        for _ in range(_TRIES):
            found = None if now is None else now[0]
            if found != expected:
                return found
            conditions = [
                Is(member, value=str(ticket.term)),
                Is(key, revision=0 if now is None else now[1]),
            ]
            put = {} if owner is None else {key: (json.dumps(owner._asdict()), 0)}
            if self.store.change(conditions, put, [key] if owner is None else []):
                return owner
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
            if segment is None or segment["life"] != ticket.life:
                return
            conditions = [Is(self._root + "epoch", revision=state.epoch_revision)]
            gone = {**segment, "term": 0, "life": ""}
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
        return None if key not in found else (Owner(**json.loads(found[key].value)), found[key].revision)

    def look(self, name: str) -> tuple[int, Owner | None, bool]:
        """The epoch, who has a name then, and whether its host is a member. Nobody if what has it is gone for good."""
        key = self.name_key(name)
        _, found = self.store.read([key, *(self._root + part for part in ("epoch", "segments/", "members/"))])
        state = self._parsed(0, found)
        owner = Owner(**json.loads(found[key].value)) if key in found else None
        gone = owner is None or owner.life != state.segments.get(owner.number, {"life": ""})["life"]
        return state.epoch, None if gone else owner, owner is not None and owner.number in state.members

    def epoch(self) -> int:
        """How many changes there were of the list of hosts."""
        key = self._root + "epoch"
        _, found = self.store.read([key])
        return int(found[key].value) if key in found else 0

    def life_of(self, number: int) -> str:
        """The life of a host's part now; empty if what lived there is gone."""
        segment = self._state().segments.get(number)
        return "" if segment is None else str(segment["life"])

    def resign(self, ticket: Ticket) -> None:
        """The host is no member any more until it joins again; what lives there stays its own."""
        self.store.revoke(ticket.lease)

    # The table

    def _member(self, number: int) -> str:
        return f"{self._root}members/{number}"

    def _state(self) -> _State:
        revision, pairs = self.store.read([self._root + part for part in ("epoch", "spec", "segments/", "members/")])
        return self._parsed(revision, pairs)

    def _parsed(self, revision: int, pairs: dict[str, Pair]) -> _State:
        return _State(revision, {key.removeprefix(self._root): pair for key, pair in pairs.items()})

    def _places(self, state: _State) -> int:
        if state.spec is None:
            raise BadInput(f"nobody has made the space at {self._root}; open it with contribute= first")
        return _spec(state.spec, self._root).places

    def _change(
        self,
        state: _State,
        conditions: list[Is],
        number: int,
        segment: dict[str, object],
        put: dict[str, tuple[str, int]],
        delete: list[str] | None = None,
    ) -> bool:
        put = {
            self._root + "epoch": (str(state.epoch + 1), 0),
            f"{self._root}segments/{number}": (json.dumps(segment), 0),
            **put,
        }
        return self.store.change(conditions, put, delete or [])


class _State:
    """The table at one moment."""

    def __init__(self, revision: int, pairs: dict[str, Pair]) -> None:
        self.revision = revision
        self.spec = pairs["spec"].value if "spec" in pairs else None
        self.epoch = int(pairs["epoch"].value) if "epoch" in pairs else 0
        self.epoch_revision = pairs["epoch"].revision if "epoch" in pairs else 0
        self.segments = {
            int(key.removeprefix("segments/")): json.loads(pair.value)
            for key, pair in pairs.items()
            if key.startswith("segments/")
        }
        self.members = {
            int(key.removeprefix("members/")): int(pair.value)
            for key, pair in pairs.items()
            if key.startswith("members/")
        }

    def number_of(self, host: str) -> int | None:
        return next((number for number, segment in self.segments.items() if segment["host"] == host), None)

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
            hosts[number], terms[number] = segment["host"], segment["term"]
        return View(self.epoch, tuple(hosts), tuple(terms))


def _spec(text: str, where: str) -> Spec:
    found = json.loads(text)
    if found.pop("format", None) != FORMAT:
        raise BadInput(f"{where}spec is of another version of Openshelf: {text}")
    return Spec(**found)
