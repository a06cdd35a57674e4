"""What tables a space has: for people and for metrics."""

from __future__ import annotations

from typing import Any

from openshelf import _core
from openshelf.errors import UnknownName
from openshelf.space import Space, array_name
from openshelf.tables.hosts_table import open_over_hosts
from openshelf.tables.table import core_of, facts_of


def tables(space: Space) -> list[str]:
    """The names of the tables in this space, on this host."""
    found = core_of(space).list("")
    wanted = (_core.Kind.TABLE, _core.Kind.SHARDED)
    return sorted(
        name for name, _, _, _, kind, _, _ in found if kind in wanted and not name.startswith(("\x03", "\x04"))
    )


def describe(space: Space, name: str) -> dict[str, Any]:
    """As Table.stat(), but for what one process has read from where."""
    over = open_over_hosts(space, name, True)
    if over is not None:
        return over.stat()
    native = _core.TableCore.open(core_of(space), array_name("", name))
    if native is None:
        there = ", ".join(map(repr, tables(space))) or "none"
        raise UnknownName(f"there is no table {name!r} in the space {space.name!r}; there is: {there}")
    keys = _core.TableKeys.open(native)
    return facts_of(native, name) | ({} if keys is None else {"rows": keys.stats()["room"], **keys.stats()})
