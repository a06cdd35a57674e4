"""Operators: how long an operator of a shape takes on an accelerator, and how that is known.

`exact`: the shape was measured. `borrowed`: near shapes were, and how far they are off a law that is fitted to the
table is interpolated. `held`: the shape is beyond the measured range, and is as far off the law as the range's edge.
`roofline`: there is no table for it, and the law that comes with the package speaks, with its error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openshelf.errors import BadInput
from openshelf.twin.ops.accelerators import Accelerator, accelerator
from openshelf.twin.ops.kinds import Floats, Kind, check_dtypes, kind_of
from openshelf.twin.ops.laws import LAWS, law_of
from openshelf.twin.ops.measured import Measured, device_of
from openshelf.twin.ops.table import OpTable, by_kind, read_folder, read_tables

How = Literal["exact", "borrowed", "held", "roofline"]
HOW: tuple[How, ...] = ("exact", "borrowed", "held", "roofline")
"""From the most to the least trustworthy."""
_ERROR = {"exact": 0.0, "borrowed": 0.05, "held": 0.2}


@dataclass(frozen=True)
class OpTime:
    """Seconds of one operator, how they were found, and the median error of answers of that kind, as a share."""

    seconds: float
    how: How
    error: float


@dataclass(frozen=True)
class OpTimes:
    """The same of many shapes at once; `how` are indices of HOW."""

    seconds: Floats
    how: NDArray[np.int8]
    error: Floats


class Operators:
    """Times of operators from tables of measured ones, and from the package's laws where there is no table.

    `time` and `times` take a kind's sizes and words by name: `gemm` m, n, k, dtype; `attention` heads, kv_heads, batch,
    new_tokens; `decode` heads, kv_heads, batch, context_tokens; `mla`, `mla_decode`, `moe`: KINDS.
    """

    def __init__(self, tables: Sequence[OpTable] = (), laws: Path = LAWS) -> None:
        self._laws = laws
        self._rows: dict[tuple[str, ...], tuple[OpTable, list[int]]] = {}
        for table in by_kind(tables):
            found: dict[tuple[str, ...], list[int]] = {}
            for row, key in enumerate(table.keys()):
                found.setdefault(key, []).append(row)
            self._rows |= {(table.kind.name, *key): (table, rows) for key, rows in found.items()}
        self._ready: dict[tuple[str, ...], Measured] = {}
        self._one = lru_cache(1 << 18)(self._time)

    @classmethod
    def open(cls, path: str | Path, laws: Path = LAWS) -> Operators:
        """From a table, or from every table in a folder (.csv, .txt, .parquet) whose columns are an operator's."""
        path = Path(path)
        if not path.exists():
            raise BadInput(f"there is no table of operators at {str(path)!r}; `openshelf twin ops import` writes one")
        return cls(read_folder(path) if path.is_dir() else read_tables(path), laws)

    def measured(self) -> dict[tuple[str, ...], int]:
        """How many rows there are of each kind, accelerator and words."""
        return {key: len(rows) for key, (_, rows) in self._rows.items()}

    def time(self, op: str, accelerator: str | Accelerator, **shape: float | str) -> OpTime:
        """Seconds of one operator; answers are remembered."""
        return self._one(op, accelerator, tuple(sorted(shape.items())))

    def _time(self, op: str, device: str | Accelerator, shape: tuple[tuple[str, float | str], ...]) -> OpTime:
        found = self.times(op, device, **dict(shape))
        return OpTime(float(found.seconds[0]), HOW[int(found.how[0])], float(found.error[0]))

    def times(self, op: str, accelerator: str | Accelerator, **shape: ArrayLike | str) -> OpTimes:
        """Seconds of many operators of one kind and words: sizes are arrays, or numbers that hold for all."""
        kind = kind_of(op)
        sizes, words = _split(kind, shape)
        name = accelerator if isinstance(accelerator, str) else accelerator.name
        key = (op, name, *(words[word] for word in kind.words))
        if key in self._rows:
            return self._from_table(key, sizes, words)
        device = _known(accelerator)
        key = (op, device.name, *key[2:])
        if key in self._rows:
            return self._from_table(key, sizes, words)
        check_dtypes(words)
        law = law_of(kind, device.name, words, self._laws)
        seconds = law.seconds(kind, sizes, device, words)
        return OpTimes(seconds, np.full(len(seconds), HOW.index("roofline"), np.int8), np.full(len(seconds), law.error))

    def _from_table(self, key: tuple[str, ...], sizes: dict[str, Floats], words: dict[str, str]) -> OpTimes:
        found = self._measured(key, words)
        kind = found.kind
        count = len(next(iter(sizes.values())))
        shapes = zip(*(sizes[name].tolist() for name in kind.sizes), strict=True)
        seconds = np.array([found.exact.get(shape, np.nan) for shape in shapes])
        how = np.zeros(count, np.int8)
        rest = np.flatnonzero(np.isnan(seconds))
        if len(rest):
            seconds[rest], outside = found.near({name: column[rest] for name, column in sizes.items()})
            how[rest] = np.where(outside, HOW.index("held"), HOW.index("borrowed"))
        return OpTimes(seconds, how, np.array([_ERROR[name] for name in HOW[:3]])[how])

    def _measured(self, key: tuple[str, ...], words: Mapping[str, str]) -> Measured:
        if key not in self._ready:
            table, rows = self._rows[key]
            self._ready[key] = Measured(table.take(np.array(rows)), device_of(key[1]), words)
        return self._ready[key]


def _known(device: str | Accelerator) -> Accelerator:
    return accelerator(device) if isinstance(device, str) else device


def _split(kind: Kind, shape: Mapping[str, ArrayLike | str]) -> tuple[dict[str, Floats], dict[str, str]]:
    """Sizes as arrays of one length, and words; words that were not given are the usual ones."""
    usual = {"dtype": "bfloat16", "kv_dtype": "bfloat16", "gemm": "bfloat16", "routing": "balanced"}
    unknown = [name for name in shape if name not in kind.sizes + kind.words]
    missing = [name for name in kind.sizes if name not in shape]
    if unknown or missing:
        expected = ", ".join(kind.sizes + kind.words)
        raise BadInput(f"{kind.name} has the sizes and words {expected}; {', '.join(shape) or 'nothing'} came")
    words = {name: str(shape.get(name, usual[name])) for name in kind.words}
    given = [np.atleast_1d(np.asarray(shape[name], np.float64)) for name in kind.sizes]
    sizes = dict(zip(kind.sizes, np.broadcast_arrays(*given), strict=True))
    if any((column <= 0).any() for name, column in sizes.items() if name != "step"):
        raise BadInput(f"sizes of {kind.name} are above 0; {shape} came")
    return sizes, words
