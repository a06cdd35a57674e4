"""A measured setting run in virtual time: a closed loop of clients, ten requests each, that begin at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from openshelf.twin.serve.fitting import kv_tokens
from openshelf.twin.serve.law import ENGINES, StepLaw
from openshelf.twin.serve.requests import drawn
from openshelf.twin.serve.settings import LENGTHS, Setting
from openshelf.twin.serve.simulate import Engine, serve
from openshelf.twin.serve.times import times_of_law
from openshelf.twin.serve.work import work_of

_BLOCK = 16
_CHUNK = 8192
_EACH, _MOST_TOKENS = 10, 400_000
"""Requests of a client, and tokens that come out at most; but each client has two requests."""
HAND_OVER_BYTES_PER_S = 50e9


@dataclass(frozen=True)
class Predicted:
    ttft_s: float
    tpot_s: float
    output_tokens_per_s: float


def predict(setting: Setting, law: StepLaw, seed: int = 0) -> Predicted:
    """Mean seconds to the first token and for each one after it.

    Raises NoRoom where a request does not fit in memory.
    """
    clients = setting.concurrency
    count = max(2 * clients, min(_EACH * clients, round(_MOST_TOKENS / setting.output_tokens)))
    ranges = [(each / LENGTHS * 0.8, each / LENGTHS) for each in (setting.input_tokens, setting.output_tokens)]
    requests = drawn(count, 0.0, ranges[0], ranges[1], seed=seed)
    work = work_of(setting.model, setting.device, setting.plan)
    times = times_of_law(law, work, setting.engine)
    entry = float(law.entry(work, ENGINES.index(setting.engine)))
    blocks = int(kv_tokens(setting) // _BLOCK)
    engine = Engine(blocks, _BLOCK, _CHUNK, most_sequences=max(256, clients), under_way=1)
    if setting.decode_plan is None:
        served = serve(requests, engine, times, clients=clients, entry_s=entry)
    else:
        decode_work = work_of(setting.model, setting.device, setting.decode_plan)
        per_token = setting.model.kv_bytes(setting.plan.kv_dtype) / HAND_OVER_BYTES_PER_S
        served = serve(
            requests,
            Engine(max(blocks, 1 << 16), _BLOCK, _CHUNK, under_way=1),
            times,
            clients=clients,
            entry_s=entry,
            replicas=setting.prefill_workers,
            decode_engine=engine,
            decode_times=times_of_law(law, decode_work, setting.engine),
            decode_replicas=setting.decode_workers,
            hand_over_s_token=per_token / max(1, setting.plan.tensor),
        )
    plain = served.plain()
    return Predicted(float(np.mean(served.ttft_s)), float(np.mean(served.tpot_s)), float(plain["output_tokens_per_s"]))
