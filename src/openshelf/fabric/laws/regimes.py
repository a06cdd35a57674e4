"""The law of a library's collectives: regimes of few constants each; the library takes the one that is fastest.

A regime is a protocol in a shape (shapes.py). Of n bytes among p ranks it takes

    launch + steps x step + n x (moved x (p / 2)**sharing / (rate x channels) + own / own_rate)

Protocols differ in their constants: LL sends a flag with every word, so that a step is short and half the bytes are
lost; LL128 one with every line; simple waits for whole chunks and fills the wires; a switch that adds up needs no
steps. `rate` is of one way out of a rank, or in the shape `peers` of what one peer gets of it; a ring over nodes has as
many channels as nodes have cards. `sharing` is 0 where ranks are joined by a switch that does not block; behind one
shared bus it is 1, and more where ways get longer too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from openshelf.errors import BadInput
from openshelf.fabric.laws.shapes import Shape, work
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

    def coefficients(
        self, kind: str, ranks: int, nbytes: float, sharing: float = 0.0, channels: float = 1.0
    ) -> Values | None:
        """What PARTS count for in the time of a collective; None if the regime cannot do it."""
        asked = work(self.shape, kind, ranks)
        if asked is None:
            return None
        crowd = (ranks / 2) ** sharing / channels
        return np.array([1.0, asked.steps, asked.moved * nbytes * crowd, asked.own * nbytes])

    @property
    def constants(self) -> Values:
        return np.array([getattr(self, part) for part in PARTS])

    def seconds(
        self, kind: str, ranks: int, nbytes: float, sharing: float = 0.0, channels: float = 1.0
    ) -> float | None:
        """Seconds of a collective; None if the regime cannot do it."""
        found = self.coefficients(kind, ranks, nbytes, sharing, channels)
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

    def fastest(self, kind: str, ranks: int, nbytes: float, channels: float = 1.0) -> tuple[float, Regime]:
        """Seconds and regime; raises BadInput if no regime can do it."""
        found = [
            (seconds, regime)
            for regime in self.regimes
            if regime.name not in self.unused
            and (seconds := regime.seconds(kind, ranks, nbytes, self.sharing, channels)) is not None
        ]
        if not found:
            names = ", ".join(regime.name for regime in self.regimes)
            raise BadInput(f"no regime does {kind} among {ranks} ranks; there is {names or 'none'}")
        return min(found, key=lambda each: each[0])

    def seconds(self, kind: str, ranks: int, nbytes: float, channels: float = 1.0) -> float:
        """Seconds of a collective by the fastest regime."""
        return self.fastest(kind, ranks, nbytes, channels)[0]


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
