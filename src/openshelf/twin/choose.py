"""`best`: the fastest of all algorithms, in as many chunks as are fastest.

An algorithm that could not win is not simulated: no chunks make it faster than the delays of one chunk in a row, nor than
what its busiest resource has to carry. These bounds are cheap, and those of the winner are close to its time.
"""

from __future__ import annotations

from collections.abc import Callable

from openshelf.twin.flows import Setting, busiest, least_delay
from openshelf.twin.plans import MOST_CHUNKS, Ask, Plan, Plans
from openshelf.twin.steps import piped_seconds, seconds_of

_GAIN = 1e-6  # the least part that an algorithm has to be able to win to be tried


def seconds_by(setting: Setting, plan: Plan, ask: Ask) -> tuple[float, str]:
    """The seconds of a plan, and how they were found."""
    if plan.piped:
        return piped_seconds(setting, plan.variants, plan.chunks, ask.active, ask.how)
    seconds, how = seconds_of(setting, plan.variants[0], ask.how)
    return seconds * plan.chunks, how


def best_of(plans: Plans, setting_of: Callable[[Plan], Setting]) -> tuple[Plan, float, str]:
    """The fastest plan, its seconds, and how they were found."""
    ask, settings = plans.ask, dict[bytes, Setting]()

    def setting(plan: Plan) -> Setting:
        return settings.setdefault(plan.ranks.tobytes(), setting_of(plan))

    def least(name: str) -> float:
        whole, cut = plans.plan(name, ask.chunks or 1), plans.plan(name, ask.chunks or MOST_CHUNKS)
        every = [step for steps in whole.variants for step in steps]
        wires = busiest(setting(whole), every) * whole.chunks / len(whole.variants)
        if not cut.piped:
            return max(wires, whole.chunks * least_delay(setting(whole), whole.variants[0]))
        return max(wires, least_delay(setting(cut), cut.variants[0]))

    found: list[tuple[float, Plan, str]] = []

    def run(name: str, chunks: int) -> float:
        plan = plans.plan(name, chunks)
        seconds, how = seconds_by(setting(plan), plan, ask)
        if not found or seconds < found[0][0]:
            found[:] = [(seconds, plan, how)]
        return seconds

    bounds = {name: least(name) for name in plans.candidates()}
    for name in sorted(bounds, key=lambda each: bounds[each]):
        if found and bounds[name] >= found[0][0] * (1 - _GAIN):
            break
        _search(name, plans, run)
    seconds, plan, how = found[0]
    return plan, seconds, how


def _search(name: str, plans: Plans, run: Callable[[str, int], float]) -> None:
    """Whole, then in as many chunks as there may be, and half as many while that is faster."""
    if plans.ask.chunks:
        run(name, plans.ask.chunks)
        return
    chunks = plans.plan(name, MOST_CHUNKS).chunks
    run(name, 1)
    if chunks == 1 or not plans.plan(name, MOST_CHUNKS).piped:
        return
    seconds = run(name, chunks)
    while chunks > 2:
        chunks //= 2
        found = run(name, chunks)
        if found >= seconds:
            return
        seconds = found
