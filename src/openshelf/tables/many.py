"""Several tables in one call: checked together, and read by the same threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openshelf import _core
from openshelf.errors import BadInput, Mismatch
from openshelf.tables.table import Table, threads_of


def lookup_many(
    tables: Sequence[Table],
    ids: Sequence[Any],
    *,
    out: Sequence[Any] | None = None,
    consistent: bool = False,
    threads: int = 0,
) -> list[Any]:
    """For each table the rows of its ids, as Table.lookup. Nothing is written if one of the ids is out of range."""
    results: list[list[Any]] = [[] for _ in _checked(tables)]
    rows = zip(tables, ids, _each(out, tables, ids), results, strict=True)
    _read(tables, [t._lookup_request(i, o, False, consistent, r) for t, i, o, r in rows], threads_of(threads))
    return [one[0] for one in results]


def bag_many(
    tables: Sequence[Table],
    ids: Sequence[Any],
    offsets: Sequence[Any] | None = None,
    mode: str = "sum",
    weights: Sequence[Any] | None = None,
    *,
    out: Sequence[Any] | None = None,
    include_last_offset: bool = False,
    consistent: bool = False,
    threads: int = 0,
) -> list[Any]:
    """For each table its bags, as Table.bag. `out`: for each table memory, perhaps columns of one wide array."""
    results: list[list[Any]] = [[] for _ in _checked(tables)]
    rest = [_each(given, tables, ids) for given in (offsets, weights, out)]
    requests = [
        table._bag_request(one, start, mode, factors, room, include_last_offset, consistent, found)
        for table, one, start, factors, room, found in zip(tables, ids, *rest, results, strict=True)
    ]
    _read(tables, requests, threads_of(threads))
    return [one[0] for one in results]


def _read(tables: Sequence[Table], requests: list[tuple[Any, ...]], threads: int) -> None:
    """Those of this host together; each of the others by itself, before them."""
    here = [type(table)._read is Table._read for table in tables]
    for table, request, one in zip(tables, requests, here, strict=True):
        if not one:
            table._read([request], threads)
    _core.table_read([request for request, one in zip(requests, here, strict=True) if one], threads)


def _checked(tables: Any) -> Sequence[Table]:
    if not isinstance(tables, list | tuple) or any(not isinstance(one, Table) for one in tables):
        raise Mismatch(f"expected a list of Tables, got {tables!r:.60}")
    return tables


def _each(given: Sequence[Any] | None, tables: Sequence[Table], ids: Sequence[Any]) -> Sequence[Any]:
    for one in (ids, [] if given is None else given):
        if not hasattr(one, "__len__"):
            raise Mismatch(f"expected a list with an entry for each table, got {one!r:.60}")
    if len(ids) != len(tables) or (given is not None and len(given) != len(tables)):
        counts = f"{len(ids)} of ids" + ("" if given is None else f" and one of {len(given)}")
        raise BadInput(f"{len(tables)} tables need as many entries in each list, got {counts}")
    return [None] * len(tables) if given is None else given
