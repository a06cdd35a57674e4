"""Collectives of ranks that fill nodes unevenly: a core of equal nodes does it, and the others go through the core.

Of nodes with 8, 8 and 4 ranks the first two are the core. The third reduces in itself, gives the core what it has, and
gets back what came of it; each of its ranks does so with the ranks on its own rail, an equal part with each node of the
core. So no node sends more than once what a ring round all nodes would have it send twice. If the core takes fewer
ranks than one of its nodes has, the others of that node give theirs to those, and get it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from openshelf.fabric import Ids
from openshelf.twin.algorithms import Step, steps_of
from openshelf.twin.dimensions import steps_in

FOLDED = "folded "
"""Before the algorithms of the core's dimensions, of which a core of one node, or of one rank in each, has one."""
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")


@dataclass(frozen=True)
class Folding:
    """Ranks in the order of the core, first dimension first, then the others; who of them is what.

    `small` has the places of the ranks of each node that is not in the core, `more` those of core nodes beyond the
    core, with the places of those of the core beside them. `rail` is where in its node each rank is.
    """

    ranks: Ids
    sizes: tuple[int, ...]
    nodes: int
    small: tuple[Ids, ...]
    more: tuple[tuple[Ids, Ids], ...]
    rail: Ids

    @property
    def core(self) -> int:
        return self.nodes * self.each

    @property
    def each(self) -> int:
        """Ranks of the core in each of its nodes."""
        return (len(self.ranks) - sum(map(len, self.small)) - sum(len(own) for own, _ in self.more)) // self.nodes


def folding(per_node: int, ranks: Ids, first_in_core: bool = False) -> Folding | None:
    """The core that moves the least over the busiest rail; None where all nodes have as many ranks.

    With `first_in_core` the first rank is in the core, as a root has to be.
    """
    node = ranks // per_node
    which, counts = np.unique(node, return_counts=True)
    if len(which) < 2 or np.ptp(counts) == 0:
        return None
    most = int(counts[which == node[0]][0]) if first_in_core else int(counts.max())
    tried = [int(each) for each in np.unique(counts) if each <= most and each * (counts >= each).sum() > 1]
    if not tried:
        return None
    each = min(tried, key=lambda size: (_busiest(counts, size), size))
    return _folded(per_node, ranks, each)


def _busiest(counts: Ids, each: int) -> float:
    """Times all bytes that the busiest rail carries one way, if the core has so many ranks in each node."""
    small, nodes = counts[counts < each], int((counts >= each).sum())
    core = 2 * (nodes - 1) / (nodes * each) + float((1 / small).sum()) / nodes
    return float(max([core, *(1 / small).tolist()]))


def _folded(per_node: int, ranks: Ids, each: int) -> Folding:
    node = ranks // per_node
    own = [ranks[node == number] for number in dict.fromkeys(node.tolist())]  # the first rank's node comes first
    core = [some for some in own if len(some) >= each]
    order = [some[:each] for some in core]
    more, small, place = [], [], each * len(core)
    for number, some in enumerate(core):
        if len(some) > each:
            holders = np.arange(number * each, (number + 1) * each, dtype=np.int64)
            more.append((np.arange(place, place + len(some) - each, dtype=np.int64), holders))
            order.append(some[each:])
            place += len(some) - each
    for some in own:
        if len(some) < each:
            small.append(np.arange(place, place + len(some), dtype=np.int64))
            order.append(some)
            place += len(some)
    every = np.concatenate(order)
    sizes = tuple(size for size in (each, len(core)) if size > 1)
    return Folding(every, sizes, len(core), tuple(small), tuple(more), every % per_node)


def folded_steps(
    kind: str, names: Sequence[str], fold: Folding, nbytes: float, kept: dict[Any, list[Step]]
) -> list[Step]:
    """Into the core, through it, and out of it again."""
    made: list[Step] = []
    part = nbytes / len(fold.ranks)
    if kind in ("all_reduce", "reduce_scatter"):
        made += [_inside(own, nbytes / len(own), True) for own in fold.small if len(own) > 1]
        made += _over(fold, nbytes, True, 1)
        made += [_local(own, to, nbytes / len(to), True, 1) for own, to in fold.more]
    elif kind == "all_gather":
        made += _single(fold, part, True)
    if len(fold.sizes) == 1:
        core = steps_of(kind, names[0], fold.sizes[0], nbytes)
    else:
        core = steps_in(kind, names, fold.sizes, nbytes, 0, kept)
    made += [replace(step, phase=step.phase + 2) for step in core]
    after = 3 + max(step.phase for step in core)
    if kind == "reduce_scatter":
        return [*made, *(replace(step, phase=after) for step in _single(fold, part, False))]
    made += _over(fold, nbytes, False, after)
    made += [_local(to, own, nbytes / len(to), False, after) for own, to in fold.more]
    return made + [
        replace(_inside(own, nbytes / len(own), False), phase=after + 1) for own in fold.small if len(own) > 1
    ]


def _inside(own: Ids, nbytes: float, reduces: bool) -> Step:
    """Everybody of a node to everybody else of it."""
    src, dst = np.repeat(own, len(own)), np.tile(own, len(own))
    return Step(src[src != dst], dst[src != dst], nbytes, 1, reduces)


def _local(src: Ids, dst: Ids, nbytes: float, reduces: bool, phase: int) -> Step:
    """Everybody of some to everybody of others."""
    return Step(np.repeat(src, len(dst)), np.tile(dst, len(src)), nbytes, 1, reduces, phase=phase)


def _over(fold: Folding, nbytes: float, into: bool, phase: int) -> list[Step]:
    """Each rank of small nodes an equal part with each node of the core: with the rank on its rail, if it is there."""
    made = []
    for size in sorted({len(own) for own in fold.small}):
        ranks = np.concatenate([own for own in fold.small if len(own) == size])
        peers = np.array([[_peer(fold, int(rank), node) for node in range(fold.nodes)] for rank in ranks.tolist()])
        src, dst = np.repeat(ranks, fold.nodes), peers.ravel().astype(np.int64)
        first, second = (src, dst) if into else (dst, src)
        made.append(Step(first, second, nbytes / size / fold.nodes, 1, into, phase=phase))
    return made


def _single(fold: Folding, nbytes: float, into: bool) -> list[Step]:
    """Each rank beyond the core with one of it."""
    pairs = [(int(rank), int(to[i % len(to)])) for own, to in fold.more for i, rank in enumerate(own.tolist())]
    small = [rank for own in fold.small for rank in own.tolist()]
    pairs += [(rank, _peer(fold, rank, i % fold.nodes)) for i, rank in enumerate(small)]
    src, dst = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    return [Step(src, dst, nbytes) if into else Step(dst, src, nbytes)]


def _peer(fold: Folding, rank: int, node: int) -> int:
    """The rank of a node of the core on the same rail, or one for each as far as they go round."""
    own = np.arange(node * fold.each, (node + 1) * fold.each)
    same = own[fold.rail[own] == fold.rail[rank]]
    return int(same[0]) if len(same) else int(own[rank % fold.each])
