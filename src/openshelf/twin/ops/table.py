"""Tables of measured operators: CSV or Parquet, in AIConfigurator's columns or in those of its published extracts.

Times come in microseconds (`us`), milliseconds (`latency`, as AIConfigurator writes) or seconds, and are seconds here.
Sizes are counts of elements, tokens, heads and experts, never bytes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from openshelf._texts import opened_text
from openshelf.errors import BadInput
from openshelf.twin.ops.kinds import KINDS, Floats, Kind

SECONDS = {"us": 1e-6, "latency": 1e-3, "latency_ms": 1e-3, "ms": 1e-3, "seconds": 1.0}
ALIASES = {
    "device": "system", "device_name": "system", "version": "vllm", "gemm_dtype": "dtype", "moe_dtype": "dtype",
    "mla_dtype": "dtype", "attn_dtype": "dtype", "kv_cache_dtype": "kv_dtype", "gemm_type": "gemm",
    "num_heads": "heads", "num_key_value_heads": "kv_heads", "num_kv_heads": "kv_heads", "batch_size": "batch",
    "hidden_size": "hidden", "inter_size": "inter", "num_experts": "experts", "moe_tp_size": "tp", "moe_ep_size": "ep",
    "distribution": "routing", "num_tokens": "tokens",
}  # fmt: skip
"""AIConfigurator's names of columns, and ours."""


@dataclass(frozen=True)
class OpTable:
    """Rows of one kind: a column for each size and word, the accelerator, the seconds."""

    kind: Kind
    system: tuple[str, ...]
    software: tuple[str, ...]
    words: dict[str, tuple[str, ...]]
    sizes: dict[str, Floats]
    seconds: Floats

    def __len__(self) -> int:
        return len(self.seconds)

    def keys(self) -> list[tuple[str, ...]]:
        """Of each row the accelerator and the words: rows of one key are measured alike."""
        return list(zip(self.system, *(self.words[word] for word in self.kind.words), strict=True))

    def take(self, rows: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]]) -> OpTable:
        return OpTable(
            self.kind,
            tuple(self.system[row] for row in rows),
            tuple(self.software[row] for row in rows),
            {name: tuple(column[row] for row in rows) for name, column in self.words.items()},
            {name: column[rows] for name, column in self.sizes.items()},
            self.seconds[rows],
        )

    def hashes(self) -> list[str]:
        """A short name of each row, for ledgers of what was fitted."""
        columns = [self.sizes[name] for name in self.kind.sizes]
        made = []
        for row, key in enumerate(self.keys()):
            text = "|".join([self.kind.name, *key, *(f"{column[row]:g}" for column in columns)])
            made.append(blake2b(text.encode(), digest_size=8).hexdigest())
        return made


def joined(one: OpTable, other: OpTable) -> OpTable:
    """The rows of two tables of one kind."""
    return OpTable(
        one.kind,
        one.system + other.system,
        one.software + other.software,
        {name: column + other.words[name] for name, column in one.words.items()},
        {name: np.concatenate([column, other.sizes[name]]) for name, column in one.sizes.items()},
        np.concatenate([one.seconds, other.seconds]),
    )


def by_kind(tables: Sequence[OpTable]) -> list[OpTable]:
    """One table of each kind."""
    made: dict[str, OpTable] = {}
    for each in tables:
        name = each.kind.name
        made[name] = joined(made[name], each) if name in made else each
    return list(made.values())


def read_tables(path: Path) -> list[OpTable]:
    """The tables of a file, by its columns; a file of MLA has rows of two kinds."""
    made, names = _tables_of(path)
    if not made:
        shapes = "; ".join(f"{kind.name}: {', '.join(kind.sizes + kind.words)}" for kind in KINDS.values())
        raise BadInput(
            f"{str(path)!r} has the columns {', '.join(names)}, which are no operator's: expected a system or "
            f"device, one of {', '.join(SECONDS)}, and a shape ({shapes})"
        )
    return made


def read_folder(path: Path) -> list[OpTable]:
    """The tables of every file of a folder (.csv, .txt, .parquet) whose columns are an operator's."""
    files = sorted(file for file in path.iterdir() if file.suffix in (".csv", ".txt", ".parquet"))
    made = [table for file in files for table in _tables_of(file)[0]]
    if not made:
        raise BadInput(f"no file in {str(path)!r} is a table of operators; see `openshelf twin ops import --help`")
    return made


def _tables_of(path: Path) -> tuple[list[OpTable], list[str]]:
    """The tables and the names of all columns; no tables where those are no operator's."""
    names, columns = _read(path)
    names = [ALIASES.get(name, name) for name in names]
    data = dict(zip(names, columns, strict=True))
    unit = next((name for name in SECONDS if name in data), None)
    if unit is None or "system" not in data:
        return [], names
    return [_table(kind, data, rows, unit, path) for kind, rows in _kinds_in(path, data)], names


def _kinds_in(path: Path, data: dict[str, list[str]]) -> Iterable[tuple[Kind, list[int]]]:
    """What the columns can be. AIConfigurator's attention has both phases in the same columns: the name tells."""
    every = list(range(len(data["system"])))
    phases = data.get("phase") or ["generation" if "generation" in path.name else "context"] * len(every)
    if {"kv_heads", "isl", "step"} <= data.keys():
        extents = [str(int(float(a)) + int(float(b))) for a, b in zip(data["isl"], data["step"], strict=True)]
        data["context_tokens" if phases[0] == "generation" else "new_tokens"] = extents
    for kind in KINDS.values():
        if {*kind.sizes, *kind.words} <= data.keys():
            phase = {"mla": "context", "mla_decode": "generation"}.get(kind.name)
            rows = [row for row in every if phase in (None, phases[row])]
            if rows:
                yield kind, rows


def _table(kind: Kind, data: dict[str, list[str]], rows: list[int], unit: str, path: Path) -> OpTable:
    def column(name: str) -> Floats:
        try:
            return np.array([float(data[name][row]) for row in rows])
        except ValueError as error:
            raise BadInput(f"{str(path)!r}: column {name!r} has something else than numbers: {error}") from None

    seconds = column(unit) * SECONDS[unit]
    if not (len(seconds) and np.all(ok := (seconds > 0) & np.isfinite(seconds))):
        raise BadInput(f"{str(path)!r}: expected rows with times above 0; {int((~ok).sum())} are not")
    sizes = {name: column(name) for name in kind.sizes}
    for name, each in sizes.items():
        wrong = np.flatnonzero(~np.isfinite(each) | (each < (0 if name == "step" else 1)))
        if len(wrong):
            raise BadInput(f"{str(path)!r}: {name} is {each[wrong[0]]:g} in line {rows[wrong[0]] + 2}; give 1 or more")
    blank = [""] * len(data["system"])
    software = data.get("vllm", blank)
    return OpTable(
        kind,
        tuple(data["system"][row] for row in rows),
        tuple(software[row] for row in rows),
        {name: tuple(data[name][row] for row in rows) for name in kind.words},
        sizes,
        seconds,
    )


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    if path.suffix == ".parquet":
        return _read_parquet(path)
    with opened_text(path) as file:
        lines = [line for line in csv.reader(file) if line]
    if len(lines) < 2:
        raise BadInput(f"{str(path)!r} has no rows; expected a line of column names and rows below it")
    names, rows = lines[0], lines[1:]
    wrong = next((number for number, row in enumerate(rows, 2) if len(row) != len(names)), None)
    if wrong is not None:
        raise BadInput(f"{str(path)!r}, line {wrong}: expected {len(names)} values; {len(rows[wrong - 2])} came")
    return names, [list(column) for column in zip(*rows, strict=True)]


def _read_parquet(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise BadInput(
            f"{str(path)!r} is Parquet, which pyarrow reads: pip install pyarrow (openshelf[parquet]), or give CSV"
        ) from None
    table = pyarrow.parquet.read_table(path)
    return list(table.column_names), [[str(value) for value in table[name].to_pylist()] for name in table.column_names]


def write_table(table: OpTable, path: Path) -> None:
    """Writes rows as CSV, with times in seconds."""
    names = [*table.kind.words, *table.kind.sizes]
    phase = {"mla": "context", "mla_decode": "generation"}.get(table.kind.name)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        extra = ["isl"] if table.kind.name == "mla_decode" else ["step"] if table.kind.name == "mla" else []
        out.writerow(["system", "vllm", *(["phase"] if phase else []), *names, *extra, "seconds"])
        for row in range(len(table)):
            cells = [table.words[name][row] for name in table.kind.words]
            cells += [f"{table.sizes[name][row]:g}" for name in table.kind.sizes]
            cells += ["1" if each == "isl" else "0" for each in extra]
            head = [table.system[row], table.software[row], *([phase] if phase else [])]
            out.writerow([*head, *cells, f"{table.seconds[row]:.9g}"])
