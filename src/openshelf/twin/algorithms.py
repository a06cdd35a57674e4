"""Collectives as steps: who sends how much to whom at the same time, and how often over.

Sizes are as users of NCCL know them: all-reduce and broadcast of `nbytes` at every rank; reduce-scatter from `nbytes`
at every rank; all-gather to `nbytes` at every rank; all-to-all of `nbytes` at every rank, of which each other one gets
its part. A rank sends in a step when what it received in the steps before has arrived; nothing else holds it back.
Algorithms in several dimensions are in `dimensions.py`, made of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from openshelf.errors import BadInput
from openshelf.fabric import Ids

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv")


@dataclass(frozen=True)
class Step:
    """src[i] sends `nbytes` to dst[i], all at the same time, `times` over; what arrives may be reduced.

    With `inside`, switches reduce what goes `up` to them, copy what comes `down`, or both: of the way to the next rank
    round a ring only that half is used. So every link to the switches that join all ranks carries one stream. `phase`
    counts the dimensions that a collective has been through.
    """

    src: Ids
    dst: Ids
    nbytes: float
    times: int = 1
    reduces: bool = False
    inside: Literal["", "up", "down", "both"] = ""
    phase: int = 0
    late_s: float = 0.0
    """What comes before it beside what flows cost: a switch that is turned."""
    over: Ids | None = None
    """By way of these ranks, each of which takes in a whole message before it sends it on."""

    @property
    def flows(self) -> int:
        return len(self.src) * self.times


def steps_of(kind: str, algorithm: str, ranks: int, nbytes: float) -> list[Step]:
    """The steps of a collective by one algorithm among all ranks; they are 0 to `ranks` - 1."""
    made = ALGORITHMS.get((kind, algorithm))
    if made is None:
        known = [name for each, name in ALGORITHMS if each == kind]
        raise BadInput(f"there is no {kind} by {algorithm!r}; there is {', '.join(known)}")
    return made(ranks, nbytes)


def _ring(ranks: int, nbytes: float, times: int, reduces: bool = False) -> Step:
    here = np.arange(ranks, dtype=np.int64)
    return Step(here, (here + 1) % ranks, nbytes / ranks, times, reduces)


def _rings(ranks: int, nbytes: float, reduces: bool = False) -> Step:
    """Half of it round one way, half round the other."""
    if ranks == 2:
        return _ring(ranks, nbytes, 1, reduces)
    here = np.arange(ranks, dtype=np.int64)
    src, dst = np.concatenate([here, here]), np.concatenate([(here + 1) % ranks, (here - 1) % ranks])
    return Step(src, dst, nbytes / (2 * ranks), ranks - 1, reduces)


def _pairs(ranks: int, nbytes: float, reduces: bool = False) -> Step:
    """Everybody to everybody: first to the next rank, then to the one after it, so that no rank is hit by all."""
    return Step(*_everybody(ranks), nbytes, 1, reduces)


@lru_cache(maxsize=4)  # the same objects for equal steps: their ways are found once
def _everybody(ranks: int) -> tuple[Ids, Ids]:
    offset = np.repeat(np.arange(1, ranks, dtype=np.int64), ranks)
    src = np.tile(np.arange(ranks, dtype=np.int64), ranks - 1)
    return src, (src + offset) % ranks


def _halving(ranks: int, nbytes: float) -> list[Step]:
    """Partners at distance 1, 2, 4 ... exchange halves, quarters ... and reduce them."""
    if ranks & (ranks - 1):
        raise BadInput(f"halving-doubling needs a power of two of ranks; {ranks} came")
    here = np.arange(ranks, dtype=np.int64)
    distances = [1 << bit for bit in range(ranks.bit_length() - 1)]
    return [Step(here, here ^ distance, nbytes / (2 * distance), 1, True) for distance in distances]


def _gathering(ranks: int, nbytes: float) -> list[Step]:
    return [replace(step, reduces=False) for step in reversed(_halving(ranks, nbytes))]


def _doubling(ranks: int, nbytes: float) -> list[Step]:
    """Partners at distance 1, 2, 4 ... exchange all they have; ranks above a power of two join by a partner below."""
    power = 1 << (ranks.bit_length() - 1)
    here, above = np.arange(power, dtype=np.int64), np.arange(power, ranks, dtype=np.int64)
    steps = [Step(here, here ^ (1 << bit), nbytes, 1, True) for bit in range(power.bit_length() - 1)]
    if len(above):
        steps = [Step(above, above - power, nbytes, 1, True), *steps, Step(above - power, above, nbytes)]
    return steps


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


def _from_root(ranks: int, nbytes: float) -> list[Step]:
    """The root gives half to the root of each of two trees over the others."""
    if ranks < 4:
        return _chain(ranks, nbytes)
    first = Step(np.zeros(2, np.int64), np.array([1, ranks - 1]), nbytes / 2)
    return [first, *(replace(step, src=step.src + 1, dst=step.dst + 1) for step in _down(ranks - 1, nbytes))]


def _chain(ranks: int, nbytes: float) -> list[Step]:
    return [Step(np.array([i]), np.array([i + 1]), nbytes) for i in range(ranks - 1)]


def _spread(ranks: int, nbytes: float) -> list[Step]:
    """Broadcast by a binomial tree: who has it sends it on, twice as many in each step."""
    made, have = [], 1
    while have < ranks:
        src = np.arange(min(have, ranks - have), dtype=np.int64)
        made.append(Step(src, src + have, nbytes))
        have *= 2
    return made


def scatter(ranks: int, nbytes: float) -> Step:
    """Rank 0 gives every other one its part."""
    others = np.arange(1, ranks, dtype=np.int64)
    return Step(np.zeros_like(others), others, nbytes / ranks)


def _one(ranks: int, nbytes: float) -> list[Step]:
    if ranks != 2:
        raise BadInput(f"send_recv is between 2 ranks; {ranks} came")
    return [Step(np.zeros(1, np.int64), np.ones(1, np.int64), nbytes)]


def _to_all(ranks: int, nbytes: float) -> Step:
    others = np.arange(1, ranks, dtype=np.int64)
    return Step(np.zeros_like(others), others, nbytes)


def _inside(ranks: int, nbytes: float, way: Literal["up", "down", "both"]) -> list[Step]:
    here = np.arange(ranks, dtype=np.int64)
    return [Step(here, (here + 1) % ranks, nbytes, 1, False, way)]


ALGORITHMS: dict[tuple[str, str], Callable[[int, float], list[Step]]] = {
    ("all_reduce", "ring"): lambda n, s: [_ring(n, s, n - 1, True), _ring(n, s, n - 1)],
    ("all_reduce", "rings"): lambda n, s: [_rings(n, s, True), _rings(n, s)],
    ("all_reduce", "halving_doubling"): lambda n, s: [*_halving(n, s), *_gathering(n, s)],
    ("all_reduce", "doubling"): _doubling,
    ("all_reduce", "one_shot"): lambda n, s: [_pairs(n, s, True)],
    ("all_reduce", "direct"): lambda n, s: [_pairs(n, s / n, True), _pairs(n, s / n)],
    ("all_reduce", "tree"): lambda n, s: [*_up(n, s), *_down(n, s)],
    ("all_reduce", "in_switch"): lambda n, s: _inside(n, s, "both"),
    ("reduce_scatter", "ring"): lambda n, s: [_ring(n, s, n - 1, True)],
    ("reduce_scatter", "rings"): lambda n, s: [_rings(n, s, True)],
    ("reduce_scatter", "halving_doubling"): _halving,
    ("reduce_scatter", "direct"): lambda n, s: [_pairs(n, s / n, True)],
    ("reduce_scatter", "in_switch"): lambda n, s: _inside(n, s, "up"),
    ("all_gather", "ring"): lambda n, s: [_ring(n, s, n - 1)],
    ("all_gather", "rings"): lambda n, s: [_rings(n, s)],
    ("all_gather", "halving_doubling"): _gathering,
    ("all_gather", "direct"): lambda n, s: [_pairs(n, s / n)],
    ("all_gather", "in_switch"): lambda n, s: _inside(n, s, "down"),
    ("all_to_all", "direct"): lambda n, s: [_pairs(n, s / n)],
    ("all_to_all", "ring"): lambda n, s: [_ring(n, s, n * (n - 1) // 2)],
    ("broadcast", "tree"): _spread,
    ("broadcast", "direct"): lambda n, s: [_to_all(n, s)],
    ("broadcast", "ring"): lambda n, s: [scatter(n, s), _ring(n, s, n - 1)],
    ("broadcast", "chain"): _chain,
    ("broadcast", "two_trees"): _from_root,
    ("send_recv", "direct"): _one,
}
"""Every collective by every algorithm among all its ranks."""

NAMES = tuple(dict.fromkeys(name for _, name in ALGORITHMS))


def fits(kind: str, algorithm: str, ranks: int) -> bool:
    """Whether there is such an algorithm for so many ranks."""
    return (kind, algorithm) in ALGORITHMS and not (algorithm == "halving_doubling" and ranks & (ranks - 1))
