"""A step event by event: every pass of every stage and every message between stages, on the twin's task graph order.

It finds by simulation what the closed form sums up, and the two are equal where nothing contends. Stages are lists of
passes in the order of their schedule; a pass begins when its stage is free and what it needs has arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openshelf.workloads.train.cluster import Cluster
from openshelf.workloads.train.model import Model
from openshelf.workloads.train.parts import bound, seconds, with_gaps
from openshelf.workloads.train.plan import Plan
from openshelf.workloads.train.step import stages_of, step_of


@dataclass(frozen=True)
class Event:
    """A pass (`forward` or `backward`) of one micro-batch by one stage; `chunk` where stages have several."""

    stage: int
    kind: str
    micro_batch: int
    chunk: int
    start_s: float
    end_s: float


def run_events(model: Model, plan: Plan, cluster: Cluster, slower: Mapping[str, float]) -> tuple[float, list[Event]]:
    """Seconds of a step and every pass in it."""
    closed = step_of(model, plan, cluster, slower)
    forward: list[float] = []
    backward: list[float] = []
    for count, stage in stages_of(model, plan, cluster):
        forward += [seconds(bound(with_gaps(stage.forward), slower), slower)] * count
        backward += [seconds(bound(with_gaps(stage.backward), slower), slower)] * count
    events = _pipeline(plan, forward, backward)
    piped = max(event.end_s for event in events)
    passes = _passes_s(plan, forward, backward)
    return piped + (closed.seconds - passes), events


def _passes_s(plan: Plan, forward: list[float], backward: list[float]) -> float:
    """What the closed form says of the pipeline alone."""
    both = [one + other for one, other in zip(forward, backward, strict=True)]
    if plan.pp == 1:
        return plan.micro_batches * both[0]
    filled = sum(both[:-1]) / plan.interleave if plan.schedule != "dualpipe" else sum(both[:-1]) / 2
    last = both[-1] if plan.schedule != "dualpipe" else both[-1] / 2
    return (plan.micro_batches - 1) * max(both) + filled + last


def _order(plan: Plan, stage: int) -> list[tuple[str, int, int]]:
    """Passes of a stage in turn: as many forward as there are stages behind it, then one of each, then the rest."""
    count, chunks = plan.micro_batches, plan.interleave
    if chunks == 1:
        warm = min(count, plan.pp - 1 - stage)
        made = [("forward", batch, 0) for batch in range(warm)]
        for batch in range(count - warm):
            made += [("forward", batch + warm, 0), ("backward", batch, 0)]
        return made + [("backward", batch, 0) for batch in range(count - warm, count)]
    units = count * chunks
    group = plan.pp * chunks

    def unit(at: int, forward: bool) -> tuple[int, int]:
        chunk = at % group // plan.pp
        return at // group * plan.pp + at % plan.pp, chunk if forward else chunks - 1 - chunk

    warm = min(units, (plan.pp - 1 - stage) * 2 + (chunks - 1) * plan.pp)
    made = [("forward", *unit(at, True)) for at in range(warm)]
    for at in range(units - warm):
        made += [("forward", *unit(at + warm, True)), ("backward", *unit(at, False))]
    return made + [("backward", *unit(at, False)) for at in range(units - warm, units)]


def _pipeline(plan: Plan, forward: list[float], backward: list[float]) -> list[Event]:
    """Every pass, as soon as its stage is free and the passes that it needs are over."""
    chunks, last = plan.interleave, plan.pp - 1
    orders = [_order(plan, stage) for stage in range(plan.pp)]
    done: dict[tuple[int, str, int, int], float] = {}
    at, free = [0] * plan.pp, [0.0] * plan.pp
    events: list[Event] = []
    waiting = list(range(plan.pp))
    while waiting:
        moved = False
        for stage in list(waiting):
            while at[stage] < len(orders[stage]):
                kind, batch, chunk = orders[stage][at[stage]]
                need = _need(stage, kind, batch, chunk, last, chunks)
                if need is not None and need not in done:
                    break
                length = (forward if kind == "forward" else backward)[stage] / chunks
                start = max(free[stage], done[need] if need is not None else 0.0)
                free[stage] = done[stage, kind, batch, chunk] = start + length
                events.append(Event(stage, kind, batch, chunk, start, start + length))
                at[stage] += 1
                moved = True
            if at[stage] == len(orders[stage]):
                waiting.remove(stage)
        assert moved or not waiting, "a schedule that waits for itself"
    return events


def _need(stage: int, kind: str, batch: int, chunk: int, last: int, chunks: int) -> tuple[int, str, int, int] | None:
    """The pass that has to be over before: the stage before, or behind; at the ends another chunk."""
    if kind == "forward":
        if stage:
            return stage - 1, kind, batch, chunk
        return (last, kind, batch, chunk - 1) if chunk else None
    if stage < last:
        return stage + 1, kind, batch, chunk
    return (0, kind, batch, chunk + 1) if chunk < chunks - 1 else (last, "forward", batch, chunk)
