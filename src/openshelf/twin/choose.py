"""`best`: the fastest of all algorithms, in as many chunks as are fastest.

An algorithm that could not win is not simulated: no chunks make it faster than the delays of one chunk in a row, nor
than what its busiest resource has to carry. These bounds are cheap, and those of the winner are close to its time. All
that could win are tried once before any is tried in other numbers of chunks, so that where effort runs out (`_MOST`),
it is the last details that are missing.
"""

from __future__ import annotations

from collections.abc import Callable

from openshelf.twin.flows import Setting, busiest, least_delay, step_at_least
from openshelf.twin.plans import MOST_CHUNKS, Ask, Plan, Plans
from openshelf.twin.steps import piped_seconds, seconds_of

_MOST = 2e9  # effort (`steps.py`: some tenths of a second), for the most promising first; then no more are tried
_ROW = 0.7  # of what steps take one after the other, which ranks that drift apart may be faster than
_FAR = 1.05  # times the fastest: what is slower in many chunks is not tried in fewer
_GAIN = 1e-6  # the least part that an algorithm has to be able to win to be tried
_FEWER = (32, 128, 8, 2)  # chunks, after as many as there may be


def seconds_by(setting: Setting, plan: Plan, ask: Ask) -> tuple[float, str]:
    """The seconds of a plan, and how they were found."""
    if plan.piped:
        return piped_seconds(setting, plan.variants, plan.chunks, ask.active, ask.how)
    seconds, how = seconds_of(setting, plan.variants[0], ask.how)
    return seconds * plan.chunks, how


def best_of(plans: Plans, setting_of: Callable[[Plan], Setting]) -> tuple[Plan, float, str]:
    """The fastest plan, its seconds, and how they were found."""
    search = _Search(plans, setting_of)
    return search.best()


class _Search:
    """What was tried, and what it cost."""

    def __init__(self, plans: Plans, setting_of: Callable[[Plan], Setting]) -> None:
        self.plans, self.ask, self._setting_of = plans, plans.ask, setting_of
        self._settings: dict[bytes, Setting] = {}
        self._found: tuple[Plan, float, str] | None = None

    def best(self) -> tuple[Plan, float, str]:
        bounds = {name: self._least(name) for name in self.plans.candidates()}
        near: list[tuple[float, str]] = []
        for name in sorted(bounds, key=lambda each: (bounds[each], "rings" in each)):
            if self._found and (bounds[name] >= self._fastest() * (1 - _GAIN) or self._spent() > _MOST):
                break
            near.append((self._once(name), name))
        for seconds, name in sorted(near) if not self.ask.chunks else ():
            for fewer in _FEWER:
                if seconds <= _FAR * self._fastest() and self._spent() <= _MOST and fewer < self._most(name):
                    self._run(name, fewer)
        plan = self._best()[0]
        if plan.piped and not self.ask.chunks:
            for chunks in (plan.chunks // 2, plan.chunks * 2):
                if 1 < chunks <= MOST_CHUNKS and self._spent() <= _MOST:
                    self._run(plan.algorithm, chunks)
        return self._best()

    def _once(self, name: str) -> float:
        """In as many chunks as there may be; whole too, if that may be fastest."""
        if self.ask.chunks:
            return self._run(name, self.ask.chunks)
        most, whole = self._most(name), self.plans.plan(name, 1)
        in_a_row = sum(step_at_least(self._setting(whole), step) for step in whole.variants[0])
        if most == 1:
            return self._run(name, 1)
        if not self._found or _ROW * in_a_row < self._fastest():
            self._run(name, 1)
        return self._run(name, most)

    def _most(self, name: str) -> int:
        plan = self.plans.plan(name, MOST_CHUNKS)
        return plan.chunks if plan.piped else 1

    def _run(self, name: str, chunks: int) -> float:
        plan = self.plans.plan(name, chunks)
        seconds, how = seconds_by(self._setting(plan), plan, self.ask)
        if self._found is None or seconds < self._found[1]:
            self._found = plan, seconds, how
        return seconds

    def _setting(self, plan: Plan) -> Setting:
        return self._settings.setdefault(plan.ranks.tobytes(), self._setting_of(plan))

    def _spent(self) -> float:
        return sum(each.effort for each in self._settings.values())

    def _best(self) -> tuple[Plan, float, str]:
        assert self._found
        return self._found

    def _fastest(self) -> float:
        return self._best()[1]

    def _least(self, name: str) -> float:
        """No number of chunks is faster."""
        ask, plans = self.ask, self.plans
        whole, cut = plans.plan(name, ask.chunks or 1), plans.plan(name, ask.chunks or MOST_CHUNKS)
        every = [step for steps in whole.variants for step in steps]
        wires = busiest(self._setting(whole), every) * whole.chunks / len(whole.variants)
        if not cut.piped:
            return max(wires, whole.chunks * least_delay(self._setting(whole), whole.variants[0]))
        return max(wires, least_delay(self._setting(cut), cut.variants[0]))
