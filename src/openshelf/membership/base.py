"""The contract: who the hosts of a space are, and what they agree on.

Every host has a number, its place, which decides its addresses. No other host ever gets that place. A member has a
term, the epoch at which it joined. The epoch counts all changes, so a host that was given up and joins again has a
larger term than before. Calls carry the term of the caller's host, and homes refuse an old one (native/net/roster.hpp).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

MOST_REPLICAS = 3


class Spec(NamedTuple):
    """What a space is, the same for all of its hosts from the first join on."""

    id: str  # of this agreement: another space of the same name has another one
    base: int  # of the addresses of host 0
    reserve: int  # addresses of each host
    places: int  # how many hosts it can have, over time
    replicas: int = 1  # hosts that have each named array


class View(NamedTuple):
    """The hosts at an epoch. A host without a term is not a member now; one without a name never was."""

    epoch: int
    hosts: tuple[str, ...]
    terms: tuple[int, ...]


class Ticket(NamedTuple):
    """What a host that has joined holds."""

    number: int
    term: int
    lease: int
    life: str  # which part of the space the host has: one that is made anew has another


class Owner(NamedTuple):
    """Who has a name: the array at an address, in one life of a host's part."""

    number: int
    life: str
    address: int
    token: str  # of one publication, so that nobody takes another's for its own
    before: str | None = None  # the name of an array that is being renamed: it has that until it is done
    draft: int = 0  # the address of a draft at its home that is there as long as the array may still be renamed


class Copy(NamedTuple):
    """One copy of an array: where it is, in which life of that host's part, and what no other copy is called."""

    number: int
    life: str
    address: int
    uid: str


class Kept(NamedTuple):
    """What a name names: the copies, and what the array is."""

    copies: tuple[Copy, ...]
    nbytes: int
    dtype: int
    kind: int
    shape: tuple[int, ...]
    descr: str


class Membership(Protocol):
    """All methods may wait for others, and raise NoAgreement if nothing can be agreed on now."""

    agreed: bool  # False: the list is fixed, all terms are 0, and there is nobody to agree with

    def join(self, host: str, life: str) -> Ticket:
        """Makes the host a member, under a new term. UnknownName or NoRoom if there is no place for it."""
        ...

    def lease(self, ticket: Ticket) -> bool:
        """Says that the host lives. False: it was not heard of for too long, and has to join again."""
        ...

    def view(self) -> View:
        """The hosts now. A member whose lease has ended is given up first."""
        ...

    def watch(self, known: View, timeout_s: float) -> View:
        """The hosts as soon as they differ from what is known, or when the time is over."""
        ...

    def cas(self, name: str, expected: Owner | None, owner: Owner | None, ticket: Ticket) -> Owner | None:
        """Gives a name to an owner, or to nobody, if it has the expected one now; who has it afterwards.

        HostLost if the ticket's host was given up.
        """
        ...

    def leave(self, ticket: Ticket) -> None:
        """The host goes for good, with all that lives there: its names are free."""
        ...
