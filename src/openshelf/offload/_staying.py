"""Which weights and states stay in the arena from call to call, instead of being read, and stored, each time.

What stays takes room from what moves: the more of it, the less can be read ahead. Shares of the budget are tried, the
largest first, each with a short search, until one takes no longer than computing; else the fastest is taken, and of
those that are alike the one that moves the least.
"""

from __future__ import annotations

from openshelf.offload._lifetimes import Lifetimes, lifetimes
from openshelf.offload._program import Program
from openshelf.offload._rates import Rates
from openshelf.offload._schedule import schedule
from openshelf.offload._stay_between import spread, without

SHARES = (1.0, 0.9, 0.75, 0.5, 0.25, 0.0)  # of what the largest operator leaves
ALIKE = 1.01  # seconds that are no reason to move more bytes


def choose_staying(program: Program, budget: int, rates: Rates, dram: int, time_limit: float) -> list[int]:
    """Storages that are to stay; there is a plan for all others in what they leave of the budget."""
    known = lifetimes(program)
    items = [(s,) for s in _able(program, known)]
    rooms = [sum(known.sizes[s] for (s,) in items), *(int((budget - known.least) * share) for share in SHARES)]
    found: list[tuple[float, int, list[int]]] = []
    for room in rooms:
        staying = [s for (s,) in spread(items, known.sizes, room)] if room else []
        moving = without(program, staying)
        left = budget - sum(known.sizes[s] for s in staying)
        if left < lifetimes(moving).least or any(staying == other for _, _, other in found):
            continue
        times = schedule(moving, left, rates, dram, time_limit / len(rooms))[0].times
        found.append((times.seconds, sum(times.moved.values()), staying))
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
