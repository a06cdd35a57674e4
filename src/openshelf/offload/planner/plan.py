"""A Plan: which storage is where when, as a list of steps, with what it will take before anything runs.

A value: it can be printed, kept as JSON, run in virtual time, and run for real, with the same steps each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from openshelf.errors import BadInput, NoRoom
from openshelf.offload.cache import load_plain, save_plain
from openshelf.offload.planner.explain import explain, no_such_storage, report
from openshelf.offload.planner.on_twin import add_plan
from openshelf.offload.planner.replay import RUN, TAKE, Replay
from openshelf.offload.planner.resident import choose_resident, enough, without
from openshelf.offload.planner.search import search
from openshelf.offload.planner.simulate import Change, Times, simulate
from openshelf.offload.planner.verify import check_steps
from openshelf.offload.program.lifetimes import ALIGNMENT, lifetimes, padded
from openshelf.offload.program.program import Program
from openshelf.offload.program.progress import shown
from openshelf.offload.program.rates import Rates, Tier
from openshelf.offload.program.steps import Detach, Prefetch, Run, Step, Store, Wait
from openshelf.space import format_size
from openshelf.twin import Tasks

FORMAT = 3
_KINDS: tuple[type[Any], ...] = (Prefetch, Wait, Run, Store, Detach)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Steps for a program within a budget. `peak` is the size of the arena, known before the run.

    `homes` says for each storage whether its home is flash or host memory; `dram` bytes of that are allowed. `stays`
    are storages that are in the arena from call to call, and where: steps do not mention them. `how` is what was done
    to find the plan.
    """

    program: Program
    budget: int
    rates: Rates
    dram: int
    homes: tuple[Tier, ...]
    steps: tuple[Step, ...]
    peak: int
    times: Times
    how: tuple[str, ...]
    stays: Mapping[int, int] = dataclasses.field(default_factory=dict)

    @property
    def moving(self) -> Program:
        """The program as if it did not touch what stays."""
        return without(self.program, self.stays) if self.stays else self.program

    def explain(self, name: str) -> str:
        """Why the storage of this name is where it is: its uses, what the choices cost, and what was chosen."""
        for storage in self.program.storages:
            if storage.name == name:
                return explain(self, storage.index)
        raise no_such_storage(name, [storage.name for storage in self.program.storages])

    def timeline(self) -> Times:
        """The times again, with a span for everything that compute and each lane do."""
        times = simulate(self.program, self.steps, self.rates, self.homes, spans=True)
        there = tuple(Change(0.0, s, padded(self.program.storages[s].nbytes)) for s in self.stays)
        return dataclasses.replace(times, peak=self.times.peak, changes=there + times.changes)

    def add_to(self, tasks: Tasks, rank: int, *, flash: int, dram: int) -> int:
        """Adds the steps to a task graph of the twin; homes are at the endpoints `flash` and `dram` of its network.

        Gives a task that ends with the plan. Add it for many ranks to see what sharing the way to their memory costs.
        """
        return add_plan(self, tasks, rank, flash, dram)

    def __str__(self) -> str:
        return report(self)

    def to_plain(self) -> dict[str, Any]:
        """Dicts, lists and scalars for `json`; the program is not in it, only its key."""
        return {
            "format": FORMAT,
            "program": self.program.key,
            "budget": self.budget,
            "rates": self.rates.to_plain(),
            "dram": self.dram,
            "homes": [home == "dram" for home in self.homes],
            "steps": [_numbers(step) for step in self.steps],
            "stays": [[s, offset] for s, offset in self.stays.items()],
            "how": list(self.how),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any], program: Program) -> Plan:
        """The plan of `to_plain`; BadInput if it is of another program, or not a plan for this one."""
        try:
            if plain["format"] != FORMAT or plain["program"] != program.key:
                raise BadInput(
                    f"a plan of format {plain['format']} for program {plain['program']!r}; expected format {FORMAT} "
                    f"and program {program.key!r}: make a new plan"
                )
            rates = Rates.from_plain(plain["rates"])
            homes: tuple[Tier, ...] = tuple("dram" if dram else "flash" for dram in plain["homes"])
            steps = tuple(_step(numbers) for numbers in plain["steps"])
            if len(homes) != len(program.storages):
                raise BadInput(f"a plan with homes for {len(homes)} storages of {len(program.storages)}")
            stays = {int(s): int(offset) for s, offset in plain["stays"]}
            _check(program, steps, plain["budget"], stays)
            return _plan(program, plain["budget"], rates, plain["dram"], homes, steps, tuple(plain["how"]), stays)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise BadInput(f"not a plan of format {FORMAT}: {type(error).__name__}: {error}") from error


@shown("searching for a plan")
def make_plan(
    program: Program,
    budget: int,
    rates: Rates,
    *,
    dram: int = 0,
    stay: bool = False,
    homes: tuple[Tier, ...] | None = None,
    time_limit: float = 20.0,
    cache: bool = True,
    beside: int = 0,
) -> Plan:
    """A plan that runs `program` in an arena of at most `budget` bytes, with `dram` bytes of host memory for homes.

    With `stay`, what fits is in the arena from call to call.

    Searches for `time_limit` seconds of processor time, some more for very long programs, but ends as soon as no plan
    could be much better, which is much earlier for most. `homes`: where each storage lives, if that is known already.
    Plans are kept on disk, by program key, budget and rates; `cache=False`, or a program without a key, does without.
    Raises NoRoom, naming the least that works and the operator that needs it; `beside` is what has to be beside the
    arena, and is counted there.
    """
    known = lifetimes(program)
    room = budget // ALIGNMENT * ALIGNMENT
    if room < known.least:
        op = program.ops[known.tightest]
        where, more = f" at {op.where}" if op.where else "", f", and torch up to {format_size(beside)} beside it"
        raise NoRoom(
            f"a budget of {format_size(budget + beside)} ({budget + beside} bytes) is too small: operator "
            f"{op.name!r}{where} needs {format_size(known.least)} at once{more if beside else ''}; the least that "
            f"works is {known.least + beside} bytes"
        )
    asked = {"program": program.key, "budget": room, "rates": rates.to_plain(), "dram": dram, "stay": stay}
    if homes is not None:
        asked["homes"] = list(homes)
    if cache and program.key:
        found = load_plain(asked, lambda plain: Plan.from_plain(plain, program))
        if found is not None:
            return found
    given = [one.index for one in program.storages if one.given and one.kind != "input"]
    arena = min(room, enough(program, given)) if room > known.live_peak else room
    resident = choose_resident(program, arena, rates, dram, time_limit / 3) if stay else []
    left = arena - sum(known.sizes[s] for s in resident)
    best, how = search(without(program, resident) if resident else program, left, rates, dram, time_limit, homes)
    top = _peak(program, best.steps)
    stays = {}
    for s in resident:
        stays[s], top = top, top + known.sizes[s]
    _check(program, tuple(best.steps), room, stays)
    plan = _plan(program, room, rates, dram, best.choice.homes, tuple(best.steps), tuple(how), stays)
    if cache and program.key:
        save_plain(asked, plan.to_plain())
    return plan


def _plan(
    program: Program, budget: int, rates: Rates, dram: int, homes: tuple[Tier, ...], steps: tuple[Step, ...],
    how: tuple[str, ...], stays: Mapping[int, int],
) -> Plan:  # fmt: skip
    there = sum(padded(program.storages[s].nbytes) for s in stays)
    times = simulate(program, steps, rates, homes)
    times = dataclasses.replace(times, peak=times.peak + there)
    return Plan(program, budget, rates, dram, homes, steps, _peak(program, steps, stays), times, how, stays)


def _peak(program: Program, steps: Sequence[Step], stays: Mapping[int, int] | None = None) -> int:
    """Where the last of all that is ever in the arena ends."""
    sizes = [padded(storage.nbytes) for storage in program.storages]
    peak = max((offset + sizes[s] for s, offset in (stays or {}).items()), default=0)
    for event, which, offset in Replay(program, steps):
        if event == TAKE:
            peak = max(peak, offset + sizes[which])
        elif event == RUN and offset >= 0:
            peak = max(peak, offset + padded(program.ops[which].workspace))
    return peak


def _check(program: Program, steps: Sequence[Step], budget: int, stays: Mapping[int, int]) -> None:
    """BadInput if the steps are wrong, with all that stays read before and stored after them."""
    for s in stays:
        if not program.storages[s].given or program.storages[s].kind in ("input", "output"):
            raise BadInput(f"not a plan for program {program.key!r}: {program.storages[s].name} cannot stay")
    changed = {s for op in program.ops for s in op.changes}
    before: list[Step] = [step for s, offset in stays.items() for step in (Prefetch(s, offset), Wait(s))]
    after: list[Step] = [step for s in stays for step in ([Store(s)] if s in changed else []) + [Detach(s)]]
    check_steps(program, [*before, *steps, *after], budget)


def _numbers(step: Step) -> list[int]:
    kind = _KINDS.index(type(step))
    if isinstance(step, Run):
        return [kind, step.op, *step.offsets]
    return [kind, step.storage, step.offset] if isinstance(step, Prefetch) else [kind, step.storage]


def _step(numbers: list[int]) -> Step:
    made: Step
    made = Run(numbers[1], tuple(numbers[2:])) if numbers[0] == 2 else _KINDS[numbers[0]](*numbers[1:])
    return made
