"""Collectives in several dimensions: an algorithm in each, every dimension moving less than the one before.

Ranks that fill a part of the network's dimensions (whole nodes, or the same accelerators of some nodes) have dimensions
of their own: the coordinates that occur. An all-reduce reduce-scatters up the dimensions, all-reduces in the last, and
gathers back down. An all-to-all goes through one dimension after the other, all bytes in each. A broadcast scatters in
the root's group, so that every rail carries a part, broadcasts along the last dimension, and gathers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from openshelf.errors import BadInput
from openshelf.fabric import Ids
from openshelf.twin.algorithms import Step, scatter, steps_of

BY = " x "
"""Joins the names of the algorithms in each dimension, the first dimension first: `direct x ring`."""
SCATTERS = ("ring", "rings", "direct", "halving_doubling", "in_switch")
RAILS = "rails"
"""An all-to-all in which bytes change rails inside their node; a rail is what all first dimensions have alike."""
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")


def filled(dimensions: Sequence[int], ranks: Ids) -> tuple[tuple[int, ...], tuple[int, ...], Ids]:
    """The sizes of the dimensions that ranks fill, which of the network's they are, and the ranks in their order.

    The first rank comes first. Ranks that fill no more than one dimension have no sizes.
    """
    sizes: list[int] = []
    which: list[int] = []
    stride, place = 1, np.zeros(len(ranks), np.int64)
    for number, extent in enumerate(dimensions):
        values, at = np.unique(ranks // stride % extent, return_inverse=True)
        if len(values) > 1:
            at = (at.ravel() - at.ravel()[0]) % len(values)
            place += at * math.prod(sizes)
            sizes.append(len(values))
            which.append(number)
        stride *= extent
    if len(sizes) < 2 or math.prod(sizes) != len(ranks):
        return (), (), ranks
    return tuple(sizes), tuple(which), ranks[np.argsort(place)]


def divided(dimensions: Sequence[int], ranks: Ids) -> tuple[tuple[int, ...], tuple[int, ...], Ids]:
    """The same of ranks that fill nodes unevenly: as many equal groups in each node as it has room for.

    Of nodes with 8, 8 and 4 ranks it makes five groups of 4. There are no sizes where groups would be of one.
    """
    if len(dimensions) != 2:
        return (), (), ranks
    ordered = np.sort(ranks)
    _, counts = np.unique(ordered // dimensions[0], return_counts=True)
    size = int(np.gcd.reduce(counts))
    if size < 2 or len(counts) < 2:
        return (), (), ranks
    first = int(np.flatnonzero(ordered == ranks[0])[0]) // size  # the root's group comes first, and in it the root
    groups = np.roll(ordered.reshape(-1, size), -first, axis=0)
    at = int(np.flatnonzero(groups[0] == ranks[0])[0])
    return (size, len(groups)), (0, 1), np.roll(groups, -at, axis=1).ravel()


def names_in(algorithm: str, dimensions: int) -> list[str]:
    """The algorithm in each dimension."""
    if algorithm == "hierarchical":
        return ["ring"] * dimensions
    names = algorithm.split(BY)
    if len(names) != dimensions:
        raise BadInput(
            f"{algorithm!r} names {len(names)} algorithms; the ranks fill {dimensions} dimensions of the network: give "
            "one for each, such as 'direct x ring'"
        )
    return names


def steps_in(
    kind: str,
    names: Sequence[str],
    sizes: Sequence[int],
    nbytes: float,
    first: int = 0,
    made_before: dict[Any, list[Step]] | None = None,
) -> list[Step]:
    """The steps of a collective by an algorithm in each dimension, begun in dimension `first` and going round.

    `made_before` keeps phases: what several combinations have in common is the same object, and solved once.
    """
    if kind not in KINDS:
        raise BadInput(f"there is no {kind} in several dimensions; there is one for {', '.join(KINDS)}")
    ranks, made = math.prod(sizes), _Phases(tuple(sizes), {} if made_before is None else made_before)
    order = [*range(first, len(sizes)), *range(first)]
    if kind == "all_to_all":
        for at in order:
            made.add(kind, names[at], at, nbytes)
        return made.steps
    done: list[int] = []
    size = nbytes
    for at in order[:-1] if kind in ("all_reduce", "broadcast") else order if kind == "reduce_scatter" else []:
        if kind == "broadcast":
            made.add("scatter", "direct", at, size, tuple(done))
        else:
            made.add("reduce_scatter", names[at], at, size)
        size /= sizes[at]
        done.append(at)
    last = order[-1]
    if kind == "all_reduce":
        made.add("all_reduce", names[last], last, size)
    elif kind == "broadcast":
        made.add("broadcast", names[last], last, size, tuple(done))
    if kind in ("all_reduce", "broadcast"):
        gathers = list(reversed(order[:-1]))
    else:
        gathers, size = ([], 0.0) if kind == "reduce_scatter" else (list(reversed(order)), nbytes / ranks)
    for at in gathers:
        size *= sizes[at]
        gather = names[at] if names[at] in SCATTERS else "direct"
        made.add("all_gather", gather, at, size)
    return made.steps


def by_rails(sizes: Sequence[int], nbytes: float) -> list[Step]:
    """All-to-all by way of the own node's rank on the target's rail (NCCL's PXN): one step."""
    ranks, per_node = math.prod(sizes), sizes[0]
    (step,) = steps_of("all_to_all", "direct", ranks, nbytes)
    return [replace(step, over=step.src // per_node * per_node + step.dst % per_node)]


class _Phases:
    """Steps in the making: one phase after the other, each in one dimension."""

    def __init__(self, sizes: tuple[int, ...], kept: dict[Any, list[Step]]) -> None:
        self.sizes = sizes
        self.steps: list[Step] = []
        self._kept = kept
        self._phase = 0

    def add(self, kind: str, name: str, dimension: int, nbytes: float, free: tuple[int, ...] | None = None) -> None:
        """By all groups of ranks that differ in that coordinate; with `free`, by those whose others are the root's."""
        key = (kind, name, self.sizes, dimension, free)
        if key not in self._kept:
            size, stride = self.sizes[dimension], math.prod(self.sizes[:dimension])
            steps = [scatter(size, 1.0)] if kind == "scatter" else steps_of(kind, name, size, 1.0)
            every = np.arange(math.prod(self.sizes), dtype=np.int64)
            base = every[every // stride % size == 0]
            for other in range(len(self.sizes)):
                if free is not None and other not in (*free, dimension):
                    base = base[base // math.prod(self.sizes[:other]) % self.sizes[other] == 0]
            self._kept[key] = [in_groups(step, base, stride) for step in steps]
        own = (*key, nbytes, self._phase)
        if own not in self._kept:
            self._kept[own] = [
                replace(step, nbytes=step.nbytes * nbytes, phase=self._phase) for step in self._kept[key]
            ]
        self.steps += self._kept[own]
        self._phase += 1


def in_groups(step: Step, base: Ids, stride: int) -> Step:
    """A step among some ranks, done by the groups that begin at `base` and go on by `stride`."""
    src = (base[:, None] + step.src[None, :] * stride).ravel()
    dst = (base[:, None] + step.dst[None, :] * stride).ravel()
    return replace(step, src=src, dst=dst)
