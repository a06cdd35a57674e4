"""What stays in the arena from call to call: at its top, beside the part that plans are made for.

Where a program is run again and again, a token each time, everything that stays is read once instead of every time.
Storages that stay are no longer a plan's concern: the program that is planned does without them. What stays is spread
evenly among what does not, so that reads have computing to hide behind everywhere.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence

from openshelf.offload._lifetimes import lifetimes, padded
from openshelf.offload._program import Op, Program

Item = tuple[int, ...]  # storages that stay, or not, together


def spread(items: Sequence[Item], sizes: Sequence[int], room: int) -> list[Item]:
    """As many of the items as fit, evenly among the others; the first ones stay."""
    weights = [sum(padded(sizes[s]) for s in item) for item in items]
    total = sum(weights)
    if total <= room:
        return list(items)
    credit, taken = float(max(weights)), 0
    found: list[Item] = []
    for item, weight in zip(items, weights, strict=True):
        credit += weight * room / total
        if weight <= credit and taken + weight <= room:
            found.append(item)
            credit -= weight
            taken += weight
    return found


def offsets_from_top(storages: Iterable[int], sizes: Sequence[int], top: int) -> dict[int, int]:
    """Where each is: one below the other."""
    found: dict[int, int] = {}
    for s in storages:
        top -= padded(sizes[s])
        found[s] = top
    return found


def without(program: Program, stay: Iterable[int]) -> Program:
    """The program as if it did not touch these storages. What depends on one that changes cannot run again later."""
    gone = set(stay)
    changing = gone & {s for op in program.ops for s in op.changes}

    def left(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number for number in numbers if number not in gone)

    ops: list[Op] = [
        dataclasses.replace(
            op,
            reads=left(op.reads),
            changes=left(op.changes),
            makes=left(op.makes),
            again=op.again and changing.isdisjoint(op.touches),
        )
        for op in program.ops
    ]
    key = hashlib.sha256(f"{program.key} without {sorted(gone)}".encode()).hexdigest() if program.key else ""
    storages = tuple(
        dataclasses.replace(one, nbytes=0, given=True, kept=False) if one.index in gone else one
        for one in program.storages
    )
    return Program(tuple(ops), storages, key)


def enough(program: Program, stays: Sequence[int]) -> int:
    """Bytes of an arena in which these stay, and operators have all the room that they can use for the rest."""
    rest = lifetimes(without(program, stays)).live_peak
    return sum(padded(program.storages[s].nbytes) for s in stays) + padded(rest + rest // 4)
