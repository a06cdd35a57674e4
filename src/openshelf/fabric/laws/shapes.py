"""What a collective asks of a library, by the shape in which the library does it.

Among p ranks, of n bytes, a shape makes so many steps one after the other, moves so many times n over each rank's
links, and touches so many times n by the rank's own processors while nothing else goes on:

| shape | does | steps | moved | own |
|---|---|---|---|---|
| ring | all-reduce; half of it: reduce-scatter, all-gather | 2 (p - 1) | 2 (p - 1) / p | 1 / p |
| in_switch | all-reduce by switches that add up | 0 | 1 + 1 / p | 0 |
| one_shot | all-reduce: every rank reads all that others have | p - 1 | p - 1 | 0 |
| two_shot | all-reduce: every rank adds up its part, then reads the others' | p - 1 | 2 (p - 1) / p | 1 / p |
| exchange | all-to-all over all channels; send and receive | p - 1 | (p - 1) / p | 1 / p |
| peers | the same, each peer on a channel of its own | p - 1 | 1 / p | 0 |

A rank that adds up in the switch reads a p-th of the sum and writes it to all; its link carries what the others read
and what they write. A tree is not here: where it is chosen, a ring with small steps is as good a description.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Shape = Literal["ring", "in_switch", "one_shot", "two_shot", "exchange", "peers"]

_OF_RING = {"all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0, "broadcast": 1.0}
_OF_PAIRS = ("all_to_all", "send_recv")


@dataclass(frozen=True)
class Work:
    """Steps one after the other, and times the bytes of the collective: moved by a rank's links, touched by itself."""

    steps: float
    moved: float
    own: float


def work(shape: Shape, kind: str, ranks: int) -> Work | None:
    """What a kind of collective among so many ranks asks for; None if the shape cannot do it."""
    others = ranks - 1
    if shape == "ring" and kind in _OF_RING:
        steps = _OF_RING[kind] * others
        return Work(steps, steps / ranks, 1 / ranks)
    if shape in ("exchange", "peers") and kind in _OF_PAIRS:
        if kind == "send_recv":
            return Work(1, 1, 0)
        return Work(others, others / ranks, 1 / ranks) if shape == "exchange" else Work(others, 1 / ranks, 0)
    if kind != "all_reduce":
        return None
    if shape == "in_switch" and ranks > 2:  # two ranks have nothing to gain
        return Work(0, 1 + 1 / ranks, 0)
    if shape == "one_shot":
        return Work(others, others, 0)
    if shape == "two_shot":
        return Work(others, 2 * others / ranks, 1 / ranks)
    return None
