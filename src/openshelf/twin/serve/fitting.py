"""A StepLaw from measured settings: least squares of logarithms in a closed form, with priors on all constants.

The closed form stands for a closed loop of clients: every step has as many decodes as there are clients, each of
which also waits for the prompts of the others. What it leaves out (KV blocks that run out, the burst at the start)
the engine's simulation has; such rows weigh nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    "entry_base_s",
)
_TRUST = (4.0, 3.0, 4.0, 2.0, 4.0, 2.0, 2.0, 4.0, 1.0, 1.0, 2.0, 0.3)
_BY_ENGINE = {"host_s": 0.3, "sequence_s": 0.2, "entry_s": 0.7}
_ROUNDS = 30
_USED, _ACTIVATIONS = 0.96, 1e9
"""Of an accelerator's memory, the share that engines take; and what they need of it beside weights and KV."""


@dataclass(frozen=True)
class Rows:
    """Settings as columns: of the prompts' side, and of the decodes', which is the same where nothing is split."""

    prompts: Work
    decodes: Work
    engine: NDArray[np.int64]
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
    clients = rows.concurrency / np.where(rows.split, rows.sides[:, 1], 1.0)
    clients = np.maximum(clients, 1.0)
    context = rows.input_tokens + rows.output_tokens / 2
    host = np.array(law.host_s)[rows.engine] + np.array(law.sequence_s)[rows.engine] * clients
    step = law.dense(rows.decodes, clients) + law.decode(rows.decodes, clients, context) + host
    prompt = (
        law.dense(rows.prompts, rows.input_tokens)
        + law.prefill(rows.prompts, rows.input_tokens, 0.0)
        - law.steady(rows.prompts)
    )
    tpot = step + np.where(rows.split, 0.0, prompt * (clients - 1) / rows.output_tokens)
    cycle = rows.output_tokens * tpot + prompt
    wave = rows.concurrency / np.where(rows.split, rows.sides[:, 0], 1.0)
    busy = np.minimum(wave * prompt / cycle, 0.95)
    wait = np.minimum(busy / (2 * (1 - busy)), np.maximum(wave - 1, 0) / 2)
    ttft = law.entry(rows.prompts, rows.engine) + law.steady(rows.prompts) + np.where(rows.split, 0.0, step)
    return ttft + prompt * (1 + 0.045 * np.maximum(wave - 1, 0) + wait), tpot


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
