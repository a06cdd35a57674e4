"""A table whose ids are any 64-bit numbers: a key gets a row when it has come often enough, and loses it to one that is
wanted more. The table never grows, and is never too full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from openshelf import _core
from openshelf._sizes import whole
from openshelf.errors import BadInput, Mismatch
from openshelf.space import Space
from openshelf.tables.arguments import GivenIds, numbers_of, room_for
from openshelf.tables.initial import GivenInit
from openshelf.tables.optimizers import Optimizer
from openshelf.tables.table import Table

_BUCKET = 8


@dataclass(frozen=True)
class DynamicIds:
    """`admit_after`: a key gets a row with so many updates. `half_life`: how often a key was wanted is worth half after
    so many keys have come; 0: after 16 for each row.
    """

    admit_after: int = 2
    half_life: int = 0


class KeyedTable(Table):
    """Rows of keys. A key without a row reads as zeros. An update counts it, and gives it a row when it has come often
    enough.

    A new row begins as the table's `init` says, and its state as zeros. Gradients of keys without a row are left out.
    """

    def __init__(self, space: Space, native: _core.TableCore, name: str, keys: _core.TableKeys) -> None:
        """For Table.create and Table.open."""
        super().__init__(space, native, name)
        self._keys: _core.TableKeys = keys

    @property
    def rows(self) -> int:
        """How many keys may have a row at a time."""
        return int(self._core.stats()["rows"]) - 1

    def _read(self, requests: list[tuple[Any, ...]], threads: int) -> None:
        """Keys become rows first. If a key has lost its row meanwhile, what was read may be another's: again."""
        for core, keys, *rest in requests:
            self._core.check_usable()
            rows = np.empty(keys[2], np.int64)
            at = _core.address_of(rows)
            while True:
                changes = self._keys.changes
                self._keys.rows_of(keys, at)
                _core.table_read([(core, (at, 8, keys[2]), *rest)], threads)
                if self._keys.still(keys, at, changes):
                    break

    def keys(self) -> tuple[Any, Any]:
        """All keys that have a row, and the numbers of these rows: arrays of int64, no snapshot while others write."""
        self._core.check_usable()
        found, rows = self._keys.list()
        return np.frombuffer(found, np.int64).copy(), np.frombuffer(rows, np.int64).copy()

    def prefetch(self, ids: Any) -> None:
        """Asks for the rows of keys that will be looked up soon, and returns at once."""
        rows = self._rows_of(numbers_of(ids, "keys").given)
        self._core.prefetch((_core.address_of(rows), 8, len(rows)))

    def states(self, ids: Any) -> Any:
        """The optimizer's states of these keys' rows; zeros of keys that have none."""
        found = numbers_of(ids, "keys")
        if not self.optimizer_state_width:
            raise BadInput(f"the rows of the table {self.name!r} have no state: its optimizer needs none")
        room = room_for(None, (*found.shape, self.optimizer_state_width), "float32", ids)
        while True:
            changes = self._keys.changes
            rows = self._rows_of(found.given)
            self._core.states((_core.address_of(rows), 8, len(rows)), room.address)
            if self._keys.still(found.given, _core.address_of(rows), changes):
                return room.out

    def _rows_of(self, keys: GivenIds) -> np.ndarray[Any, Any]:
        self._core.check_usable()
        rows = np.empty(keys[2], np.int64)
        self._keys.rows_of(keys, _core.address_of(rows))
        return rows

    def _change(self, ids: Any, gradients: int, count: int, offsets: Any, bags: int, mean: bool, weights: int,
                winners: int, settings: Any, any_number: bool, threads: int) -> None:  # fmt: skip
        self._core.check_usable()
        self._keys.update(
            ids, gradients, self.dim, count, offsets, bags, mean, weights, winners, settings, any_number, threads
        )  # fmt: skip

    def _write(self, ids: Any, rows: int, raw: bool, states: int) -> int:
        self._core.check_usable()
        return self._keys.write(ids, rows, raw, states)

    def settle(self, keys: Any, rows: Any) -> None:
        """Gives keys the rows that keys() told of a table of as many rows. In another order some might find no room."""
        found, places = numbers_of(keys, "keys"), np.ascontiguousarray(rows, np.int64)
        if places.shape != (found.given[2],):
            raise Mismatch(f"settle takes a row for each of {found.given[2]} keys, got {places.shape}")
        self._core.check_usable()
        self._keys.settle(found.given, _core.address_of(places))

    def grow(self, more: int) -> None:
        """A table with keys has as many rows as it was made with."""
        raise BadInput(f"the table {self.name!r} has dynamic ids: it is made with all its rows, and never too full")

    def close(self) -> None:
        """Forgets this handle; a second call does nothing."""
        super().close()
        vars(self).pop("_keys", None)  # it would keep the space mapped

    def stat(self) -> dict[str, Any]:
        """As Table.stat, with `keys` that have a row, and how many were `admitted`, `evicted` and `refused` so far."""
        return {**super().stat(), "rows": self.rows, **self._keys.stats()}


def create_keyed(
    space: Space, name: str, rows: int, dim: int, dtype: Any, init: GivenInit, optimizer: Optimizer | None,
    ids: DynamicIds,
) -> Table:  # fmt: skip
    """Rows are rounded up to whole buckets; one more, of zeros, is read for keys without a row."""
    if not isinstance(ids, DynamicIds):
        raise BadInput(f"keys= is a DynamicIds, got {type(ids).__name__}")
    room = -(-whole(rows, "rows") // _BUCKET) * _BUCKET
    admit, half_life = whole(ids.admit_after, "admit_after"), whole(ids.half_life, "half_life")
    if not 1 <= admit <= 255 or not 0 <= half_life < 1 << 63:
        raise BadInput(f"admit_after is from 1 to 255 and half_life from 0 to 2^63 - 1, got {admit} and {half_life}")

    def fill(table: Table) -> None:
        zeros, last = np.zeros((1, table._row_bytes), np.uint8), np.array([room])
        table._core.write((_core.address_of(last), 8, 1), _core.address_of(zeros), True, 0)
        _core.TableKeys.make(table._core, admit, half_life or 16 * room)

    Table._filled(space, name, room + 1, dim, dtype, init, optimizer, fill)
    return Table.open(space, name)
