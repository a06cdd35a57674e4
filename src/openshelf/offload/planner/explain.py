"""What a plan says for itself: a report of the whole, and the reasons for one storage."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from openshelf.errors import UnknownName
from openshelf.offload.planner.gaps import Schedule
from openshelf.offload.program.lifetimes import lifetimes
from openshelf.offload.program.rates import LANES
from openshelf.offload.program.steps import Detach, Prefetch, Run, Store, Wait
from openshelf.space import format_size

if TYPE_CHECKING:
    from openshelf.offload.planner.plan import Plan

LARGEST = 8  # storages in the report


def report(plan: Plan) -> str:
    """A screen of text: memory, time, bytes moved, and where the largest things go."""
    times, storages = plan.times, plan.program.storages
    known = lifetimes(plan.program)
    in_dram = sum(size for size, home in zip(known.sizes, plan.homes, strict=True) if home == "dram")
    again = sum(isinstance(step, Run) for step in plan.steps) - len(plan.program.ops)
    moved = [
        f"{lane.replace('_', ' ')} {format_size(times.moved[lane])} in {_seconds(times.busy[lane])}"
        for lane in LANES
        if times.moved[lane]
    ]
    lines = [
        f"plan for {len(plan.program.ops)} operators, {len(storages)} storages"
        f"{', program ' + plan.program.key[:12] if plan.program.key else ''}",
        f"  arena    {format_size(plan.peak)} of {format_size(plan.budget)}; "
        f"without moving {format_size(known.live_peak)}, the least {format_size(known.least)}",
        f"  homes    {format_size(in_dram)} in host memory of {format_size(plan.dram)}, the rest on flash",
        f"  stays    {format_size(sum(known.sizes[s] for s in plan.stays))} from call to call",
        f"  time     {_seconds(times.seconds)}: computing {_seconds(times.compute)}, "
        f"waiting for transfers {_seconds(times.exposed)}",
        f"  moved    {'; '.join(moved) or 'nothing'}",
        f"  again    {again} operators run a second time",
        f"  found    greedy{''.join(', ' + one for one in plan.how)}",
        "  largest",
    ]
    largest = sorted(storages, key=lambda storage: -storage.nbytes)[:LARGEST]
    width = max((len(storage.name) for storage in largest), default=0)
    counts = {storage.index: Counter[str]() for storage in largest}
    for step in plan.steps:
        if not isinstance(step, Run) and step.storage in counts:
            counts[step.storage][type(step).__name__] += 1
    for storage in largest:
        count = counts[storage.index]
        lines.append(
            f"    {storage.name:<{width}}  {format_size(storage.nbytes):>9}  {storage.kind}, "
            f"home {plan.homes[storage.index]}, "
            + ("stays" if storage.index in plan.stays else f"read {count['Prefetch']}x, stored {count['Store']}x")
        )
    return "\n".join(lines)


def explain(plan: Plan, s: int) -> str:
    """The uses of a storage, and for each gap between them what could have been done and what is done."""
    program, rates = plan.program, plan.rates
    storage, home = program.storages[s], plan.homes[s]
    schedule = Schedule.of(program)
    uses = schedule.uses[s]
    read, write = rates.read(home).seconds(storage.nbytes), rates.write(home).seconds(storage.nbytes)
    lines = [
        f"{storage.name}: {storage.kind} of {format_size(storage.nbytes)}, "
        f"{'given' if storage.given else 'made here'}{', kept' if storage.kept else ''}; home: {home}",
        f"  used by {len(uses)} operators"
        + (f", from {_op(plan, uses[0].position)} to {_op(plan, uses[-1].position)}" if uses else ""),
        f"  to read it takes {_seconds(read)}, to store it {_seconds(write)}",
    ]
    if s in plan.stays:
        return "\n".join([*lines, f"  stays in the arena from call to call, at {plan.stays[s]}: it is read once"])
    maker = next((op for op in program.ops if s in op.makes), None)
    clock = [0.0]
    for op in program.ops:
        clock.append(clock[-1] + op.seconds)
    done = _between(plan, s)
    for gap in schedule.gaps:
        if gap.storage != s:
            continue
        move = read + (write if gap.dirty else 0.0)
        options = [
            f"stay: {format_size(schedule.sizes[s])} for {_seconds(clock[gap.after] - clock[gap.before + 1])}",
            f"leave: {_seconds(move)} of transfers",
        ]
        if maker is not None and maker.again and not maker.changes:
            options.append(f"make anew: {_seconds(maker.seconds)}, if its inputs are there")
        lines.append(
            f"  between {_op(plan, gap.before)} and {_op(plan, gap.after)} ({gap.after - gap.before - 1} operators): "
            f"{done.get(gap.after, 'stays')}\n    could {'; '.join(options)}"
        )
    waits = sum(
        seconds
        for number, seconds in plan.times.waits.items()
        if number < len(plan.steps) and isinstance(step := plan.steps[number], Wait | Detach) and step.storage == s
    )
    lines.append(f"  operators wait for it {_seconds(waits)} in all")
    return "\n".join(lines)


def no_such_storage(name: str, names: Iterable[str]) -> UnknownName:
    """Names that have it in them, or that are spelled almost so: of a parameter the last part may be meant."""
    known = list(dict.fromkeys(names))
    near = [one for one in known if name in one]
    if not near:
        parts = difflib.get_close_matches(name.rpartition(".")[2], {one.rpartition(".")[2] for one in known}, 3, 0.7)
        near = difflib.get_close_matches(name, known, 5, 0.7) or [
            one for part in parts for one in known if one.rpartition(".")[2] == part
        ]
    near = near or [*known[:4], "..."]
    return UnknownName(f"the plan has no storage {name!r}; there is {', '.join(near[:5])}")


def _between(plan: Plan, s: int) -> dict[int, str]:
    """Operator that uses it -> how it came to be there, where it had left before."""
    found: dict[int, str] = {}
    came = ""
    stored = False
    ran = -1
    for step in plan.steps:
        if isinstance(step, Run):
            op = plan.program.ops[step.op]
            if s in op.makes and step.op <= ran:
                came = "dropped, and made anew"
            elif step.op > ran and s in op.touches and came:
                found[step.op] = came
                came = ""
            ran = max(ran, step.op)
        elif step.storage == s and isinstance(step, Store):
            stored = True
        elif step.storage == s and isinstance(step, Prefetch):
            after = f"read back while or after {_op(plan, max(ran, 0))} runs"
            came = f"leaves{', stored' if stored else ''}; {after}"
            stored = False
    return found


def _op(plan: Plan, number: int) -> str:
    return f"{plan.program.ops[number].name} (#{number})"


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
