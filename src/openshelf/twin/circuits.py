"""Optical switches: a port is joined with one other at a time, and being joined with another takes long.

Steps that would have a port talk with several others at once are taken apart, a peer at a time. A step in which any
port has another peer than before waits for the switch. If every port keeps its one peer, nothing waits: circuits are
set up once for many collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from openshelf.fabric import Ids, Network
from openshelf.twin.algorithms import Step


def switched(network: Network, ranks: Ids, steps: Sequence[Step]) -> list[Step]:
    """The steps with what circuits make of them; the same ones where there are none."""
    if not any(network.reconfiguration_s):
        return list(steps)
    made = [part for step in steps for part in _apart(step)]
    peers: dict[tuple[int, int], int] = {}
    changes, late = [0.0] * len(made), 0.0
    for turn in (0, 1):  # the second time round it is as the collective after this one finds it
        for number, step in enumerate(made):
            late = 0.0
            for src, dst in zip(ranks[step.src].tolist(), ranks[step.dst].tolist(), strict=True):
                for at, cost in _turned(network, src, dst):
                    if peers.get((at, src), dst) != dst:
                        late = max(late, cost)
                    peers[at, src] = dst
            changes[number] = max(changes[number], late) if turn else late
    return [replace(step, late_s=late) for step, late in zip(made, changes, strict=True)]


def _turned(network: Network, src: int, dst: int) -> list[tuple[int, float]]:
    """The dimensions with circuits that a flow crosses, and what they cost to turn."""
    found, stride = [], 1
    for at, (extent, cost) in enumerate(zip(network.dimensions, network.reconfiguration_s, strict=True)):
        if cost and src // stride % extent != dst // stride % extent:
            found.append((at, cost))
        stride *= extent
    return found


def _apart(step: Step) -> list[Step]:
    """Parts of a step in which every rank sends to one and receives from one."""
    left, made = np.arange(len(step.src)), []
    while len(left):
        _, first = np.unique(step.src[left], return_index=True)
        _, second = np.unique(step.dst[left][first], return_index=True)
        taken = np.sort(first[second])
        made.append(replace(step, src=step.src[left][taken], dst=step.dst[left][taken]))
        left = np.delete(left, taken)
    return made
