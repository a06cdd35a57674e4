"""What a communication library costs on a fabric's wires, as data: `library:` of a fabric's file.

`openshelf fabric fit` writes it from measured rows, and the twin goes by it: a collective starts with the launch of a
regime, every step costs what the wires that it crosses cost in that regime, and bytes go at the regime's rate there.
Without it collectives cost what wires and protocols cost, as if no library stood between. The laws are in laws/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from openshelf.errors import UnknownName
from openshelf.fabric.fields import Checked, Problem, nearest, not_empty, zero_or_more
from openshelf.fabric.laws.regimes import Law, Regime
from openshelf.fabric.laws.shapes import Shape
from openshelf.fabric.laws.tokens import Phase, Tokens, remote_copies
from openshelf.fabric.model import Figure, Source, weakest


@dataclass(frozen=True)
class Crossing(Checked):
    """What one step over a wire costs in a regime, and how fast the bytes of a rank go there."""

    wire: str = field(metadata=not_empty)
    step_s: Figure
    bandwidth_bytes_per_s: Figure


@dataclass(frozen=True)
class LibraryRegime(Checked):
    """A protocol of a library, in one of its shapes (see `laws/shapes.py`), by the wires that a step crosses.

    `own_bytes_per_s` is how fast a rank touches its own part of the bytes while nothing else goes on; without it, that
    takes no time.
    """

    name: str = field(metadata=not_empty)
    shape: Literal["ring", "in_switch", "one_shot", "two_shot", "exchange", "peers"]
    launch_s: Figure
    crossings: tuple[Crossing, ...] = field(metadata=not_empty)
    own_bytes_per_s: Figure | None = None

    def on(self, wires: Sequence[str]) -> Crossing | None:
        """The crossing that holds a step back: the narrowest of those that the wires have."""
        found = [each for each in self.crossings if each.wire in wires]
        return min(found, key=lambda each: each.bandwidth_bytes_per_s.value) if found else None

    def law(self, wires: Sequence[str]) -> Regime | None:
        """The regime over some wires; None if nothing is known of them."""
        crossing = self.on(wires)
        if crossing is None:
            return None
        shape: Shape = self.shape
        own = 1 / self.own_bytes_per_s.value if self.own_bytes_per_s else 0.0
        step_s = max((each.step_s.value for each in self.crossings if each.wire in wires), default=0.0)
        return Regime(self.name, shape, self.launch_s.value, step_s, 1 / crossing.bandwidth_bytes_per_s.value, own)

    @property
    def source(self) -> Source:
        own = [self.own_bytes_per_s] if self.own_bytes_per_s else []
        figures = [
            self.launch_s,
            *own,
            *(f for each in self.crossings for f in (each.step_s, each.bandwidth_bytes_per_s)),
        ]
        return weakest(figure.source for figure in figures)


@dataclass(frozen=True)
class TokenPhase(Checked):
    """A phase of an MoE kernel, such as one-sided dispatch; see `laws/tokens.py`.

    A token is sent once to each of the units (ranks, or nodes) that has some of its experts, or once to each expert. A
    kernel of one side stores into its peers' memory, one of two sends messages that peers receive.
    """

    name: str = field(metadata=not_empty)
    launch_s: Figure
    hop_s: Figure
    token_s: Figure
    bandwidth_bytes_per_s: Figure
    sent_to: Literal["units", "experts"] = "units"
    sides: Literal["one", "two"] = "two"

    def seconds(self, tokens: int, units: int, topk: int, experts: int, token_bytes: float) -> float:
        """So many tokens of every rank, each of so many bytes, to `topk` of `experts` spread over units."""
        away = remote_copies(units, topk, experts, self.sent_to == "experts") * token_bytes
        return self.law.seconds(Tokens(tokens, units, away, self.sides == "one"))

    @property
    def law(self) -> Phase:
        rate = self.bandwidth_bytes_per_s.value
        return Phase(self.launch_s.value, self.hop_s.value, self.token_s.value, 1 / rate)


@dataclass(frozen=True)
class Library(Checked):
    """Regimes of collectives, and phases of MoE exchanges.

    `sharing` is by which power of half the ranks a byte takes longer: 0 where nothing is shared.
    """

    name: str = field(metadata=not_empty)
    regimes: tuple[LibraryRegime, ...] = ()
    phases: tuple[TokenPhase, ...] = ()
    sharing: float = field(default=0.0, metadata=zero_or_more)
    note: str = ""

    def law(self, wires: Sequence[str]) -> Law:
        """The law of collectives whose steps cross these wires."""
        return Law(tuple(each for regime in self.regimes if (each := regime.law(wires))), self.sharing)

    def phase(self, name: str) -> TokenPhase:
        """The phase of that name; raises UnknownName with the nearest ones."""
        for each in self.phases:
            if each.name == name:
                return each
        names = [each.name for each in self.phases]
        raise UnknownName(
            f"no phase {name!r} in library {self.name!r}; it has {', '.join(names)}{nearest(name, names)}"
        )

    def problems(self) -> list[Problem]:
        found = super().problems()
        for key in () if found else ("regimes", "phases"):
            names = [each.name for each in getattr(self, key)]
            found += [
                ((key, i, "name"), f"the name {name!r} is taken by {key}[{names.index(name)}]")
                for i, name in enumerate(names)
                if name in names[:i]
            ]
        return found

    def wire_problems(self, wires: Sequence[str]) -> list[Problem]:
        """Wires that are named here and are not there."""
        return [
            (
                ("library", "regimes", i, "crossings", j, "wire"),
                f"no such name {each.wire!r} among wires; expected one of {', '.join(wires) or '(none)'}"
                + nearest(each.wire, wires),
            )
            for i, regime in enumerate(self.regimes)
            for j, each in enumerate(regime.crossings)
            if each.wire not in wires
        ]
