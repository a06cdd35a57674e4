"""What stays in the arena from call to call: at its top, beside the part that plans are made for.

Where a program is run again and again, a token each time, everything that stays is read once instead of every time.
Storages that stay are no longer a plan's concern: the program that is planned does without them. What stays is spread
evenly among what does not, so that reads have computing to hide behind everywhere.

What stays takes room from what moves: the more of it, the less can be read ahead. `choose_resident` tries shares of
the budget, the largest first, each with a short search, until one takes no longer than computing. Else it takes the
fastest, and of those that are alike the one that moves the least.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence

from openshelf.offload.planner.search import search
from openshelf.offload.program.lifetimes import Lifetimes, lifetimes, padded
from openshelf.offload.program.program import Op, Program
from openshelf.offload.program.rates import Rates

SHARES = (1.0, 0.9, 0.75, 0.5, 0.25, 0.0)  # of what the largest operator leaves
ALIKE = 1.01  # seconds that are no reason to move more bytes

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


def choose_resident(program: Program, budget: int, rates: Rates, dram: int, time_limit: float) -> list[int]:
    """Storages that are to stay; there is a plan for all others in what they leave of the budget."""
    known = lifetimes(program)
    items = [(s,) for s in _able(program, known)]
    rooms = [sum(known.sizes[s] for (s,) in items), *(int((budget - known.least) * share) for share in SHARES)]
    found: list[tuple[float, int, list[int]]] = []
    for room in rooms:
        resident = [s for (s,) in spread(items, known.sizes, room)] if room else []
        moving = without(program, resident)
        left = budget - sum(known.sizes[s] for s in resident)
        if left < lifetimes(moving).least or any(resident == other for _, _, other in found):
            continue
        times = search(moving, left, rates, dram, time_limit / len(rooms))[0].times
        found.append((times.seconds, sum(times.moved.values()), resident))
        if times.seconds <= ALIKE * sum(op.seconds for op in program.ops):
            break
    least = min(seconds for seconds, _, _ in found)
    return min((one for one in found if one[0] <= ALIKE * least), key=lambda one: one[1])[2]


def _able(program: Program, known: Lifetimes) -> list[int]:
    """Weights, buffers and states in the order of their first use, but for those that are as given in every call."""
    changed = {s for op in program.ops for s in op.changes}
    able = [
        (uses[0].position, storage.index)
        for storage, uses in zip(program.storages, known.uses, strict=True)
        if uses and storage.given and storage.nbytes and storage.kind in ("weight", "buffer", "state")
        and (storage.kept or storage.index not in changed)
    ]  # fmt: skip
    return [s for _, s in sorted(able)]
