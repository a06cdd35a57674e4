"""Twin: a network in virtual time. Collectives, task graphs, and what they load."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from openshelf.errors import BadInput
from openshelf.fabric import Fabric, Ids, Network, Semantics, nearest, weakest
from openshelf.twin.algorithms import ALGORITHMS, KINDS, Step, in_groups, steps_of
from openshelf.twin.collective import Collective
from openshelf.twin.costs import Costs, priced
from openshelf.twin.library import by_library, exchange_of, fastest_regime
from openshelf.twin.load import load_of
from openshelf.twin.run import Run
from openshelf.twin.steps import GRAPH, Setting, add_steps, carried_by, graph_of, least_of, seconds_of
from openshelf.twin.tasks import Change, Tasks, run

NAMES = ("ring", "tree", "halving_doubling", "direct", "hierarchical", "in_switch", "library")
_IN_GROUPS = ("ring", "halving_doubling", "direct")  # algorithms among the ranks of one dimension
_TREE_CHUNKS = 16
_MOST_TREE_FLOWS = 200_000
_MOST_PAIRS = 4_000_000  # flows of a direct exchange; above, `best` does not try it


@dataclass(frozen=True)
class _Ask:
    """What `collective` was asked for, but for the algorithm."""

    kind: str
    nbytes: float
    who: Ids
    dimension: int | None
    chunks: int
    how: str
    salt: int

    def parts(self, algorithm: str) -> int:
        return self.chunks or (_TREE_CHUNKS if (self.kind, algorithm) == ("all_reduce", "tree") else 1)

    def piped(self, algorithm: str) -> bool:
        """Chunks go one behind the other, not one after the other."""
        return (self.kind, algorithm) == ("all_reduce", "tree") or (algorithm == "hierarchical" and self.chunks > 1)


class Twin:
    """Runs collectives and task graphs on a network, or on a fabric's.

    `costs` is what transfers cost beside the wires: a `Semantics`, or a function of (bytes, source, target); a fabric
    brings its own. `reduce_bytes_per_s` is how fast a rank adds up what arrives, `window_s` within how many seconds
    flows of task graphs end at once (0: exact).
    """

    def __init__(
        self,
        network: Network | Fabric,
        costs: Costs | None = None,
        *,
        reduce_bytes_per_s: float = math.inf,
        window_s: float = 0.0,
    ) -> None:
        self.fabric = None if isinstance(network, Network) else network
        self.network: Network = network if isinstance(network, Network) else network.network
        self.costs: Costs = costs or (self.fabric.semantics if self.fabric else Semantics())
        self.reduce_bytes_per_s = reduce_bytes_per_s
        self.window_s = window_s
        self._known: dict[Any, Collective] = {}

    def send(self, src: int, dst: int, nbytes: float) -> float:
        """Seconds of one transfer, alone on the network."""
        tasks = self.tasks()
        tasks.flow(src, dst, nbytes)
        return run(tasks).seconds

    def tasks(self) -> Tasks:
        """An empty task graph on this network."""
        return Tasks(self.network, self.costs)

    def run(self, tasks: Tasks, changes: Sequence[Change] = ()) -> Run:
        """Runs a task graph; capacities may change on the way."""
        return Run(tasks, run(tasks, changes, self.window_s))

    def collective(
        self,
        kind: str,
        nbytes: float,
        *,
        algorithm: str = "best",
        ranks: ArrayLike | None = None,
        dimension: int | None = None,
        chunks: int = 0,
        how: str = "auto",
        salt: int = 0,
    ) -> Collective:
        """Simulates a collective among `ranks` (default: all endpoints that compute).

        With a `dimension` of the network, every group of ranks that differ only in that coordinate does one, all at the
        same time.

        `chunks` cuts it into parts: a tree (default 16) and dimensions pass them on one behind the other, others do one
        after the other. `how="graph"` simulates every flow where one solve of each step would do.
        """
        ask = self._ask(kind, nbytes, algorithm, ranks, dimension, chunks, how, salt)
        key = (kind, nbytes, algorithm, ask.who.tobytes(), dimension, chunks, how, salt)
        if key not in self._known:
            self._known[key] = self._made(ask, algorithm)
        return self._known[key]

    def _made(self, ask: _Ask, algorithm: str) -> Collective:
        """In the fastest regime of the fabric's library, if it has one; `best` is not slower than that library."""
        if algorithm == "library":
            return by_library(self.fabric, ask.kind, ask.who, ask.nbytes)

        def run_with(costs: Costs) -> Collective:
            inside = copy.copy(self)
            inside.costs = costs
            return inside._best(ask) if algorithm == "best" else inside._simulate(ask, algorithm)

        made = fastest_regime(self.fabric, ask.kind, algorithm, ask.who, ask.nbytes, run_with)
        if algorithm != "best" or ask.dimension is not None or ask.chunks:
            return made or run_with(self.costs)
        said = [made, by_library(self.fabric, ask.kind, ask.who, ask.nbytes)] if made else [run_with(self.costs)]
        return min(said, key=lambda each: each.seconds)

    def exchange(
        self, phase: str, tokens: int, *, token_bytes: float, topk: int, experts: int, units: int = 0
    ) -> float:
        """Seconds of a phase of an MoE exchange, such as `NVLinkOneSided dispatch`, by the fabric's library.

        Every rank has so many tokens of so many bytes, each for `topk` of `experts`, which are spread over `units`:
        ranks (default: all) of one domain, or nodes, as the phase was calibrated.
        """
        return exchange_of(self.fabric, phase, tokens, units or self.network.ranks, topk, experts, token_bytes)

    def add(
        self,
        tasks: Tasks,
        kind: str,
        nbytes: float,
        *,
        algorithm: str = "ring",
        ranks: ArrayLike | None = None,
        dimension: int | None = None,
        chunks: int = 0,
        after: Sequence[int] = (),
        salt: int = 0,
        name: str = "",
    ) -> int:
        """Adds every flow of a collective to a task graph, where it meets others; gives a task that ends with it."""
        if algorithm in ("best", "in_switch", "library"):
            raise BadInput(f"a collective by {algorithm!r} is no list of flows; there is {', '.join(NAMES[:-2])}")
        ask = self._ask(kind, nbytes, algorithm, ranks, dimension, chunks, "graph", salt)
        setting, steps = self._setting(ask), self._steps(ask, algorithm)
        parts = ask.parts(algorithm)
        turns, behind = (1, parts) if ask.piped(algorithm) else (parts, 1)
        done = list(after)
        for _ in range(turns):
            made = add_steps(tasks, setting, steps, behind, done)
            done = [tasks.compute(0.0, int(ask.who[0]), made.tolist(), name=name or f"end of {kind}")]
        return done[0]

    def _ask(
        self, kind: str, nbytes: float, algorithm: str, ranks: ArrayLike | None, dimension: int | None, chunks: int,
        how: str, salt: int,
    ) -> _Ask:  # fmt: skip
        if kind not in KINDS:
            raise BadInput(f"there is no collective {kind!r}; there is {', '.join(KINDS)}{nearest(kind, KINDS)}")
        if algorithm not in (*NAMES, "best"):
            raise BadInput(
                f"there is no algorithm {algorithm!r}; there is best, {', '.join(NAMES)}{nearest(algorithm, NAMES)}"
            )
        if not (math.isfinite(nbytes) and nbytes > 0):
            raise BadInput(f"a collective is of {nbytes!r} bytes; expected more than 0")
        if chunks < 0:
            raise BadInput(f"chunks is {chunks!r}; expected 0 (as the algorithm has it) or more")
        who = np.arange(self.network.ranks) if ranks is None else np.asarray(ranks, np.int64).ravel()
        if len(who) < 2 or len(np.unique(who)) != len(who):
            raise BadInput(f"a collective is among at least 2 different ranks; {len(who)} came")
        if dimension is not None and not 0 <= dimension < len(self._dimensions(len(who))):
            raise BadInput(
                f"dimension is {dimension!r}; the {len(who)} ranks have the dimensions {self._dimensions(len(who))}"
            )
        return _Ask(kind, nbytes, who, dimension, chunks, how, salt)

    def applicable(self, kind: str, ranks: int) -> list[str]:
        """The algorithms that `best` chooses from; not `in_switch`, since nothing says which switches can reduce."""
        made = [name for each, name in ALGORITHMS if each == kind]
        if ranks & (ranks - 1) and "halving_doubling" in made:
            made.remove("halving_doubling")
        if "direct" in made and len(made) > 1 and ranks * (ranks - 1) > _MOST_PAIRS:
            made.remove("direct")
        if "tree" in made and kind == "all_reduce" and 4 * ranks * _TREE_CHUNKS > _MOST_TREE_FLOWS:
            made.remove("tree")
        if self._dimensions(ranks) and kind in ("all_reduce", "reduce_scatter", "all_gather"):
            made.append("hierarchical")
        return made

    def _best(self, ask: _Ask) -> Collective:
        """The fastest; algorithms that could not be, by what they have to carry, are not simulated."""
        among = len(ask.who) if ask.dimension is None else self._dimensions(len(ask.who))[ask.dimension]
        names = [name for name in self.applicable(ask.kind, among) if ask.dimension is None or name in _IN_GROUPS]
        least = {
            name: least_of(self._setting(ask), self._steps(ask, name), ask.parts(name) if ask.piped(name) else 1)
            for name in names
        }
        best: Collective | None = None
        for name in sorted(names, key=lambda each: least[each]):
            if best is None or least[name] < best.seconds:
                made = self._simulate(ask, name)
                best = made if best is None or made.seconds < best.seconds else best
        assert best is not None
        return best

    def _simulate(self, ask: _Ask, algorithm: str) -> Collective:
        if ask.dimension is not None and algorithm not in _IN_GROUPS:
            raise BadInput(f"in one dimension there is {', '.join(_IN_GROUPS)}; {algorithm!r} came")
        if algorithm == "in_switch":
            return self._in_switch(ask)
        setting, steps, parts = self._setting(ask), self._steps(ask, algorithm), ask.parts(algorithm)
        if ask.piped(algorithm):
            seconds, how = run(graph_of(setting, steps, parts), (), self.window_s).seconds, GRAPH
        else:
            seconds, how = seconds_of(setting, steps, ask.how)
            seconds *= parts
        every = [replace(step, times=step.times * parts) for step in steps]
        load = load_of(self.network, carried_by(setting, every), seconds)
        flows = sum(step.flows for step in every)
        trust = self._trust(setting, steps)
        return Collective(ask.kind, algorithm, len(ask.who), ask.nbytes, seconds, how, flows, load, *trust)

    def _setting(self, ask: _Ask) -> Setting:
        return Setting(self.network, ask.who, self.costs, self.reduce_bytes_per_s, ask.salt)

    def _steps(self, ask: _Ask, algorithm: str) -> list[Step]:
        """The steps of one chunk."""
        sizes, nbytes = self._dimensions(len(ask.who)), ask.nbytes / ask.parts(algorithm)
        if ask.dimension is None:
            return steps_of(ask.kind, algorithm, len(ask.who), nbytes, sizes)
        extent, stride = sizes[ask.dimension], math.prod(sizes[: ask.dimension])
        inside = steps_of(ask.kind, algorithm, extent, nbytes)
        return [in_groups(step, len(ask.who), extent, stride) for step in inside]

    def _in_switch(self, ask: _Ask) -> Collective:
        """One stream to a root and back, over all ways at once: switches add up what comes and copy what goes."""
        kind, nbytes, who, salt = ask.kind, ask.nbytes, ask.who, ask.salt
        if kind != "all_reduce" or not self._reduces_inside():
            raise BadInput(
                f"switches reduce an all_reduce where flows cut through; {kind} on {self.network.name!r} came"
            )
        root, others = who[:1], who[1:]
        to = self.network.paths(others, np.repeat(root, len(others)), salt)
        back = self.network.paths(np.repeat(root, len(others)), others, salt)
        size = np.full(len(others), float(nbytes))
        before, wire, caps = priced(self.costs, self.network, others, np.repeat(root, len(others)), size, *to)
        used = np.unique(np.concatenate([to[1], back[1]]))
        rate = min(float(self.network.capacity_bytes_per_s[used].min()), float(caps.min()))
        seconds = float(before.max()) + float(wire.max()) / rate
        carried = np.zeros(self.network.resources)
        carried[used] = wire.max()
        load = load_of(self.network, carried, seconds)
        how = "one stream over all ways to a root and back"
        return Collective(kind, "in_switch", len(who), nbytes, seconds, how, 1, load)

    def _reduces_inside(self) -> bool:
        return bool(self.network.switches) and not self.network.whole_messages and not self.network.direct

    def _dimensions(self, ranks: int) -> tuple[int, ...]:
        sizes = self.network.dimensions
        return sizes if len(sizes) > 1 and math.prod(sizes) == ranks == self.network.ranks else ()

    def _trust(self, setting: Setting, steps: Sequence[Step]) -> tuple[str, tuple[str, ...]]:
        """What the fabric says of the figures that steps went by: their source, and sizes beyond what is known."""
        if self.fabric is None:
            return "", ()
        ends = [(step, setting.ranks[step.src[i]], setting.ranks[step.dst[i]]) for step in steps for i in (0, -1)]
        costs = [self.fabric.send(max(1, int(step.nbytes)), int(src), int(dst)) for step, src, dst in ends]
        return weakest([cost.source for cost in costs]), tuple(dict.fromkeys(each for c in costs for each in c.beyond))
