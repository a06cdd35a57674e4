"""Transports by name. Asking for one that is not there is an error, never another one instead."""

from __future__ import annotations

from openshelf.errors import UnknownName
from openshelf.space.transports.base import Connection, Listener, Transport
from openshelf.space.transports.tcp import Tcp

__all__ = ["TRANSPORTS", "Connection", "Listener", "Transport", "transport"]

TRANSPORTS: dict[str, Transport] = {each.name: each for each in (Tcp(),)}


def transport(name: str) -> Transport:
    """The transport of that name."""
    try:
        return TRANSPORTS[name]
    except KeyError:
        raise UnknownName(f"there is no transport {name!r}; known: {', '.join(sorted(TRANSPORTS))}") from None
