"""How far off answers are on shapes that were left out: every shape is, in one of a few folds, with all its rows.

A shape is what a kind's `left_out` names: of a product n and k, with all its m. Which fold a shape is in is drawn from
its name, so that it is the same whatever other rows there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from openshelf.twin.ops.kinds import Floats
from openshelf.twin.ops.laws import law_of
from openshelf.twin.ops.measured import Measured, device_of
from openshelf.twin.ops.table import OpTable

FOLDS = 5


@dataclass(frozen=True)
class Left:
    """Rows of one accelerator and words that were left out: what was measured, and what was said of them.

    `fitted` and `judged` are hashes of rows; that none is in both is what the figures are worth.
    """

    key: tuple[str, ...]
    measured: Floats
    near: Floats
    law: Floats
    nearest: Floats
    ideal: Floats
    fitted: frozenset[str]
    judged: tuple[str, ...]


def error(predicted: Floats, measured: Floats) -> float:
    """The median of absolute relative errors."""
    return float(np.median(np.abs(predicted / measured - 1)))


def left_out(
    table: OpTable, most: int | None = None, columns: Sequence[str] = (), folds: int = FOLDS
) -> Iterator[Left]:
    """Scores of each accelerator and words, and fold. `most` rows of each are judged, all of the others are fitted;
    `columns` are left out instead of those of the kind, each value by itself."""
    groups = fold_of(table, folds) if not columns else _each(table, columns)
    hashes, keys = np.array(table.hashes()), table.keys()
    for key in sorted(set(keys)):
        rows = np.array([row for row, each in enumerate(keys) if each == key])
        device, words = device_of(key[0]), dict(zip(table.kind.words, key[1:], strict=True))
        for fold in np.unique(groups[rows]):
            judged, kept = rows[groups[rows] == fold], rows[groups[rows] != fold]
            if most is not None and len(judged) > most:
                judged = np.sort(np.random.default_rng(0).permutation(judged)[:most])
            sizes = {name: table.sizes[name][judged] for name in table.kind.sizes}
            parts = table.kind.parts(sizes, words, device)
            ideal = np.maximum(parts["compute"], parts["memory"])
            if len(kept) < len(table.kind.scales) + 1:  # too few to fit: the package's law alone
                said = law_of(table.kind, device.name, words).seconds(table.kind, sizes, device, words)
                yield Left(key, table.seconds[judged], said, said, said, ideal, frozenset(), tuple(hashes[judged]))
                continue
            known = Measured(table.take(kept), device, words)
            yield Left(
                key, table.seconds[judged], known.near(sizes)[0],
                known.law.seconds(table.kind, sizes, device, words), known.nearest(sizes), ideal,
                frozenset(hashes[kept]), tuple(hashes[judged]),
            )  # fmt: skip


def fold_of(table: OpTable, folds: int = FOLDS) -> NDArray[np.int64]:
    """The fold of every row."""
    known: dict[tuple[float, ...], int] = {}
    made = []
    for shape in zip(*(table.sizes[name].tolist() for name in table.kind.left_out), strict=True):
        if shape not in known:
            text = "|".join([table.kind.name, *(f"{size:g}" for size in shape)])
            known[shape] = int.from_bytes(blake2b(text.encode(), digest_size=4).digest()) % folds
        made.append(known[shape])
    return np.array(made)


def _each(table: OpTable, columns: Sequence[str]) -> NDArray[np.int64]:
    values = np.stack([table.sizes[name] for name in columns], axis=1)
    made: NDArray[np.int64] = np.unique(values, axis=0, return_inverse=True)[1].ravel()
    return made
