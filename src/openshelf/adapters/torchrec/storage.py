"""Where shards are: each table of TorchRec that a process has a part of is a Table in the Space, and tensors on its
memory are what TorchRec keeps, saves and loads.

A Table is called as TorchRec's, and its rows and columns if it is a part: `users@0:500,0:64`. Several parts of columns
in one process are rows of one Table, one part after the other: TorchRec wants them as one tensor.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from openshelf.adapters.torchrec.extra import torch
from openshelf.adapters.torchrec.optimizers import STATES, Rule
from openshelf.errors import BadInput, Mismatch
from openshelf.space import Space
from openshelf.tables import Adam, Table, tables

DTYPES = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16"}


class Part(NamedTuple):
    """A shard: rows of a Table from `first` on, as tensors."""

    table: Table
    first: int
    rows: Any
    states: dict[str, Any]


class Stored(NamedTuple):
    """The parts of one table that a process has, all in one Table, and all of its rows."""

    table: Table
    rows: Any
    parts: list[Part]
    new: bool


class Store(NamedTuple):
    """Where the tables of a model are, and what happens to those that are there already."""

    space: Space
    folder: str
    exist_ok: bool

    def stored(self, shards: list[Any], rule: Rule) -> Stored:
        """The Table of these shards of one table (TorchRec's ShardedEmbeddingTable), made or opened."""
        name, dtype = self.folder + _title(shards), _dtype(shards[0])
        widths, counts = {one.local_cols for one in shards}, [one.local_rows for one in shards]
        if len(widths) > 1:
            raise BadInput(f"{name!r}: shards of one table in one process are equally wide, got {sorted(widths)}")
        dim, rows = widths.pop(), sum(counts)
        new = not (self.exist_ok and name in tables(self.space))
        if new:
            table = Table.create(self.space, name, rows=rows, dim=dim, dtype=dtype, optimizer=rule.of_a_table())
        else:
            table = Table.open(self.space, name)
            self._check(table, (rows, dim, dtype), rule)
        whole, states = _rows_of(table), _states_of(table, rule)
        parts, first = [], 0
        for count in counts:
            held = {key: one if key == "iter" else one[first : first + count] for key, one in states.items()}
            parts.append(Part(table, first, whole[first : first + count], held))
            first += count
        return Stored(table, whole, parts, new)

    def _check(self, table: Table, wanted: tuple[int, int, str], rule: Rule) -> None:
        facts = table.stat()
        found = (table.rows, table.dim, table.dtype)
        if found != wanted or not isinstance(table.optimizer, rule.kind):
            raise Mismatch(
                f"the table {table.name!r} has {found[0]} rows of {found[1]} {found[2]} and {table.optimizer}; the "
                f"model needs {wanted[0]} of {wanted[1]} {wanted[2]} and {rule.kind.__name__}: delete it, or give "
                "another folder="
            )
        if facts["parts"] != 1:
            raise Mismatch(
                f"the table {table.name!r} has grown, so it is no single tensor: export it and import it anew"
            )


def _title(shards: list[Any]) -> str:
    first = shards[0]
    if len(shards) == 1 and (first.local_rows, first.local_cols) == (first.num_embeddings, first.embedding_dim):
        return str(first.name)
    spans = []
    for one in shards:
        row, column = one.local_metadata.shard_offsets
        spans.append(f"{row}:{row + one.local_rows},{column}:{column + one.local_cols}")
    return f"{first.name}@{';'.join(spans)}"


def _dtype(shard: Any) -> str:
    kind = shard.data_type.name
    if kind not in DTYPES:
        raise BadInput(f"the table {shard.name!r} is of {kind}: tables in a space are trained as {', '.join(DTYPES)}")
    return DTYPES[kind]


def _memory(table: Table, address: int, size: int, dtype: Any) -> Any:
    """A flat tensor on a table's memory, which keeps the table."""

    class Memory(ctypes.c_char * size):  # type: ignore[misc]
        owner: Any

    memory = Memory.from_address(address)
    memory.owner = table._core
    return torch.frombuffer(memory, dtype=dtype)


def _rows_of(table: Table) -> Any:
    dtype = getattr(torch, table.dtype)
    (_, address, _), *_ = table._core.parts()
    return _memory(table, address, table.rows * table.dim * dtype.itemsize, dtype).view(table.rows, table.dim)


def _states_of(table: Table, rule: Rule) -> dict[str, Any]:
    """The optimizer's states under FBGEMM's names; of Adam also the number of its steps."""
    names = STATES[rule.kind]
    if not names:
        return {}
    width = table.optimizer_state_width
    (_, _, address), *_ = table._core.parts()
    whole = _memory(table, address, table.rows * width * 4, torch.float32).view(table.rows, width)
    if width == 1:
        return {names[0]: whole.view(-1)}
    found = {name: whole[:, at * table.dim : (at + 1) * table.dim] for at, name in enumerate(names)}
    if rule.kind is Adam:
        found["iter"] = _memory(table, table._core.steps_address(), 8, torch.int64)
    return found
