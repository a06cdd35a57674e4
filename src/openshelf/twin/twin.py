"""Twin: a network in virtual time. Collectives, task graphs, and what they load."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from openshelf.errors import BadInput
from openshelf.fabric import Fabric, Network, Semantics, weakest
from openshelf.twin.algorithms import Step
from openshelf.twin.bounds import carried_by
from openshelf.twin.choose import best_of, seconds_by
from openshelf.twin.collective import Collective
from openshelf.twin.costs import Costs
from openshelf.twin.flows import Setting
from openshelf.twin.library import Spoken, by_library, exchange_of, fastest_regime, known_to_library, nearer
from openshelf.twin.load import load_of
from openshelf.twin.plans import MOST_CHUNKS, Ask, Plan, Plans, require_known
from openshelf.twin.run import Run
from openshelf.twin.steps import add_steps
from openshelf.twin.tasks import Change, Tasks, reroutes_of, run


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
        self.peer_s = 0.0
        """What each further peer of a rank adds to a step of a collective: a regime of a library says."""
        self._known: dict[Any, Collective] = {}
        self._steps: dict[Any, Any] | None = None
        self._ways: dict[Any, dict[Any, Any]] = {}
        """Steps of a collective and their ways, while it is run in several regimes."""

    def send(self, src: int, dst: int, nbytes: float) -> float:
        """Seconds of one transfer, alone on the network."""
        tasks = self.tasks()
        tasks.flow(src, dst, nbytes)
        return run(tasks).seconds

    def tasks(self) -> Tasks:
        """An empty task graph on this network."""
        return Tasks(self.network, self.costs)

    def run(self, tasks: Tasks, changes: Sequence[Change] = (), detection_s: float | None = None) -> Run:
        """Runs a task graph; capacities may change on the way.

        With `detection_s`, flows over a link that has had no capacity for so long take another of the equal ways.
        """
        reroutes = [] if detection_s is None else reroutes_of(tasks, changes, detection_s)
        return Run(tasks, run(tasks, changes, self.window_s, reroutes))

    def collective(
        self,
        kind: str,
        nbytes: float,
        *,
        algorithm: str = "best",
        ranks: ArrayLike | None = None,
        dimension: int | None = None,
        chunks: int = 0,
        active: int = 0,
        how: str = "auto",
        salt: int = 0,
    ) -> Collective:
        """Simulates a collective among `ranks` (default: all endpoints that compute).

        `algorithm` is one among all ranks, one for each dimension that the ranks fill ("direct x ring"), `library`
        (what the fabric's library does, by its law), or `best`: the fastest that there is, in as many chunks as are
        fastest. With a `dimension` of the network, every group of ranks that differ only in that coordinate does one,
        all at the same time.

        `chunks` cuts it into parts: in dimensions, trees and broadcasts they go one behind the other, with `active` no
        more than so many in one phase; others do one after the other. `how="graph"` simulates every flow where one
        solve of each step would do.
        """
        ask = self._ask(kind, nbytes, algorithm, ranks, dimension, chunks, active, how, salt)
        key = (kind, nbytes, algorithm, ask.who.tobytes(), dimension, chunks, active, how, salt)
        if key not in self._known:
            self._known[key] = self._made(ask, algorithm)
        return self._known[key]

    def _made(self, ask: Ask, algorithm: str) -> Collective:
        """In the fastest regime of the fabric's library, if it has one; `best` is not slower than that library."""
        if algorithm == "library":
            return by_library(self.fabric, ask.kind, ask.who, ask.nbytes)

        steps: dict[Any, Any] = {}
        ways: dict[Any, dict[Any, Any]] = {}

        def in_regime(regime: Spoken, below_s: float) -> Collective | None:
            inside = copy.copy(self)
            inside.costs, inside.peer_s = regime.costs, regime.peer_s
            inside._steps, inside._ways = steps, ways
            if not regime.in_switch:  # in this regime the library leaves it to ranks to reduce
                inside.network = replace(self.network, reducing=())
            return inside._simulate(ask, algorithm, below_s)

        made = fastest_regime(self.fabric, ask.kind, algorithm, ask.who, ask.nbytes, in_regime)
        if made is None:
            made = self._simulate(ask, algorithm)
            assert made
            return made
        if algorithm != "best" or ask.dimension is not None or ask.chunks:
            return made
        law = known_to_library(self.fabric, ask.kind, ask.who, ask.nbytes)
        return nearer(made, law) if law else made

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
        if algorithm in ("best", "library"):
            raise BadInput(
                f"a collective by {algorithm!r} is no list of flows; name an algorithm, such as `collective` chose"
            )
        ask = self._ask(kind, nbytes, algorithm, ranks, dimension, chunks, 0, "graph", salt)
        plan = Plans(self.network, ask).plan(algorithm)
        setting = self._setting(ask, plan)
        turns, behind = (1, plan.chunks) if plan.piped else (plan.chunks, 1)
        done = list(after)
        for _ in range(turns):
            made = add_steps(tasks, setting, plan.variants, behind, 0, done)
            done = [tasks.compute(0.0, int(ask.who[0]), made.tolist(), name=name or f"end of {kind}")]
        return done[0]

    def _ask(
        self, kind: str, nbytes: float, algorithm: str, ranks: ArrayLike | None, dimension: int | None, chunks: int,
        active: int, how: str, salt: int,
    ) -> Ask:  # fmt: skip
        require_known(kind, "best" if algorithm == "library" else algorithm)
        if not (math.isfinite(nbytes) and nbytes > 0):
            raise BadInput(f"a collective is of {nbytes!r} bytes; expected more than 0")
        if not 0 <= chunks <= MOST_CHUNKS:
            raise BadInput(f"chunks is {chunks!r}; expected 0 (as the algorithm has it) to {MOST_CHUNKS}")
        if active < 0:
            raise BadInput(f"active is {active!r}; expected 0 (as many chunks as there are) or more")
        who = np.arange(self.network.ranks) if ranks is None else np.asarray(ranks, np.int64).ravel()
        if len(who) < 2 or len(np.unique(who)) != len(who):
            raise BadInput(f"a collective is among at least 2 different ranks; {len(who)} came")
        if who.min() < 0 or who.max() >= self.network.endpoints:
            wrong = int(who.min() if who.min() < 0 else who.max())
            raise BadInput(f"rank {wrong} is not in {self.network.name!r}, which has 0 to {self.network.ranks - 1}")
        return Ask(kind, nbytes, who, dimension, chunks, active, how, salt)

    def applicable(self, kind: str, ranks: int) -> list[str]:
        """The algorithms that `best` chooses from for the first so many ranks."""
        return Plans(self.network, Ask(kind, 1.0, np.arange(ranks))).candidates()

    def _simulate(self, ask: Ask, algorithm: str, below_s: float = math.inf) -> Collective | None:
        """None if the best would not take less than `below_s`."""
        plans = Plans(self.network, ask)
        if self._steps is not None:
            plans.made = self._steps
        if algorithm == "best":
            found = best_of(plans, lambda each: self._setting(ask, each), below_s)
            if found is None:
                return None
            plan, seconds, how = found
        else:
            plan = plans.plan(algorithm)
            seconds, how = seconds_by(self._setting(ask, plan), plan, ask)
        setting = self._setting(ask, plan)
        load = load_of(self.network, carried_by(setting, plan.every), seconds)
        flows = sum(step.flows for step in plan.every)
        trust = self._trust(setting, plan.variants[0])
        made = (ask.kind, plan.algorithm, len(ask.who), ask.nbytes, seconds, how, flows, load, *trust)
        return Collective(*made, chunks=plan.chunks)

    def _setting(self, ask: Ask, plan: Plan) -> Setting:
        ways = {} if self._steps is None else self._ways.setdefault(plan.ranks.tobytes(), {})
        made = (self.network, plan.ranks, self.costs, self.reduce_bytes_per_s, ask.salt)
        return Setting(*made, peer_s=self.peer_s, ways=ways)

    def _trust(self, setting: Setting, steps: Sequence[Step]) -> tuple[str, tuple[str, ...]]:
        """What the fabric says of the figures that steps went by: their source, and sizes beyond what is known."""
        if self.fabric is None:
            return "", ()
        ends = [(step, setting.ranks[step.src[i]], setting.ranks[step.dst[i]]) for step in steps for i in (0, -1)]
        costs = [self.fabric.send(max(1, int(step.nbytes)), int(src), int(dst)) for step, src, dst in ends]
        return weakest([cost.source for cost in costs]), tuple(dict.fromkeys(each for c in costs for each in c.beyond))
