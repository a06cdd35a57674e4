"""The best plan of a model on a cluster: every combination of degrees that divides and fits, in closed form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from openshelf.errors import BadInput
from openshelf.workloads.train.cluster import Cluster
from openshelf.workloads.train.constants import Constants
from openshelf.workloads.train.memory import memory_of, why_not
from openshelf.workloads.train.model import Model
from openshelf.workloads.train.plan import Plan
from openshelf.workloads.train.step import Step, step_of

_MICRO = (1, 2, 4, 8)
_CHUNKS = (1, 2, 4)


@dataclass(frozen=True)
class Found:
    """The best steps, from the fastest on, how many plans were tried, and how many did not fit."""

    best: tuple[Step, ...]
    tried: int
    too_large: int


def plans(model: Model, count: int, node: int, batch: int, base: Plan) -> Iterator[Plan]:
    """Every plan whose degrees divide; tensor parallelism stays in a node."""
    for tp in _divisors(count, min(node, model.heads)):
        if model.heads % tp or model.ffn % tp:
            continue
        for pp in _divisors(count // tp, model.layers):
            for cp in _divisors(count // (tp * pp), 8):
                dp = count // (tp * pp * cp)
                for micro in _MICRO:
                    if batch % (dp * micro):
                        continue
                    for chunks in _CHUNKS if pp > 1 else (1,):
                        for recompute in ("none", "selective", "full"):
                            plan = replace(
                                base, dp=dp, tp=tp, pp=pp, cp=cp, micro_batch=micro, global_batch=batch,
                                sequence_parallel=tp > 1, interleave=chunks, recompute=recompute, zero=1,
                                ep=_experts(model, dp * tp * cp, node),
                                schedule="interleaved" if chunks > 1 else "1f1b",
                            )  # fmt: skip
                            if not any(fails for _, fails in plan.rules(model, count)):
                                yield plan


def _experts(model: Model, ranks: int, node: int) -> int:
    """Experts are spread as far as they and the ranks allow, but no further than eight nodes."""
    return max((each for each in _divisors(ranks, 8 * node) if model.experts and model.experts % each == 0), default=1)


def _divisors(number: int, most: int) -> list[int]:
    return [each for each in range(1, min(number, most) + 1) if number % each == 0]


def search(
    model: Model, cluster: Cluster, constants: Constants, batch: int, base: Plan | None = None, *, keep: int = 10,
    most: int | None = None, offload: Sequence[tuple[str, ...]] = ((),),
) -> Found:  # fmt: skip
    """The fastest plans that fit, of all or of `most` that are spread over all.

    Raises BadInput where none does, with what would make one fit.
    """
    best: list[Step] = []
    tried = large = 0
    smallest: Plan | None = None
    least = float("inf")
    every = [
        replace(plan, offload=moved) if moved else plan
        for plan in plans(model, cluster.count, cluster.node, batch, base or Plan())
        for moved in offload
    ]
    if most is not None and len(every) > most:
        every = [every[at * len(every) // most] for at in range(most)]
    for plan in every:
        tried += 1
        memory = memory_of(model, plan, cluster)
        if memory.fits:
            best.append(step_of(model, plan, cluster, constants.of(plan)))
        else:
            large += 1
            if memory.used < least:
                smallest, least = plan, memory.used
    if not best:
        if smallest is None:
            raise BadInput(
                f"no plan of {cluster.count} accelerators divides {model.name!r} and a batch of {batch}: heads "
                f"{model.heads}, layers {model.layers}; try another batch or number of accelerators"
            )
        raise BadInput(f"none of {tried} plans fits. The nearest: {why_not(model, smallest, cluster)}")
    best.sort(key=lambda step: step.seconds)
    return Found(tuple(best[:keep]), tried, large)
