"""`best`: the fastest of all algorithms, in as many chunks as are fastest.

What could not win is not simulated: `bounds.py` says what each algorithm takes at the least, whole and in chunks. These
bounds are cheap, and those of the winner are close to its time. All that could win are tried once, in most chunks, then
whole, before any is tried in other numbers of chunks, so that where effort runs out (`_MOST`), it is the last details
that are missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from openshelf.twin.bounds import busiest, least_s
from openshelf.twin.flows import Setting
from openshelf.twin.plans import MOST_CHUNKS, Ask, Plan, Plans
from openshelf.twin.steps import piped_seconds, seconds_of

_MOST = 5e8  # effort (`steps.py`: about nanoseconds), after which only algorithms that were not tried at all are
_MORE = 1.5e8  # for other numbers of chunks at the least, the nearest first
_BOUND = {False: 5e4, True: 5e5}  # effort of a step's bound, where costs are the same for all or are asked for
_FAR = 1.2  # times the fastest: what is slower in most chunks is not tried in fewer
_GAIN, _MUCH = 1e-6, 1e-3  # the least part that an algorithm has to be able to win to be tried; after `_EASY` effort
_EASY = 1e8
_FEW, _THOROUGH = 64, 4  # up to so many ranks every gain counts, and effort may be so many times as much
_FEWER = (32, 128, 8, 2, 64, 16, 4)  # chunks, after as many as there may be


def seconds_by(setting: Setting, plan: Plan, ask: Ask) -> tuple[float, str]:
    """The seconds of a plan, and how they were found."""
    if plan.piped:
        return piped_seconds(setting, plan.variants, plan.chunks, ask.active, ask.how)
    seconds, how = seconds_of(setting, plan.variants[0], ask.how)
    return seconds * plan.chunks, how


def best_of(
    plans: Plans, setting_of: Callable[[Plan], Setting], below_s: float = math.inf
) -> tuple[Plan, float, str] | None:
    """The fastest plan, its seconds, and how they were found; None if none takes less than `below_s`."""
    return _Search(plans, setting_of, below_s).best()


class _Search:
    """What was tried, and what it cost."""

    def __init__(self, plans: Plans, setting_of: Callable[[Plan], Setting], below_s: float) -> None:
        self.plans, self.ask, self._setting_of = plans, plans.ask, setting_of
        self._settings: dict[bytes, Setting] = {}
        self._found: tuple[Plan, float, str] | None = None
        self._fastest = below_s
        few = len(self.ask.who) <= _FEW
        self._most_effort = _MOST * (_THOROUGH if few else 1)
        self._easy = math.inf if few else _EASY
        self._until = self._most_effort

    def best(self) -> tuple[Plan, float, str] | None:
        queue = []
        for name in self.plans.candidates():
            most = self.ask.chunks or self._most(name)
            queue.append((self._least(name, most), "rings" in name, name, most))
        queue.sort()
        tried: dict[str, float] = {}
        for least, _, name, chunks in queue:
            if self._could_win(least, whatever=True):
                tried[name] = self._run(name, chunks)
        for least, _, name, chunks in queue if not self.ask.chunks else ():  # whole: at least as long as in chunks
            if chunks > 1 and self._could_win(least) and self._could_win(self._least(name, 1)):
                seconds = self._run(name, 1)
                tried[name] = min(tried.get(name, seconds), seconds)
        near = sorted((seconds, name) for name, seconds in tried.items())
        self._until = max(self._most_effort, self._spent() + _MORE)
        for seconds, name in near if not self.ask.chunks else ():
            for fewer in _FEWER:
                if seconds <= _FAR * self._fastest and fewer < self._most(name):
                    self._try(name, fewer)
        self._vary()
        return self._found

    def _vary(self) -> None:
        """Of many dimensions, not all combinations are candidates: another algorithm in one dimension at a time."""
        tried: set[str] = set()
        while self._found and self._found[0].algorithm not in tried:
            best = self._found[0]
            tried.add(best.algorithm)
            for name in self.plans.varied(best.algorithm):
                if name not in tried:
                    self._try(name, best.chunks)

    def _try(self, name: str, chunks: int) -> None:
        if self._could_win(0.0):
            plan = self.plans.plan(name, chunks)
            steps = sum(len(each) for each in plan.variants)
            self._setting(plan).count(steps * _BOUND[callable(self._setting(plan).costs)])
            if self._could_win(self._least(name, chunks)):
                self._run(name, chunks)

    def _could_win(self, least: float, whatever: bool = False) -> bool:
        """Whether it is worth the effort, or worth any."""
        spent = self._spent()
        gain = _GAIN if spent <= self._easy else _MUCH
        return least < self._fastest * (1 - gain) and (whatever or spent <= self._until)

    def _most(self, name: str) -> int:
        plan = self.plans.plan(name, MOST_CHUNKS)
        return plan.chunks if plan.piped else 1

    def _run(self, name: str, chunks: int) -> float:
        plan = self.plans.plan(name, chunks)
        seconds, how = seconds_by(self._setting(plan), plan, self.ask)
        if seconds < self._fastest:
            self._found, self._fastest = (plan, seconds, how), seconds
        return seconds

    def _setting(self, plan: Plan) -> Setting:
        return self._settings.setdefault(plan.ranks.tobytes(), self._setting_of(plan))

    def _spent(self) -> float:
        return sum(each.effort for each in self._settings.values())

    def _least(self, name: str, chunks: int) -> float:
        """Seconds in so many chunks, at the least."""
        plan = self.plans.plan(name, chunks)
        setting = self._setting(plan)
        one = max(least_s(setting, steps) for steps in plan.variants)
        if not plan.piped:
            return plan.chunks * one
        every = [step for steps in plan.variants for step in steps]
        return max(one, busiest(setting, every) * plan.chunks / len(plan.variants))
