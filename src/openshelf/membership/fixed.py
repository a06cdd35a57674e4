"""A fixed list of hosts, such as a hosts file has: all of them are members, always."""

from __future__ import annotations

import time
from collections.abc import Sequence

from openshelf.errors import NoAgreement, UnknownName
from openshelf.membership.base import Owner, Ticket, View


class Fixed:
    """The hosts of a list. Nobody is asked for anything, so nothing can be agreed on."""

    agreed = False

    def __init__(self, hosts: Sequence[str]) -> None:
        self._view = View(0, tuple(hosts), (0,) * len(hosts))

    def join(self, host: str, life: str) -> Ticket:
        if host not in self._view.hosts:
            raise UnknownName(f"{host} is not one of the hosts {', '.join(self._view.hosts)}")
        return Ticket(self._view.hosts.index(host), 0, 0, life)

    def lease(self, ticket: Ticket) -> bool:
        return True

    def view(self) -> View:
        return self._view

    def watch(self, known: View, timeout_s: float) -> View:
        if known == self._view:
            time.sleep(timeout_s)
        return self._view

    def cas(self, name: str, expected: Owner | None, owner: Owner | None, ticket: Ticket) -> Owner | None:
        raise NoAgreement(f"{name!r}: hosts of a fixed list agree on nothing; open the space by etcd:// instead")

    def leave(self, ticket: Ticket) -> None:
        """Nothing to do: the list stays as it is."""
