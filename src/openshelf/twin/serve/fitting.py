"""A StepLaw from measured settings: least squares of logarithms in a closed form, with priors on all constants.

The closed form stands for a closed loop of clients: a step has as many decodes as there are clients that do not wait
for their first token, and each decode also waits for the prompts of the others. What it leaves out (KV blocks that
run out) the engine's simulation has; such rows weigh nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openshelf.errors import BadInput
from openshelf.twin.serve.law import ENGINES, StepLaw
from openshelf.twin.serve.model import BYTES
from openshelf.twin.serve.settings import Setting
from openshelf.twin.serve.work import Floats, Work, stack, work_of

_SHARES = (
    "memory",
    "compute",
    "expert_memory",
    "expert_compute",
    "kv_memory",
    "attention",
    "links",
    "spread",
    "operator_s",
    "reduce_s",
    "newer",
)
_TRUST = (4.0, 3.0, 4.0, 2.0, 4.0, 2.0, 2.0, 4.0, 1.0, 1.0, 2.0)
_BY_ENGINE = {
    "host_s": 0.3,
    "sequence_s": 0.2,
    "eager_s": 0.7,
    "entry_s": 0.5,
    "far_entry_s": 0.5,
    "entry_operator_s": 0.7,
}
_ROUNDS = 25
_TURNS = 6
"""Of the closed form, until its times agree with how many clients they keep waiting."""
BURST = 0.1
"""The share of requests that come at once, at the start: measured runs are ten requests of each client."""
_USED, _ACTIVATIONS = 0.96, 1e9
"""Of an accelerator's memory, the share that engines take; and what they need of it beside weights and KV."""


@dataclass(frozen=True)
class Rows:
    """Settings as columns: of the prompts' side, and of the decodes', which is the same where nothing is split."""

    prompts: Work
    decodes: Work
    engine: NDArray[np.int64]
    far: NDArray[np.bool_]
    concurrency: Floats
    input_tokens: Floats
    output_tokens: Floats
    ttft_s: Floats
    tpot_s: Floats
    split: NDArray[np.bool_]
    sides: Floats
    """Prompts' workers and decodes' workers: two columns."""
    fits: NDArray[np.bool_]


def rows_of(settings: Sequence[Setting]) -> Rows:
    if not settings:
        raise BadInput(
            "there are no measured settings to fit or to judge: the table has no row of a known model and machine"
        )
    prompts = stack([work_of(each.model, each.device, each.plan) for each in settings])
    decodes = stack([work_of(each.model, each.device, each.decode_plan or each.plan) for each in settings])
    return Rows(
        prompts,
        decodes,
        np.array([ENGINES.index(each.engine) for each in settings]),
        np.array([each.far for each in settings]),
        np.array([each.concurrency for each in settings], dtype=np.float64),
        np.array([each.input_tokens for each in settings]),
        np.array([each.output_tokens for each in settings]),
        np.array([each.ttft_s for each in settings]),
        np.array([each.tpot_s for each in settings]),
        np.array([each.decode_plan is not None for each in settings]),
        np.array([(each.prefill_workers, each.decode_workers) for each in settings], dtype=np.float64),
        np.array([_fits(each) for each in settings]),
    )


def kv_tokens(setting: Setting) -> float:
    """Tokens of KV that fit beside the weights, in a replica that decodes."""
    plan, model = setting.decode_plan or setting.plan, setting.model
    kv_ranks = 1 if model.latent else min(plan.tensor, model.kv_heads)
    experts = model.expert_layers * model.experts * model.expert_parameters
    dense = model.weight_bytes(plan.dtype) - experts * BYTES[model.expert_dtype or plan.dtype]
    weights = dense / plan.tensor + experts * BYTES[model.expert_dtype or plan.dtype] / plan.accelerators
    free = _USED * setting.device.memory_bytes - weights - _ACTIVATIONS
    return max(0.0, free) / (model.kv_bytes(plan.kv_dtype) / kv_ranks) * plan.attention_replicas


def _fits(setting: Setting) -> bool:
    each = setting.input_tokens + 0.75 * setting.output_tokens
    return kv_tokens(setting) * setting.decode_workers >= each * setting.concurrency


def closed_form(law: StepLaw, rows: Rows) -> tuple[Floats, Floats]:
    """Seconds to the first token, and for each one after it."""
    clients = np.maximum(rows.concurrency / np.where(rows.split, rows.sides[:, 1], 1.0), 1.0)
    wave = rows.concurrency / np.where(rows.split, rows.sides[:, 0], 1.0)
    context = rows.input_tokens + rows.output_tokens / 2

    def step_of(active: Floats) -> Any:
        own = law.dense(rows.decodes, active) + law.decode(rows.decodes, active, context)
        return own + law.host(rows.engine, active)

    attention, eager = law.prefill(rows.prompts, rows.input_tokens, 0.0), law.eager(rows.prompts, rows.engine)
    alone = law.dense(rows.prompts, rows.input_tokens) - law.steady(rows.prompts) + attention
    with_decodes = law.dense(rows.prompts, rows.input_tokens + clients) - law.dense(rows.decodes, clients) + attention
    mixed = np.where(rows.split, alone, with_decodes) + eager
    step = step_of(clients)
    start = law.entry(rows.prompts, rows.engine, rows.far) + law.steady(rows.prompts) + eager
    burst = alone * (1 + 0.45 * BURST * np.maximum(wave - 1, 0))
    first = start + np.where(rows.split, 0.0, step / 2) + burst
    ttft, tpot = first, step + np.where(rows.split, 0.0, mixed * (clients - 1) / rows.output_tokens)
    for _ in range(_TURNS):
        cycle = rows.output_tokens * tpot + ttft
        active = np.maximum(clients * rows.output_tokens * tpot / cycle, 1.0)
        own = step_of(np.where(rows.split, clients, active))
        tpot = (tpot + own + np.where(rows.split, 0.0, mixed * (clients - 1) * tpot / cycle)) / 2
        busy = np.minimum(wave * mixed / cycle, 0.95)
        ttft = first + mixed * np.minimum(busy / (2 * (1 - busy)), np.maximum(wave - 1, 0) / 2)
    return ttft, tpot


def _law(values: Floats) -> StepLaw:
    some = {name: float(value) for name, value in zip(_SHARES, np.exp(values), strict=False)}
    rest = np.exp(values[len(_SHARES) :]).reshape(len(_BY_ENGINE), len(ENGINES))
    return StepLaw(**some, **{name: tuple(map(float, each)) for name, each in zip(_BY_ENGINE, rest, strict=True)})  # type: ignore[arg-type]


def _values(law: StepLaw) -> Floats:
    rest = [value for name in _BY_ENGINE for value in getattr(law, name)]
    found: Floats = np.log(np.array([*(getattr(law, name) for name in _SHARES), *rest]))
    return found


def fit_law(rows: Rows, chosen: NDArray[np.bool_]) -> StepLaw:
    """Fitted on the chosen rows, as far as they fit in memory and are not split."""
    use = chosen & rows.fits & ~rows.split
    if not use.any():
        raise BadInput("no measured setting is left to fit: all are left out, split, or do not fit in memory")
    start = _values(StepLaw())
    trust = np.array([*_TRUST, *(weight for weight in _BY_ENGINE.values() for _ in ENGINES)])
    subset = Rows(*(getattr(rows, name)[use] for name in Rows.__dataclass_fields__))

    def off(values: Floats) -> Floats:
        ttft, tpot = closed_form(_law(values), subset)
        return np.concatenate(
            [
                _bounded(np.log(tpot / subset.tpot_s), 0.15),
                0.5 * _bounded(np.log(ttft / subset.ttft_s), 0.3),
                trust * (values - start),
            ]
        )

    values, damping = start.copy(), 1e-2
    residual = off(values)
    for _ in range(_ROUNDS):
        moves = 1e-4 * np.eye(len(values))
        slope = np.stack([(off(values + move) - residual) / 1e-4 for move in moves], axis=1)
        step = np.linalg.solve(slope.T @ slope + damping * np.eye(len(values)), -slope.T @ residual)
        tried = off(values + step)
        if tried @ tried < residual @ residual:
            values, residual, damping = values + step, tried, max(damping / 3, 1e-6)
        else:
            damping *= 5
    return _law(values)


def _bounded(error: Floats, beyond: float) -> Floats:
    """Rows that are far off, for reasons that the table does not say, pull less."""
    pulled: Floats = error / np.sqrt(np.sqrt(1 + (error / beyond) ** 2))
    return pulled
