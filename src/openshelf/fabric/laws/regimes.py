"""The law of a library's collectives: regimes of few constants each; the library takes the one that is fastest.

A regime is a protocol in a shape (shapes.py). Of n bytes among p ranks it takes

    launch + steps x step + n x (moved x (p / 2)**sharing / rate + own / own_rate)

Protocols differ in their constants: LL sends a flag with every word, so that a step is short and half the bytes are
lost; LL128 one with every line; simple waits for whole chunks and fills the wires; a switch that adds up needs no
steps. `rate` is of all channels of a rank together, or in the shape `peers` of one. `sharing` is 0 where ranks are
joined by a switch that does not block; behind one shared bus it is 1, and more where ways get longer too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from openshelf.errors import BadInput
from openshelf.fabric.laws.shapes import Shape, work
from openshelf.fabric.laws.squares import bounded
from openshelf.fabric.wiring.network import Values

PARTS = ("launch_s", "step_s", "s_per_byte", "own_s_per_byte")


@dataclass(frozen=True)
class Regime:
    """A protocol in a shape, and its constants; bandwidths are kept as seconds a byte, which may be 0."""

    name: str
    shape: Shape
    launch_s: float
    step_s: float
    s_per_byte: float
    own_s_per_byte: float = 0.0

    def coefficients(self, kind: str, ranks: int, nbytes: float, sharing: float = 0.0) -> Values | None:
        """What PARTS count for in the time of a collective; None if the regime cannot do it."""
        asked = work(self.shape, kind, ranks)
        if asked is None:
            return None
        crowd = (ranks / 2) ** sharing
        return np.array([1.0, asked.steps, asked.moved * nbytes * crowd, asked.own * nbytes])

    @property
    def constants(self) -> Values:
        return np.array([getattr(self, part) for part in PARTS])

    def seconds(self, kind: str, ranks: int, nbytes: float, sharing: float = 0.0) -> float | None:
        """Seconds of a collective; None if the regime cannot do it."""
        found = self.coefficients(kind, ranks, nbytes, sharing)
        return None if found is None else float(found @ self.constants)

    def of(self, constants: Values) -> Regime:
        """The same with other constants, in the order of PARTS."""
        return replace(self, **dict(zip(PARTS, constants.tolist(), strict=True)))


@dataclass(frozen=True)
class Law:
    """The regimes that a library chooses from."""

    regimes: tuple[Regime, ...]
    sharing: float = 0.0
    unused: tuple[str, ...] = field(default=())
    """Regimes of which no row says anything, and that the law therefore does not count on."""

    def fastest(self, kind: str, ranks: int, nbytes: float) -> tuple[float, Regime]:
        """Seconds and regime; raises BadInput if no regime can do it."""
        found = [
            (seconds, regime)
            for regime in self.regimes
            if regime.name not in self.unused
            and (seconds := regime.seconds(kind, ranks, nbytes, self.sharing)) is not None
        ]
        if not found:
            names = ", ".join(regime.name for regime in self.regimes)
            raise BadInput(f"no regime does {kind} among {ranks} ranks; there is {names or 'none'}")
        return min(found, key=lambda each: each[0])

    def seconds(self, kind: str, ranks: int, nbytes: float) -> float:
        """Seconds of a collective by the fastest regime."""
        return self.fastest(kind, ranks, nbytes)[0]


def typical(link_bytes_per_s: float, reduces: bool = False, kernels: bool = False) -> tuple[Regime, ...]:
    """Regimes as they are on most machines, with the link's rate: where a fit begins, and what it falls back to.

    Rounded from fits on two and four ranks of A100 and H100 machines. A rank's own work goes by its processors and not
    by the link. With `kernels`, the regimes of kernels that inference engines bring along come before a library's.
    """
    byte = 1 / link_bytes_per_s
    own = 1 / 800e9
    made = [
        Regime("LL", "ring", 5e-6, 0.9e-6, byte / 0.06),
        Regime("LL128", "ring", 6.5e-6, 1.1e-6, byte / 0.5, byte / 0.4),
        Regime("simple", "ring", 18e-6, 1.5e-6, byte / 0.8, own),
        Regime("LL to peers", "peers", 6e-6, 0.3e-6, byte / 0.03),
        Regime("simple to peers", "exchange", 14e-6, 0.3e-6, byte / 0.8, own),
    ]
    if kernels:
        made[:3] = [
            Regime("one shot", "one_shot", 3.5e-6, 0.1e-6, byte / 0.6),
            Regime("two shots", "two_shot", 5e-6, 0.2e-6, byte / 0.6, own),
            made[2],
        ]
    if reduces:
        made.append(Regime("in switch", "in_switch", 35e-6, 0.0, byte / 0.65))
    return tuple(made)


def fit_law(
    rows: Sequence[tuple[str, int, float, float]], start: Sequence[Regime], least_s_per_byte: float = 0.0
) -> tuple[Law, Fit]:
    """The law of rows (kind, ranks, bytes, seconds), begun from regimes that also pull a little where rows say nothing.

    Rows go to the regime that is fastest by the constants so far, constants follow by least squares of relative
    errors with large ones counting less, and so on until no row changes. Nothing is faster than the wire, which takes
    `least_s_per_byte`.
    """
    kinds = {kind for kind, *_ in rows}
    start = [each for each in start if any(work(each.shape, kind, 8) for kind in kinds)]
    found = [(_settle(rows, start, sharing, least_s_per_byte), sharing) for sharing in _SHARED]
    # A machine is taken to have no shared way unless the rows are explained much better with one.
    fit, sharing = min(found, key=lambda each: each[0].error * (1 + 0.15 * (each[1] > 0)))
    names = {start[column // len(PARTS)].name for column in range(len(start) * len(PARTS)) if fit.counted[column]}
    regimes = [each.of(fit.constants[i]) for i, each in enumerate(start)]
    unused = tuple(each.name for each in start if each.name not in names)
    return Law(tuple(regimes), sharing, unused), fit


_SHARED = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)
_PULL = 0.03
_ROUNDS = 40


@dataclass(frozen=True)
class Fit:
    """Constants by regime and part, the matrix of the rows they came from, who served each row, the mean error."""

    constants: Values
    matrix: Values
    served: tuple[int, ...]
    error: float

    @property
    def counted(self) -> list[bool]:
        """By column, whether any row has it."""
        return [bool(each) for each in (self.matrix != 0).any(axis=0)]


def _settle(
    rows: Sequence[tuple[str, int, float, float]], start: Sequence[Regime], sharing: float, least_s_per_byte: float
) -> Fit:
    parts, count = len(PARTS), len(start)
    first = np.array([regime.constants for regime in start])
    # Coefficients of every regime for every row, as shares of what was measured; absent where it cannot do it.
    asked = np.full((len(rows), count, parts), np.nan)
    for i, (kind, ranks, nbytes, seconds) in enumerate(rows):
        for j, regime in enumerate(start):
            found = regime.coefficients(kind, ranks, nbytes, sharing)
            if found is not None:
                asked[i, j] = np.where(first[j] > 0, found / seconds, 0.0)  # what a regime has none of it is not given
    wire = [least_s_per_byte if regime.shape in ("ring", "exchange", "two_shot") else 0.0 for regime in start]
    least = np.zeros((count, parts))
    least[:, 2] = wire
    first = np.maximum(first, least)
    pull = _PULL * np.sqrt(len(rows) / 100)
    known = np.flatnonzero(first.ravel() > 0)
    pulls = np.zeros((len(known), first.size))
    pulls[np.arange(len(known)), known] = pull / first.ravel()[known]
    constants, last, best = first, (), None
    for turn in range(_ROUNDS):
        total = np.einsum("ijk,jk->ij", asked, constants)
        served = np.nanargmin(total, axis=1)
        matrix = np.zeros((len(rows), count * parts))
        for part in range(parts):
            matrix[np.arange(len(rows)), served * parts + part] = asked[np.arange(len(rows)), served, part]
        off = np.abs(matrix @ constants.ravel() - 1)
        error = float(np.minimum(off, 0.5).mean())
        if best is None or error < best.error:
            best = Fit(constants, matrix, tuple(served.tolist()), error)
        if tuple(served.tolist()) == last:
            break
        last = tuple(served.tolist())
        weight = 1 / np.sqrt(np.maximum(off, 0.03)) if turn else np.ones(len(rows))
        weight = weight / weight.mean()
        every = np.vstack([matrix * weight[:, None], pulls])
        target = np.concatenate([weight, np.full(len(pulls), pull)])
        constants = bounded(every, target, least.ravel()).reshape(least.shape)
    assert best is not None
    return best
