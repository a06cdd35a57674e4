"""`best`: the fastest of all algorithms, in as many chunks as are fastest.

An algorithm that could not win is not simulated: no chunks make it faster than the delays of one chunk in a row, nor
than what its busiest resource has to carry. These bounds are cheap, and those of the winner are close to its time.
"""

from __future__ import annotations

from collections.abc import Callable

from openshelf.twin.flows import Setting, busiest, least_delay, step_at_least
from openshelf.twin.plans import MOST_CHUNKS, Ask, Plan, Plans
from openshelf.twin.steps import DRIFTING, GRAPH, piped_seconds, seconds_of

_MOST_FLOWS = 1_000_000  # simulated one by one, for the most promising algorithms first; then no more are tried
_ROW = 0.7  # of what steps take one after the other, which ranks that drift apart may be faster than
_FAR = 1.05  # times the fastest: what is slower in many chunks is not tried in fewer
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
    spent = [0]

    def run(name: str, chunks: int) -> float:
        plan = plans.plan(name, chunks)
        seconds, how = seconds_by(setting(plan), plan, ask)
        if how in (GRAPH, DRIFTING):
            flows = sum(step.flows if how == GRAPH else len(step.src) for step in plan.variants[0])
            spent[0] += flows * (plan.chunks if plan.piped else 1)
        if not found or seconds < found[0][0]:
            found[:] = [(seconds, plan, how)]
        return seconds

    bounds = {name: least(name) for name in plans.candidates()}
    for name in sorted(bounds, key=lambda each: bounds[each]):
        if found and (bounds[name] >= found[0][0] * (1 - _GAIN) or spent[0] > _MOST_FLOWS):
            break
        whole = plans.plan(name, 1)
        in_a_row = sum(step_at_least(setting(whole), step) for step in whole.variants[0])
        _search(name, plans, run, lambda: found[0][0], not found or _ROW * in_a_row < found[0][0])
    plan = found[0][1]
    if plan.piped and not ask.chunks:
        for chunks in (plan.chunks // 2, plan.chunks * 2):
            if 1 < chunks <= MOST_CHUNKS:
                run(plan.algorithm, chunks)
    seconds, plan, how = found[0]
    return plan, seconds, how


def _search(
    name: str, plans: Plans, run: Callable[[str, int], float], fastest: Callable[[], float], whole: bool
) -> None:
    """In as many chunks as there may be, and in fewer if that comes near; whole, if that may be fastest."""
    if plans.ask.chunks:
        run(name, plans.ask.chunks)
        return
    most = plans.plan(name, MOST_CHUNKS)
    chunks = most.chunks if most.piped else 1
    if whole or chunks == 1:
        run(name, 1)
    if chunks == 1:
        return
    if run(name, chunks) > _FAR * fastest():
        return
    for fewer in (2, 8, 32, 128):
        if fewer < chunks:
            run(name, fewer)
