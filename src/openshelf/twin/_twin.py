"""Twin: a network in virtual time. Collectives, task graphs, and what they load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openshelf.errors import BadInput
from openshelf.fabric import Fabric, Network, Semantics
from openshelf.fabric._fields import nearest
from openshelf.fabric._model import weakest
from openshelf.fabric._network import Ids, Values
from openshelf.twin._algorithms import ALGORITHMS, KINDS, Step, in_groups, steps_of
from openshelf.twin._costs import Costs, priced
from openshelf.twin._load import Load, load_of
from openshelf.twin._run import Run
from openshelf.twin._steps import GRAPH, Setting, graph_of, seconds_of
from openshelf.twin._tasks import Change, Tasks, run

NAMES = ("ring", "tree", "halving_doubling", "direct", "hierarchical", "in_switch")
_IN_GROUPS = ("ring", "halving_doubling", "direct")  # algorithms among the ranks of one dimension
_TREE_CHUNKS = 16
_MOST_TREE_FLOWS = 200_000
_MOST_PAIRS = 4_000_000  # flows of a direct exchange; above, `best` does not try it


@dataclass(frozen=True)
class Collective:
    """A collective's time, simulated; `how` says by what means, `load` what it did to the links."""

    kind: str
    algorithm: str
    ranks: int
    nbytes: float
    seconds: float
    how: str
    flows: int
    load: tuple[Load, ...]
    source: str = ""
    """The least trustworthy kind of figure that went into it, where a fabric says."""
    beyond: tuple[str, ...] = ()
    """Which sizes were extrapolated."""

    @property
    def bytes_per_s(self) -> float:
        """Bytes of the collective by its time: what nccl-tests call algorithm bandwidth."""
        return self.nbytes / self.seconds if self.seconds else math.inf

    @property
    def bus_bytes_per_s(self) -> float:
        """What nccl-tests call bus bandwidth: comparable with a link's."""
        parts = {"all_reduce": 2 * (self.ranks - 1) / self.ranks, "broadcast": 1.0, "send_recv": 1.0}
        return self.bytes_per_s * parts.get(self.kind, (self.ranks - 1) / self.ranks)

    def plain(self) -> dict[str, Any]:
        """Plain values for `json`."""
        return {
            "kind": self.kind, "algorithm": self.algorithm, "ranks": self.ranks, "bytes": self.nbytes,
            "seconds": self.seconds, "bytes_per_s": self.bytes_per_s, "bus_bytes_per_s": self.bus_bytes_per_s,
            "how": self.how, "flows": self.flows, "source": self.source, "beyond": list(self.beyond),
            "load": [each.plain() for each in self.load],
        }  # fmt: skip


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

        `chunks` cuts it into parts: a tree passes them on one behind the other (default 16), others do one after the
        other. `how="graph"` simulates every flow where one solve of each step would do.
        """
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
        key = (kind, nbytes, algorithm, who.tobytes(), dimension, chunks, how, salt)
        if key not in self._known:
            if algorithm == "best":
                among = len(who) if dimension is None else self._dimensions(len(who))[dimension]
                names = [name for name in self.applicable(kind, among) if dimension is None or name in _IN_GROUPS]
                tried = [self.collective(kind, nbytes, algorithm=name, ranks=who, dimension=dimension, chunks=chunks,
                                         how=how, salt=salt) for name in names]  # fmt: skip
                self._known[key] = min(tried, key=lambda each: each.seconds)
            else:
                self._known[key] = self._simulate(kind, nbytes, algorithm, who, dimension, chunks, how, salt)
        return self._known[key]

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

    def _simulate(
        self,
        kind: str,
        nbytes: float,
        algorithm: str,
        who: Ids,
        dimension: int | None,
        chunks: int,
        how: str,
        salt: int,
    ) -> Collective:
        if dimension is not None and algorithm not in _IN_GROUPS:
            raise BadInput(f"in one dimension there is {', '.join(_IN_GROUPS)}; {algorithm!r} came")
        if algorithm == "in_switch":
            return self._in_switch(kind, nbytes, who, salt)
        parts = chunks or (_TREE_CHUNKS if (kind, algorithm) == ("all_reduce", "tree") else 1)
        setting = Setting(self.network, who, self.costs, self.reduce_bytes_per_s, salt)
        if (kind, algorithm) == ("all_reduce", "tree"):
            steps = steps_of(kind, algorithm, len(who), nbytes)
            seconds, found = run(graph_of(setting, steps, parts), (), self.window_s).seconds, GRAPH
        else:
            sizes = self._dimensions(len(who))
            if dimension is None:
                steps = steps_of(kind, algorithm, len(who), nbytes / parts, sizes)
            else:
                stride = math.prod(sizes[:dimension])
                inside = steps_of(kind, algorithm, sizes[dimension], nbytes / parts)
                steps = [in_groups(step, len(who), sizes[dimension], stride) for step in inside]
            seconds, found = seconds_of(setting, steps, how)
            seconds *= parts
            steps = [replace(step, times=step.times * parts) for step in steps]
        load = load_of(self.network, self._carried(setting, steps), seconds)
        flows = sum(step.flows for step in steps) * (parts if algorithm == "tree" else 1)
        return Collective(kind, algorithm, len(who), nbytes, seconds, found, flows, load, *self._trust(setting, steps))

    def _in_switch(self, kind: str, nbytes: float, who: Ids, salt: int) -> Collective:
        """One stream to a root and back, over all ways at once: switches add up what comes and copy what goes."""
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

    def _carried(self, setting: Setting, steps: Sequence[Step]) -> Values:
        """Wire bytes over each resource."""
        total: NDArray[np.float64] = np.zeros(self.network.resources)
        for step in steps:
            src, dst = setting.ranks[step.src], setting.ranks[step.dst]
            at, path = self.network.paths(src, dst, setting.salt)
            size = np.full(len(src), step.nbytes)
            _, wire, _ = priced(self.costs, self.network, src, dst, size, at, path)
            weights = np.repeat(wire * step.times, np.diff(at))
            total += np.bincount(path, weights, minlength=self.network.resources)
        return total
