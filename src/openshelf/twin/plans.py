"""What a collective may be asked for, as steps: an algorithm among all ranks, or one in each dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from openshelf.errors import BadInput
from openshelf.fabric import Ids, Network, nearest
from openshelf.twin import dimensions, folded
from openshelf.twin.algorithms import ALGORITHMS, KINDS, NAMES, Step, fits, steps_of
from openshelf.twin.circuits import switched
from openshelf.twin.dimensions import BY, RAILS, SCATTERS, by_rails, divided, filled, in_groups, names_in, steps_in
from openshelf.twin.folded import FOLDED, Folding, folded_steps, folding

MOST_CHUNKS = 256
LEAST_CHUNK = 65536
"""Bytes of a chunk that goes behind another: less is not cut further, since what a message costs its sender is not
simulated. Where every hop stores whole messages, chunks are as they are asked for, as in ASTRA-sim."""
ROTATING = "rotating "
"""Before the algorithms of the dimensions: chunks begin in a different dimension each, so that all are busy at once."""
_CHUNKS = 16  # where an algorithm is made to be pipelined, and nobody says how many
_PIPED = (("all_reduce", "tree"), ("broadcast", "chain"), ("broadcast", "two_trees"))
_MOST_PAIRS = 12_000_000  # hops of all flows of a direct exchange; above, `best` does not try it
_MOST_BESIDE = 1_000_000  # the same, where there are dimensions to do it in
_MOST_TREE = 100_000  # flows of all chunks of a tree; above, `best` does not try it


@dataclass(frozen=True)
class Ask:
    """What `Twin.collective` was asked for, but for the algorithm."""

    kind: str
    nbytes: float
    who: Ids
    dimension: int | None = None
    chunks: int = 0
    active: int = 0
    how: str = "auto"
    salt: int = 0


@dataclass
class Plan:
    """The steps of one chunk, in one or several variants, and how many chunks there are."""

    algorithm: str
    ranks: Ids
    variants: list[list[Step]]
    chunks: int
    piped: bool

    @property
    def every(self) -> list[Step]:
        """Each step as often as it is done in all chunks of all variants."""
        turns = self.chunks / len(self.variants)
        return [replace(step, times=round(step.times * turns)) for steps in self.variants for step in steps]


@dataclass
class Plans:
    """All algorithms that a network has for an ask."""

    network: Network
    ask: Ask
    sizes: tuple[int, ...] = ()
    which: tuple[int, ...] = ()
    order: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    fold: Folding | None = None
    made: dict[Any, list[Step]] = field(default_factory=dict)
    """Steps that were made, by algorithm and chunks."""

    def __post_init__(self) -> None:
        self.sizes, self.which, self.order = filled(self.network.dimensions, self.ask.who)
        if not self.sizes and self.ask.dimension is None and not any(self.network.reconfiguration_s):
            self.sizes, self.which, self.order = divided(self.network.dimensions, self.ask.who)
        if len(self.network.dimensions) > 1 and not any(self.network.reconfiguration_s):
            self.fold = folding(self.network.dimensions[0], self.ask.who, self.ask.kind == "broadcast")
        at = self.ask.dimension
        if at is not None and not 0 <= at < len(self.sizes):
            raise BadInput(
                f"dimension is {at!r}; the {len(self.ask.who)} ranks fill the dimensions {self.sizes or '(none)'}"
            )

    def plan(self, algorithm: str, chunks: int = 0) -> Plan:
        """The plan of an algorithm; raises BadInput if there is none such."""
        ask = self.ask
        many = self._dimensional(algorithm)
        if ask.dimension is not None and (many or algorithm not in SCATTERS):
            raise BadInput(f"in one dimension there is {', '.join(SCATTERS)}; {algorithm!r} came")
        chunks = chunks or ask.chunks or (_CHUNKS if (ask.kind, algorithm) in _PIPED else 1)
        if any(self.network.reconfiguration_s):
            chunks = 1  # chunks behind one another would turn the switch for each other
        by_pieces = many or ask.kind == "broadcast" or (ask.kind, algorithm) in _PIPED
        if by_pieces and not self.network.whole_messages:
            chunks = min(chunks, max(1, int(ask.nbytes // LEAST_CHUNK)))
        if algorithm == RAILS:
            return self._by_rails(chunks)
        if algorithm.startswith(FOLDED):
            return self._folded(algorithm, chunks)
        if many:
            return self._in_dimensions(algorithm, chunks)
        self._require_reducing(algorithm, self._spanned())
        piped = (ask.kind, algorithm) in _PIPED or (ask.kind == "broadcast" and chunks > 1)
        if ask.dimension is not None:
            extent, stride = self.sizes[ask.dimension], math.prod(self.sizes[: ask.dimension])
            every = np.arange(len(ask.who), dtype=np.int64)
            base = every[every // stride % extent == 0]
            steps = [
                in_groups(step, base, stride) for step in steps_of(ask.kind, algorithm, extent, ask.nbytes / chunks)
            ]
            return Plan(algorithm, self.order, [switched(self.network, self.order, steps)], chunks, False)
        key = (algorithm, chunks)
        if key not in self.made:
            if algorithm not in self.made:
                self.made[algorithm] = steps_of(ask.kind, algorithm, len(ask.who), 1.0)
            size = ask.nbytes / chunks
            steps = [replace(step, nbytes=step.nbytes * size) for step in self.made[algorithm]]
            self.made[key] = switched(self.network, ask.who, steps)
        return Plan(algorithm, ask.who, [self.made[key]], chunks, piped)

    def _by_rails(self, chunks: int) -> Plan:
        if self.ask.kind != "all_to_all" or len(self.sizes) < 2 or any(self.network.reconfiguration_s):
            raise BadInput(
                f"there is no {self.ask.kind} by {RAILS!r} here; there is an all_to_all of ranks that fill two "
                f"dimensions or more of a network without circuit switches, and these fill {self.sizes or '(none)'}"
            )
        key = (RAILS, chunks)
        if key not in self.made:
            self.made[key] = by_rails(self.sizes, self.ask.nbytes / chunks)
        return Plan(RAILS, self.order, [self.made[key]], chunks, False)

    def _folded(self, algorithm: str, chunks: int) -> Plan:
        ask, fold = self.ask, self.fold
        if fold is None or ask.kind not in folded.KINDS:
            raise BadInput(
                f"there is no {ask.kind} by {algorithm!r} here; there is one for {', '.join(folded.KINDS)} among ranks "
                "that fill the nodes of a network of at least two dimensions unevenly, without circuit switches"
            )
        names = names_in(algorithm.removeprefix(FOLDED), len(fold.sizes))
        if "in_switch" in names:
            raise BadInput(f"switches do not reduce for a part of their ranks; {algorithm!r} would have them do so")
        key = (algorithm, chunks)
        if key not in self.made:
            if algorithm not in self.made:
                self.made[algorithm] = folded_steps(ask.kind, names, fold, 1.0, self.made)
            size = ask.nbytes / chunks
            self.made[key] = [replace(step, nbytes=step.nbytes * size) for step in self.made[algorithm]]
        return Plan(algorithm, fold.ranks, [self.made[key]], chunks, chunks > 1)

    def _in_dimensions(self, algorithm: str, chunks: int) -> Plan:
        ask, rotating = self.ask, algorithm.startswith(ROTATING)
        if not self.sizes:
            raise BadInput(
                f"a {ask.kind} by {algorithm!r} needs ranks that fill at least two dimensions of the network, "
                f"{self.network.dimensions or '(it has none)'}; {len(ask.who)} ranks came that do not"
            )
        if rotating and any(self.network.reconfiguration_s):
            raise BadInput(f"chunks of {algorithm!r} would turn the circuit switches for one another; do not rotate")
        names = names_in(algorithm.removeprefix(ROTATING), len(self.sizes))
        for at, name in enumerate(names):
            self._require_reducing(name, (self.which[at],))
        firsts = range(len(names)) if rotating else (0,)
        chunks = max(1, chunks // len(firsts)) * len(firsts)
        variants = []
        for first in firsts:
            key = (algorithm, chunks, first)
            if key not in self.made:
                steps = steps_in(ask.kind, names, self.sizes, ask.nbytes / chunks, first, self.made)
                self.made[key] = switched(self.network, self.order, steps)
            variants.append(self.made[key])
        return Plan(algorithm, self.order, variants, chunks, chunks > 1)

    def candidates(self) -> list[str]:
        """The algorithms that `best` chooses from."""
        ask = self.ask
        if ask.dimension is not None:
            extent = self.sizes[ask.dimension]
            names = [name for name in SCATTERS if fits(ask.kind, name, extent)]
            return [name for name in names if name != "in_switch" or self._reduces((self.which[ask.dimension],))]
        count = len(ask.who)
        beside = bool(self.sizes) and ask.kind != "all_to_all"
        beside = beside and (self.network.orbit is None or count != self.network.endpoints)  # else one rank's will do
        pairs = count * (count - 1) * self._hops() <= (_MOST_BESIDE if beside else _MOST_PAIRS)
        small = {"direct": pairs, "one_shot": pairs, "tree": count * _CHUNKS * 4 <= _MOST_TREE,
                 "chain": count * _CHUNKS <= _MOST_TREE, "in_switch": self._reduces(self._spanned())}  # fmt: skip
        made = [name for kind, name in ALGORITHMS if kind == ask.kind and fits(kind, name, count)]
        kept = [name for name in made if small.get(name, True)]
        pairs = count * (count - 1) * self._hops() <= _MOST_BESIDE
        rails = ask.kind == "all_to_all" and len(self.sizes) > 1 and self._indirect() and pairs
        return (kept or made) + ([RAILS] if rails else []) + self._combined() + self._through_a_core()

    def _indirect(self) -> bool:
        """Ranks that differ in all dimensions may be reached by links that others do not use."""
        return not self.network.direct and not self.network.relay and not any(self.network.reconfiguration_s)

    def _combined(self) -> list[str]:
        """An algorithm for each dimension, in every combination; with chunks that rotate where dimensions are alike."""
        kind = self.ask.kind
        if not self.sizes or kind not in dimensions.KINDS:
            return []
        each = [self._fitting(self._phase(), at) for at in range(len(self.sizes))]
        last = self._fitting(kind, len(self.sizes) - 1)
        same = [[name] * (len(each) - 1) for name in each[0] if all(name in names for names in each[:-1])]
        inner = [list(names) for names in product(*each[:-1])]
        if len(each) > 2 or kind == "broadcast":
            inner = same  # all combinations would be hundreds
        made = [BY.join([*names, name]) for names in inner for name in last]
        if kind in ("all_reduce", "reduce_scatter", "all_gather") and not any(self.network.reconfiguration_s):
            made += [ROTATING + BY.join([*names, names[0]]) for names in same if names[0] in each[-1]]
        return made

    def _through_a_core(self) -> list[str]:
        """An algorithm for each dimension of the core, in every combination."""
        if self.fold is None or self.ask.kind not in folded.KINDS:
            return []
        *inner, last = self.fold.sizes
        each = [[name for name in NAMES if fits(self._phase(), name, size)] for size in inner]
        each.append([name for name in NAMES if fits(self.ask.kind, name, last)])
        return [FOLDED + BY.join(names) for names in product(*each) if "in_switch" not in names]

    def varied(self, algorithm: str) -> list[str]:
        """The same with another algorithm in one of its dimensions, where there are more than two."""
        rotating = ROTATING if algorithm.startswith(ROTATING) else ""
        names = algorithm.removeprefix(ROTATING).split(BY)
        if len(names) < (2 if rotating else 3) or algorithm.startswith(FOLDED):
            return []
        made = []
        for at in range(len(names)):
            last = at == len(names) - 1 and not rotating
            kind = self.ask.kind if last else self._phase()
            for name in self._fitting(kind, at):
                other = [*names[:at], name, *names[at + 1 :]]
                made += [rotating + BY.join(other)] if name != names[at] else []
        return made

    def _phase(self) -> str:
        """What all dimensions but the last do."""
        kind = self.ask.kind
        return {"all_reduce": "reduce_scatter", "broadcast": "all_gather"}.get(kind, kind)

    def _fitting(self, kind: str, at: int) -> list[str]:
        """The algorithms for a phase in one of the dimensions that the ranks fill."""
        names = [name for name in NAMES if fits(kind, name, self.sizes[at])]
        return [name for name in names if name != "in_switch" or self._reduces((self.which[at],))]

    def _hops(self) -> float:
        """Resources on a way between two ranks, as some of them have it."""
        who = self.ask.who
        far = np.roll(who, len(who) // 2)[:64]
        return max(1.0, len(self.network.paths(who[:64], far, self.ask.salt)[1]) / len(far))

    def _dimensional(self, algorithm: str) -> bool:
        return algorithm == "hierarchical" or BY in algorithm or algorithm.startswith((ROTATING, FOLDED))

    def _spanned(self) -> tuple[int, ...]:
        """The network's dimensions in which the ranks, or those of one group, differ."""
        if self.ask.dimension is not None:
            return (self.which[self.ask.dimension],)
        sizes, found, stride = self.network.dimensions or (self.network.ranks,), [], 1
        for number, extent in enumerate(sizes):
            if np.ptp(self.ask.who // stride % extent):
                found.append(number)
            stride *= extent
        return tuple(found)

    def _reduces(self, spanned: Sequence[int]) -> bool:
        """Whether the switches that join those dimensions can all reduce."""
        can = self.network.reducing
        return not self.network.whole_messages and all(at < len(can) and can[at] for at in spanned)

    def _require_reducing(self, algorithm: str, spanned: Sequence[int]) -> None:
        if algorithm == "in_switch" and not self._reduces(spanned):
            raise BadInput(
                f"the switches of {self.network.name!r} that join these ranks do not reduce what passes through them; "
                "say `reduces: true` of a switch that does (NVLS, SHARP), or take another algorithm"
            )


def require_known(kind: str, algorithm: str) -> None:
    """Raises BadInput if there is no such collective, or no such algorithm of any."""
    if kind not in KINDS:
        raise BadInput(f"there is no collective {kind!r}; there is {', '.join(KINDS)}{nearest(kind, KINDS)}")
    known = (*NAMES, "hierarchical", RAILS)
    for name in algorithm.removeprefix(ROTATING).removeprefix(FOLDED).split(BY):
        if name not in known and algorithm != "best":
            raise BadInput(
                f"there is no algorithm {name!r}; there is best, {', '.join(known)}, and one for each dimension, such "
                f"as 'direct x ring'{nearest(name, known)}"
            )
