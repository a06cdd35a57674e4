"""Constants of a law from measured rows.

Rows go to the regime that is fastest by the constants so far. Constants follow from their rows by least squares of
relative errors, of which large ones count less (some rows are noise); then rows are dealt out anew, until none changes
its regime. The law is linear in its constants, so it can be said which ones the rows determine (squares.py). Where
they do not, constants stay where the search began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openshelf.fabric.laws.regimes import PARTS, Law, Regime
from openshelf.fabric.laws.shapes import work
from openshelf.fabric.laws.squares import bounded, determined
from openshelf.fabric.wiring.network import Values

_SHARED = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)
_PULL = np.array([0.03, 0.03, 0.01, 0.1])
"""How much the start of each part counts, of 1 for each of 100 rows: a rate is the machine's own, and what a rank's
processors do by themselves differs least from one machine to another."""
_HELD = 100.0
_OWN = PARTS.index("own_s_per_byte")
_ROUNDS = 40


@dataclass(frozen=True)
class Measured:
    """One row: so many seconds of a collective; `channels` as in the law."""

    kind: str
    ranks: int
    nbytes: float
    seconds: float
    channels: float = 1.0


@dataclass(frozen=True)
class Constant:
    """One constant of a law, and whether the rows say what it is; `rows` is how many had it."""

    regime: str
    part: str
    value: float
    rows: int
    determined: bool


@dataclass(frozen=True)
class Fit:
    """A law, its constants with what the rows know of them, and the relative error of each row."""

    law: Law
    constants: tuple[Constant, ...]
    errors: Values


@dataclass(frozen=True)
class _Settled:
    constants: Values
    matrix: Values
    error: float


def fit_law(
    rows: Sequence[Measured], start: Sequence[Regime], least_s_per_byte: float = 0.0, on_a_bus: bool = False
) -> Fit:
    """The law of rows, begun from regimes; nothing is faster than the wire, which takes `least_s_per_byte`.

    One rank count does not say how a byte's time grows with ranks: on a bus it is taken to grow as their number does.
    """
    kinds = {row.kind for row in rows}
    start = [each for each in start if any(work(each.shape, kind, 8) for kind in kinds)]
    tried = (1.0 if on_a_bus else 0.0,) if one_count(rows) else _SHARED
    found = [(_settle(rows, start, sharing, least_s_per_byte), sharing) for sharing in tried]
    # A machine is taken to have no shared way unless the rows are explained much better with one.
    fit, sharing = min(found, key=lambda each: each[0].error * (1 + 0.15 * (each[1] > 0)))
    many = (fit.matrix != 0).sum(axis=0).reshape(len(start), len(PARTS))
    known = np.array(determined(fit.matrix, fit.constants.ravel())).reshape(many.shape)
    if one_count(rows):
        known[:, _OWN] = False
    constants = tuple(
        Constant(each.name, part, float(fit.constants[i, j]), int(many[i, j]), bool(known[i, j]))
        for i, each in enumerate(start)
        for j, part in enumerate(PARTS)
        if each.constants[j] > 0
    )
    regimes = tuple(each.of(fit.constants[i]) for i, each in enumerate(start))
    unused = tuple(each.name for i, each in enumerate(start) if not many[i].any())
    return Fit(Law(regimes, sharing, unused), constants, fit.matrix @ fit.constants.ravel() - 1)


def one_count(rows: Sequence[Measured]) -> bool:
    """With one rank count, only the difference of an all-reduce from its halves would tell bytes moved from a rank's
    own; but kernels that reduce and kernels that copy differ by as much. So the own part is held where it began."""
    return len({row.ranks for row in rows}) < 2


def _settle(rows: Sequence[Measured], start: Sequence[Regime], sharing: float, least_s_per_byte: float) -> _Settled:
    parts, count = len(PARTS), len(start)
    first = np.array([regime.constants for regime in start])
    # Coefficients of every regime for every row, as shares of what was measured; absent where it cannot do it.
    asked = np.full((len(rows), count, parts), np.nan)
    for i, row in enumerate(rows):
        for j, regime in enumerate(start):
            found = regime.coefficients(row.kind, row.ranks, row.nbytes, sharing, row.channels)
            if found is not None:  # what a regime has none of it is not given
                asked[i, j] = np.where(first[j] > 0, found / row.seconds, 0.0)
    wire = [least_s_per_byte if regime.shape in ("ring", "exchange", "two_shot") else 0.0 for regime in start]
    least = np.zeros((count, parts))
    least[:, 2] = wire
    first = np.maximum(first, least)
    pull = np.tile(_PULL, count) * np.sqrt(len(rows) / 100)
    if one_count(rows):
        pull[_OWN::parts] = _HELD
    known = np.flatnonzero(first.ravel() > 0)
    pulls = np.zeros((len(known), first.size))
    pulls[np.arange(len(known)), known] = pull[known] / first.ravel()[known]
    constants, last, best = first, None, None
    for turn in range(_ROUNDS):
        total = np.einsum("ijk,jk->ij", asked, constants)
        served = np.nanargmin(total, axis=1)
        matrix = np.zeros((len(rows), count * parts))
        for part in range(parts):
            matrix[np.arange(len(rows)), served * parts + part] = asked[np.arange(len(rows)), served, part]
        off = np.abs(matrix @ constants.ravel() - 1)
        error = float(np.minimum(off, 0.5).mean())
        if best is None or error < best.error:
            best = _Settled(constants, matrix, error)
        if last is not None and np.array_equal(served, last):
            break
        last = served
        weight = 1 / np.sqrt(np.maximum(off, 0.03)) if turn else np.ones(len(rows))
        weight = weight / weight.mean()
        every = np.vstack([matrix * weight[:, None], pulls])
        target = np.concatenate([weight, pull[known]])
        constants = bounded(every, target, least.ravel()).reshape(least.shape)
    assert best is not None
    return best
