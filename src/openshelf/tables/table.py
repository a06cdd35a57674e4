"""Table: rows of numbers in a Space, looked up by id.

Native code (`native/tables/`) reads and changes rows; this is what people see of it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from openshelf import _core
from openshelf._sizes import flag, parse_size, whole
from openshelf.errors import BadInput, Closed, Mismatch, NameTaken, UnknownName
from openshelf.space import Address, Cluster, Handle, Space, address_of, array_name, arrive, open_address, send
from openshelf.tables.arguments import MODES, NO_IDS, bags_of, floats_of, mode_of, numbers_of, room_for
from openshelf.tables.initial import GivenInit, init_of
from openshelf.tables.optimizers import KINDS, NAMES, Optimizer, from_settings

if TYPE_CHECKING:
    from openshelf.tables.keyed_table import DynamicIds

DTYPES = ("float32", "float16", "bfloat16", "int8", "int4")


class Table(Handle):
    """Rows of `dim` numbers in memory that all processes with the space share. Thread-safe. A forked process may go on
    using it.

    A plain read takes no lock: while somebody changes a row, it may see a part of the change. With `consistent=True`
    it sees each row as some change left it.
    """

    def __init__(self, space: Space, native: _core.TableCore, name: str) -> None:
        """For Table.create and Table.open."""
        self.name = name
        self._native: _core.TableCore | None = native
        self._in = space._native
        self._stake = space._stake  # keeps a temporary space
        facts = native.stats()
        self.dim = int(facts["dim"])
        self.dtype = DTYPES[facts["row_type"]]
        self._row_bytes, self._state_bytes = int(facts["row_bytes"]), int(facts["state_bytes"])
        self._kind = KINDS[facts["optimizer"]]
        self.optimizer = from_settings(facts["optimizer"], facts["settings"])

    @staticmethod
    def create(
        space: Space,
        name: str,
        *,
        rows: int,
        dim: int,
        dtype: Any = "float32",
        init: Any = None,
        optimizer: Optimizer | None = None,
        hosts: Any = None,
        keys: DynamicIds | None = None,
        sums_at_owner: bool = True,
    ) -> Table:
        """Makes a table; others find it when it is whole.

        `dtype`: float32, float16, bfloat16, int8 or int4 (of integers, each row has a scale and a bias). `init`:
        "zeros" (the default), a Uniform, a Normal, or the rows themselves; rows that are added later begin like it, or
        as zeros. `optimizer` says which state each row has; without, updates by SGD are possible. NameTaken if the
        name exists.

        `hosts`: in a space over hosts, those that have the rows: "all", a list of hosts, or a Sharding; without, this
        one. `sums_at_owner`: see open. `keys`: ids are any 64-bit numbers, of which `rows` have a row at a time.
        """
        given, values = init_of(init)

        def fill(table: Table) -> None:
            if values is None:
                return
            if (shape := tuple(values.shape)) != (table.rows, table.dim):
                raise Mismatch(f"init= has the shape {shape}, expected {(table.rows, table.dim)}")
            for first in range(0, table.rows, _CHUNK):
                table.write(range(first, min(table.rows, first + _CHUNK)), values[first : first + _CHUNK])

        if keys is not None:
            if hosts is not None or values is not None:
                raise BadInput(
                    "a table with keys= is on one host, and begins empty: leave hosts= and rows in init= out"
                )
            keyed = import_module("openshelf.tables.keyed_table")
            return cast(Table, keyed.create_keyed(space, name, rows, dim, dtype, given, optimizer, keys))
        if hosts is None:
            return Table._filled(space, name, rows, dim, dtype, given, optimizer, fill)
        rows, dim, kind = _checked(space, name, rows, dim, dtype, optimizer)
        sums = flag(sums_at_owner, "sums_at_owner")
        make = import_module("openshelf.tables.hosts_table").create_over_hosts
        return cast(Table, make(space, name, rows, dim, kind, optimizer, given, hosts, sums, fill))

    @staticmethod
    def _filled(
        space: Space, name: str, rows: int, dim: int, dtype: Any, given: GivenInit, optimizer: Optimizer | None,
        fill: Callable[[Table], None],
    ) -> Table:  # fmt: skip
        """Makes a table without a name, lets `fill` write its rows, and publishes it."""
        core, full = core_of(space), array_name("", name)
        rows, dim, kind = _checked(space, name, rows, dim, dtype, optimizer)
        number = 0 if optimizer is None else KINDS.index(type(optimizer))
        settings = (0.0, 0.0, 0.0, 0.0) if optimizer is None else optimizer.settings
        native = _core.TableCore.make(core, kind, rows, dim, number, settings, given)
        try:
            table = Table(space, native, name)
            fill(table)
            native.publish(full)
        except BaseException as error:
            pin = core.find(native.name)
            if pin is not None:
                _core.table_discard(pin)
            if isinstance(error, NameTaken):  # by another, since it was checked: said with the name that was given
                _checked(space, name, rows, dim, dtype, optimizer)
            raise
        return table

    @staticmethod
    def open(space: Space, name: str, *, sums_at_owner: bool = True) -> Table:
        """The table of this name; UnknownName if there is none.

        Of a table over hosts, bags may be summed where their rows are, if that moves less; sums may then differ in
        their last bits. With sums_at_owner=False they are always computed here, in the order of the ids.
        """
        core = core_of(space)
        if isinstance(space._native, Cluster):
            hosts_table = import_module("openshelf.tables.hosts_table")
            found = hosts_table.open_over_hosts(space, name, flag(sums_at_owner, "sums_at_owner"))
            if found is not None:
                return cast(Table, found)
        native = _core.TableCore.open(core, array_name("", name))
        if native is None:
            there = sorted(entry.name for entry in space.list() if entry.kind in ("table", "sharded"))
            raise UnknownName(f"there is no table {name!r} in the space {space.name!r}; there is: {there or 'none'}")
        keys = _core.TableKeys.open(native)
        if keys is not None:
            return cast(Table, import_module("openshelf.tables.keyed_table").KeyedTable(space, native, name, keys))
        return Table(space, native, name)

    @property
    def _core(self) -> _core.TableCore:
        if self._native is None:
            raise Closed("this Table was closed; open it again")
        return self._native

    @property
    def _read_by(self) -> Any:
        """What requests are made with."""
        return self._core

    @property
    def rows(self) -> int:
        """How many there are now."""
        return int(self._core.stats()["rows"])

    def __len__(self) -> int:
        return self.rows

    @property
    def optimizer_state_width(self) -> int:
        """How many numbers of state each row has."""
        return self._state_bytes // 4

    # Reading

    def lookup(
        self, ids: Any, *, out: Any = None, raw: bool = False, consistent: bool = False, threads: int = 0
    ) -> Any:
        """The rows of these ids as float32, in the shape of the ids and `dim`; written into `out` if given.

        `raw`: the rows as they are stored: of the table's dtype, those of integers as bytes with their scale and bias.
        OutOfRange, with nothing written, if there is no such row. `threads`: at most so many; 0 chooses.
        """
        results: list[Any] = []
        self._read([self._lookup_request(ids, out, raw, consistent, results)], threads_of(threads))
        return results[0]

    def _read(self, requests: list[tuple[Any, ...]], threads: int) -> None:
        """Carries out what _lookup_request and _bag_request put into words."""
        _core.table_read(requests, threads)

    def _lookup_request(self, ids: Any, out: Any, raw: bool, consistent: bool, results: list[Any]) -> tuple[Any, ...]:
        found = numbers_of(ids, "ids")
        width, dtype = self._stored_as() if flag(raw, "raw") else (self.dim, "float32")
        room = room_for(out, (*found.shape, width), dtype, ids)
        results += [room.out, found]  # kept until the rows are read
        return (
            self._read_by, found.given, NO_IDS, found.given[2], 1, MODES["max"], 0, room.address, room.stride,
            raw, flag(consistent, "consistent"), self.name, 0,
        )  # fmt: skip

    def _stored_as(self) -> tuple[int, str]:
        return (self._row_bytes, "uint8") if self.dtype.startswith("int") else (self.dim, self.dtype)

    def bag(
        self,
        ids: Any,
        offsets: Any = None,
        mode: str = "sum",
        weights: Any = None,
        *,
        out: Any = None,
        include_last_offset: bool = False,
        consistent: bool = False,
        threads: int = 0,
    ) -> Any:
        """The rows of each bag of ids, pooled as float32: `mode` is "sum", "mean" or "max", an empty bag gives zeros.

        `ids` and `offsets` as nn.EmbeddingBag has them: ids of one dimension and where each bag begins, or ids of two
        dimensions, a bag a row. `weights`: a factor for each id, of sums only.
        """
        results: list[Any] = []
        request = self._bag_request(ids, offsets, mode, weights, out, include_last_offset, consistent, results)
        self._read([request], threads_of(threads))
        return results[0]

    def _bag_request(
        self,
        ids: Any,
        offsets: Any,
        mode: str,
        weights: Any,
        out: Any,
        include_last_offset: bool,
        consistent: bool,
        results: list[Any],
        winners: Any = None,
    ) -> tuple[Any, ...]:
        mode = mode_of(mode)
        found = bags_of(ids, offsets, flag(include_last_offset, "include_last_offset"))
        factors, kept = (0, None) if weights is None else floats_of(weights, "weights", found.ids.shape)
        if weights is not None and mode != "sum":
            raise BadInput(f"weights go with mode='sum', not with {mode!r}")
        room = room_for(out, (found.bags, self.dim), "float32", ids)
        results += [room.out, kept, found]
        return (
            self._read_by, found.ids.given, NO_IDS if found.offsets is None else found.offsets.given, found.bags,
            found.length, MODES[mode], factors, room.address, room.stride, False, flag(consistent, "consistent"),
            self.name, 0 if winners is None else winners.data_ptr(),
        )  # fmt: skip

    def prefetch(self, ids: Any) -> None:
        """Asks for rows that will be looked up soon, and returns at once."""
        found = numbers_of(ids, "ids")
        self._core.prefetch(found.given)

    def keep_hot(self, nbytes: int | str) -> None:
        """Rows on flash that this process reads often stay in so much of its own memory; 0: none do.

        The space has a flash tier. Others' updates are seen: a copy is used only while the row on flash is the same."""
        self._core.keep_hot(0 if isinstance(nbytes, int) and nbytes == 0 else parse_size(nbytes))

    def states(self, ids: Any) -> Any:
        """The optimizer's states of these rows: float32 of the shape (ids, numbers a state), whole ones."""
        found = numbers_of(ids, "ids")
        if not self.optimizer_state_width:
            raise BadInput(f"the rows of the table {self.name!r} have no state: its optimizer needs none")
        room = room_for(None, (*found.shape, self.optimizer_state_width), "float32", ids)
        self._core.states(found.given, room.address)
        return room.out

    # Changing

    def update(
        self,
        ids: Any,
        gradients: Any,
        optimizer: Optimizer | None = None,
        *,
        finite: bool = True,
        threads: int = 0,
    ) -> None:
        """Applies gradients, one a row of `gradients`, to the rows of these ids, in place; of an id that comes several
        times, their sum, once.

        `optimizer`: the one that the table was made with, or another of its kind (with another learning rate). A row
        and its state change together, even if this process is killed; a batch may then be applied in part, which
        stat()["interrupted"] counts. BadInput, with nothing changed, if a gradient is infinite or no number; with
        finite=False they are applied.
        """
        found = numbers_of(ids, "ids")
        count = found.given[2]
        address, kept = floats_of(gradients, "gradients", (*found.shape, self.dim))
        self._apply(found.given, address, count, NO_IDS, 0, False, 0, 0, optimizer, finite, threads)
        del kept

    def update_bags(
        self,
        ids: Any,
        offsets: Any,
        gradients: Any,
        optimizer: Optimizer | None = None,
        *,
        mode: str = "sum",
        weights: Any = None,
        finite: bool = True,
        threads: int = 0,
    ) -> None:
        """As update, with one gradient for each bag, as the backward pass of `bag` has them."""
        if mode_of(mode) == "max":
            raise BadInput(f"gradients of bags go to the rows of sums and means, not of mode={mode!r}")
        if weights is not None and mode != "sum":
            raise BadInput(f"weights go with mode='sum', not with {mode!r}")
        found = bags_of(ids, offsets, False)
        starts = found.offsets
        if starts is None:
            starts = numbers_of(range(0, found.bags * found.length, found.length) if found.length else [], "offsets")
        check_offsets(starts.kept, found.ids.given[2])
        address, kept = floats_of(gradients, "gradients", (found.bags, self.dim))
        factors, kept_too = (0, None) if weights is None else floats_of(weights, "weights", found.ids.shape)
        self._apply(
            found.ids.given, address, found.bags, starts.given, found.bags, mode == "mean", factors, 0, optimizer,
            finite, threads,
        )  # fmt: skip
        del kept, kept_too

    def _apply(
        self, ids: Any, gradients: int, count: int, offsets: Any, bags: int, mean: bool, weights: int, winners: int,
        optimizer: Optimizer | None, finite: bool, threads: int,
    ) -> None:  # fmt: skip
        chosen = self.optimizer if optimizer is None else optimizer
        if chosen is None:
            raise BadInput(f"the table {self.name!r} was made without an optimizer: give one, as SGD(0.1)")
        if not isinstance(chosen, self._kind):
            name = getattr(type(chosen), "__name__", repr(chosen))
            raise Mismatch(f"the rows of the table {self.name!r} have states of {self._kind.__name__}, not of {name}")
        self._change(
            ids, gradients, count, offsets, bags, mean, weights, winners, chosen.settings,
            not flag(finite, "finite"), threads_of(threads),
        )  # fmt: skip

    def _change(
        self, ids: Any, gradients: int, count: int, offsets: Any, bags: int, mean: bool, weights: int, winners: int,
        settings: Any, any_number: bool, threads: int,
    ) -> None:  # fmt: skip
        self._core.update(
            ids, gradients, self.dim, count, offsets, bags, mean, weights, winners, settings, any_number, threads
        )

    def write(self, ids: Any, rows: Any, *, states: Any = None, raw: bool = False) -> int:
        """Puts rows in the place of those with these ids; of an id that comes twice, the last. Each changes as a whole.

        Numbers are rounded to the table's dtype. `raw`: the rows as lookup(raw=True) gives them. `states`: the
        optimizer's, as states() gives them; without, they stay. Returns how many rows were written: all of them, unless
        the table has dynamic ids, and some keys got no row because all that they may have are wanted as much.
        """
        found = numbers_of(ids, "ids")
        if flag(raw, "raw"):
            width, dtype = self._stored_as()
            room = room_for(_writable(rows), (*found.shape, width), dtype, rows)
            address, kept = room.address, room.out
            if room.stride != self._row_bytes and found.given[2] > 1:
                raise Mismatch("raw rows must be contiguous")
        else:
            address, kept = floats_of(rows, "rows", (*found.shape, self.dim))
        state, kept_too = 0, None
        if states is not None:
            if not self.optimizer_state_width:
                raise BadInput(f"the rows of the table {self.name!r} have no state: its optimizer needs none")
            state, kept_too = floats_of(states, "states", (*found.shape, self.optimizer_state_width))
        written = self._write(found.given, address, raw, state)
        del kept, kept_too
        return written

    def _write(self, ids: Any, rows: int, raw: bool, states: int) -> int:
        self._core.write(ids, rows, raw, states)
        return int(ids[2])

    def grow(self, more: int) -> None:
        """Adds rows, while others use the table. They begin as `init` said; old rows stay where they are."""
        more = whole(more, "how many rows to add")
        if not 0 < more < 1 << 62:
            raise BadInput(f"a table grows by at least one row, got {more}")
        self._core.grow(more)

    # The whole

    def stat(self) -> dict[str, Any]:
        """Rows, sizes, and what was read and updated so far by all processes of this host.

        `interrupted`: writers that died in an update; perhaps not all rows of their batches were changed.
        `flash_reads`, `hot_reads`: rows that this process read from flash, and had in memory by `keep_hot`."""
        reads, hits = self._core.cold_counts()
        return facts_of(self._core, self.name) | {"flash_reads": reads, "hot_reads": hits}

    def close(self) -> None:
        """Forgets this handle; a second call does nothing."""
        self._native = None
        self._stake = None
        vars(self).pop("_in", None)  # it would keep the space mapped

    def __enter__(self) -> Table:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        """Pickled as its name and address."""

        def address() -> tuple[Any, ...]:
            self._core.check_usable()
            return address_of(self._in), self.name

        return send(_arrived, address)

    def __repr__(self) -> str:
        if self._native is None:
            return "Table(closed)"
        try:
            rows = self.rows
        except Closed:
            return f"Table({self.name!r}, deleted)"
        return f"Table({self.name!r}, rows={rows}, dim={self.dim}, dtype={self.dtype!r})"


_CHUNK = 65_536


def core_of(space: Space) -> _core.Core:
    """What a space is on this host."""
    if not isinstance(space, Space):
        raise Mismatch(f"tables are in a Space, got {type(space).__name__}")
    native = space._native
    if isinstance(native, Cluster):
        native.refuse_replicas("tables")
    core = native.core if isinstance(native, Cluster) else native
    assert isinstance(core, _core.Core)
    return core


def _checked(
    space: Space, name: str, rows: int, dim: int, dtype: Any, optimizer: Optimizer | None
) -> tuple[int, int, int]:
    """Rows, dim and the kind of rows of a table that may be made."""
    kind = _row_type(dtype)
    rows, dim = whole(rows, "rows"), whole(dim, "dim")
    if rows < 1 or not 1 <= dim <= _core.TABLE_DIM_MOST:
        raise BadInput(f"a table has at least one row of 1 to {_core.TABLE_DIM_MOST} numbers, got {rows} of {dim}")
    if kind == DTYPES.index("int4") and dim % 2:
        raise BadInput(f"rows of int4 have an even number of numbers, got dim={dim}")
    if optimizer is not None and not isinstance(optimizer, KINDS):
        raise Mismatch(f"an optimizer is one of openshelf.tables' {', '.join(k.__name__ for k in KINDS)}")
    if rows * _core.table_row_bytes(kind, dim) >= 1 << 62:
        raise BadInput(f"{rows} rows of {dim} numbers have more bytes than there are addresses")
    if core_of(space).find(array_name("", name)) is not None:
        raise NameTaken(f"{name!r} exists already; open it, delete it, or choose another name")
    return rows, dim, kind


def facts_of(native: _core.TableCore, name: str) -> dict[str, Any]:
    facts = native.stats()
    facts.pop("init")
    lr, eps, *betas = facts.pop("settings")
    kind = NAMES[facts.pop("optimizer")]
    optimizer = {"kind": kind if lr else "none", "lr": lr, "eps": eps, "betas": betas}
    return {"table": name, "dtype": DTYPES[facts.pop("row_type")], **facts, "optimizer": optimizer}


def check_offsets(offsets: Any, ids: int) -> None:
    """BadInput unless they begin with 0, do not fall and do not go beyond the ids."""
    count = len(offsets)
    falls = bool((offsets[1:] < offsets[:-1]).any()) if count > 1 else False
    if (count == 0 and ids) or (count and (int(offsets[0]) != 0 or falls or int(offsets[-1]) > ids)):
        raise BadInput(f"offsets of bags begin with 0, do not fall and do not go beyond the {ids} ids")


def _row_type(dtype: Any) -> int:
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise Mismatch(f"rows of a table are of {', '.join(DTYPES)}, got {dtype!r}")
    return DTYPES.index(name)


def threads_of(threads: Any) -> int:
    count = whole(threads, "threads")
    if not 0 <= count <= 256:
        raise BadInput(f"threads is from 0 (as many as are useful) to 256, got {count}")
    return count


def _writable(rows: Any) -> Any:
    """For room_for, which checks memory to write into: nothing is written here."""
    if isinstance(rows, np.ndarray) and not rows.dtype.isnative:
        return rows.astype(rows.dtype.newbyteorder("="))
    if hasattr(rows, "flags") and not rows.flags.writeable:
        return rows.copy()
    return rows


def _arrived(address: Address, name: str) -> Any:
    return arrive(lambda: Table.open(open_address(address), name))
