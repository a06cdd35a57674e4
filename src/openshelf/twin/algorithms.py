"""Collectives as steps: who sends how much to whom at the same time, and how often over.

Sizes are as users of NCCL know them: all-reduce and broadcast of `nbytes` at every rank; reduce-scatter from `nbytes`
at every rank; all-gather to `nbytes` at every rank; all-to-all of `nbytes` at every rank, of which each other one gets
its part. A rank sends in a step when what it received in the steps before has arrived; nothing else holds it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from openshelf.errors import BadInput
from openshelf.fabric import Ids

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv")


@dataclass(frozen=True)
class Step:
    """src[i] sends `nbytes` to dst[i], all at the same time, `times` over; what arrives may be reduced."""

    src: Ids
    dst: Ids
    nbytes: float
    times: int = 1
    reduces: bool = False

    @property
    def flows(self) -> int:
        return len(self.src) * self.times


def steps_of(kind: str, algorithm: str, ranks: int, nbytes: float, dimensions: Sequence[int] = ()) -> list[Step]:
    """The steps of a collective; ranks are 0 to `ranks` - 1."""
    if algorithm == "hierarchical":
        return _hierarchical(kind, ranks, nbytes, dimensions)
    made = ALGORITHMS.get((kind, algorithm))
    if made is None:
        known = [name for each, name in ALGORITHMS if each == kind]
        raise BadInput(f"there is no {kind} by {algorithm!r}; there is {', '.join(known)}")
    return made(ranks, nbytes)


def _ring(ranks: int, nbytes: float, times: int, reduces: bool = False) -> Step:
    here = np.arange(ranks, dtype=np.int64)
    return Step(here, (here + 1) % ranks, nbytes / ranks, times, reduces)


def _pairs(ranks: int, nbytes: float, reduces: bool = False) -> Step:
    """Everybody to everybody: first to the next rank, then to the one after it, so that no rank is hit by all."""
    offset = np.repeat(np.arange(1, ranks, dtype=np.int64), ranks)
    src = np.tile(np.arange(ranks, dtype=np.int64), ranks - 1)
    return Step(src, (src + offset) % ranks, nbytes / ranks, 1, reduces)


def _halving(ranks: int, nbytes: float) -> list[Step]:
    """Partners at distance 1, 2, 4 ... exchange halves, quarters ... and reduce them."""
    if ranks & (ranks - 1):
        raise BadInput(f"halving-doubling needs a power of two of ranks; {ranks} came")
    here = np.arange(ranks, dtype=np.int64)
    distances = [1 << bit for bit in range(ranks.bit_length() - 1)]
    return [Step(here, here ^ distance, nbytes / (2 * distance), 1, True) for distance in distances]


def _doubling(ranks: int, nbytes: float) -> list[Step]:
    return [replace(step, reduces=False) for step in reversed(_halving(ranks, nbytes))]


def _down(ranks: int, nbytes: float) -> list[Step]:
    """Two binary trees with half the bytes each, the second with the ranks in reverse: level by level from the root."""
    nodes = np.arange(1, ranks, dtype=np.int64)
    level = np.floor(np.log2(nodes + 1)).astype(np.int64)
    made = []
    for depth in range(1, int(level.max()) + 1):
        child = nodes[level == depth]
        parent = (child - 1) // 2
        src, dst = np.concatenate([parent, ranks - 1 - parent]), np.concatenate([child, ranks - 1 - child])
        made.append(Step(src, dst, nbytes / 2))
    return made


def _up(ranks: int, nbytes: float) -> list[Step]:
    return [Step(step.dst, step.src, step.nbytes, 1, True) for step in reversed(_down(ranks, nbytes))]


def _spread(ranks: int, nbytes: float) -> list[Step]:
    """Broadcast by a binomial tree: who has it sends it on, twice as many in each step."""
    made, have = [], 1
    while have < ranks:
        src = np.arange(min(have, ranks - have), dtype=np.int64)
        made.append(Step(src, src + have, nbytes))
        have *= 2
    return made


def _scatter(ranks: int, nbytes: float) -> Step:
    others = np.arange(1, ranks, dtype=np.int64)
    return Step(np.zeros_like(others), others, nbytes / ranks)


def _one(ranks: int, nbytes: float) -> list[Step]:
    if ranks != 2:
        raise BadInput(f"send_recv is between 2 ranks; {ranks} came")
    return [Step(np.zeros(1, np.int64), np.ones(1, np.int64), nbytes)]


def _to_all(ranks: int, nbytes: float) -> Step:
    others = np.arange(1, ranks, dtype=np.int64)
    return Step(np.zeros_like(others), others, nbytes)


ALGORITHMS: dict[tuple[str, str], Callable[[int, float], list[Step]]] = {
    ("all_reduce", "ring"): lambda n, s: [_ring(n, s, n - 1, True), _ring(n, s, n - 1)],
    ("all_reduce", "halving_doubling"): lambda n, s: [*_halving(n, s), *_doubling(n, s)],
    ("all_reduce", "direct"): lambda n, s: [_pairs(n, s, True), _pairs(n, s)],
    ("all_reduce", "tree"): lambda n, s: [*_up(n, s), *_down(n, s)],
    ("reduce_scatter", "ring"): lambda n, s: [_ring(n, s, n - 1, True)],
    ("reduce_scatter", "halving_doubling"): _halving,
    ("reduce_scatter", "direct"): lambda n, s: [_pairs(n, s, True)],
    ("all_gather", "ring"): lambda n, s: [_ring(n, s, n - 1)],
    ("all_gather", "halving_doubling"): _doubling,
    ("all_gather", "direct"): lambda n, s: [_pairs(n, s)],
    ("all_to_all", "direct"): lambda n, s: [_pairs(n, s)],
    ("all_to_all", "ring"): lambda n, s: [_ring(n, s, n * (n - 1) // 2)],
    ("broadcast", "tree"): _spread,
    ("broadcast", "direct"): lambda n, s: [_to_all(n, s)],
    ("broadcast", "ring"): lambda n, s: [_scatter(n, s), _ring(n, s, n - 1)],
    ("send_recv", "direct"): _one,
}
"""Every collective by every algorithm, but for `hierarchical` and `in_switch`."""


def _hierarchical(kind: str, ranks: int, nbytes: float, dimensions: Sequence[int]) -> list[Step]:
    """Reduce-scatter up the dimensions, all-gather down them, by ring in each; every dimension moves less."""
    if int(np.prod(dimensions)) != ranks or len(dimensions) < 2:
        raise BadInput(
            f"a hierarchical {kind} needs the network's dimensions to hold its ranks; {tuple(dimensions)} does not "
            f"make {ranks}"
        )
    if kind not in ("all_reduce", "reduce_scatter", "all_gather"):
        raise BadInput(f"there is no hierarchical {kind}; there is one for all_reduce, reduce_scatter and all_gather")
    up, size, stride = [], nbytes, 1
    for extent in dimensions:
        if extent > 1:
            up.append(in_groups(_ring(extent, size, extent - 1, True), ranks, extent, stride))
            size /= extent
        stride *= extent
    down = [replace(step, reduces=False) for step in reversed(up)]
    return {"all_reduce": [*up, *down], "reduce_scatter": up, "all_gather": down}[kind]


def in_groups(step: Step, ranks: int, extent: int, stride: int) -> Step:
    """A step among `extent` ranks, done by all groups of ranks that differ in one coordinate."""
    every = np.arange(ranks, dtype=np.int64)
    base = every[every // stride % extent == 0]
    src = (base[:, None] + step.src[None, :] * stride).ravel()
    dst = (base[:, None] + step.dst[None, :] * stride).ravel()
    return replace(step, src=src, dst=dst)
