"""What a keeper does for its host's membership, step by step: keeps the lease, joins again, follows the list.

One step asks the store at most a few times, and decides. Who calls it waits between steps, on real time or on a virtual
clock. While the store cannot be reached, nothing changes: the host serves on with the list that it has.
"""

from __future__ import annotations

from collections.abc import Callable

from openshelf.errors import Closed, NoAgreement, OpenshelfError
from openshelf.membership.agreed import Agreed
from openshelf.membership.base import Ticket, View
from openshelf.membership.table import Table

Follow = Callable[[Table], None]  # hears of every change before the next step; an older list never follows a newer one
Say = Callable[[str], None]


class Agent:
    """One host's part in the agreement."""

    def __init__(self, membership: Agreed, host: str, table: Table, follow: Follow, say: Say) -> None:
        self._membership, self._host, self._follow, self._say = membership, host, follow, say
        self.table = table
        self.over = False  # the host has left: nothing is to be done any more
        self._cut_off = False

    def step(self) -> None:
        """Renews the lease, joins again if it has ended, and follows the list."""
        ticket = self.table.ticket
        try:
            since = self.table.view.epoch
            if not self._membership.lease(ticket):
                ticket = self._membership.join_again(self._host, ticket.life, since)
                self._say(f"joined again, under term {ticket.term}: the others had given this host up")
            view = self._membership.view()
            self._check(view)
            if view.terms[ticket.number] != ticket.term:  # given up between the two
                ticket = self._membership.join_again(self._host, ticket.life, since)
                view = self._membership.view()
            self._check(view)
        except NoAgreement as error:
            if not self._cut_off:
                self._say(f"serves on with the list of epoch {self.table.view.epoch}: {error}")
            self._cut_off = True
            return
        except Closed as error:
            self._say(f"{error}; it serves nobody any more")
            self.over = True
            return
        except OpenshelfError as error:  # others changed the list all the time: the next step tries again
            self._say(str(error))
            return
        if self._cut_off:
            self._say("etcd answers again")
        self._cut_off = False
        self._take(view, ticket)

    def wait(self, seconds: float) -> bool:
        """Until the next step; True at once when something has changed."""
        return self._membership.pause(seconds)

    def _check(self, view: View) -> None:
        """NoAgreement if hosts that agree cannot have come to this list from the one that is known."""
        known = self.table.view
        self._membership.check_epoch(view.epoch, known.epoch)
        places = list(zip(known.hosts, view.hosts, strict=False))
        if len(view.hosts) != len(known.hosts) or any(was and was != host for was, host in places):
            raise NoAgreement(
                "etcd gives places of hosts to other hosts, which no host does: somebody else has changed what is "
                f"there. It was {', '.join(filter(None, known.hosts))}; now it is {', '.join(filter(None, view.hosts))}"
            )

    def _take(self, view: View, ticket: Ticket) -> None:
        if (view, ticket) == (self.table.view, self.table.ticket):
            return
        table = Table(view, ticket)
        self._follow(table)  # first: what could not be followed is tried again
        self.table = table
