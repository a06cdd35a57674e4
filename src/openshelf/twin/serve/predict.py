"""A measured setting run in virtual time: a closed loop of clients, ten requests each, that begin at once.

Two short runs stand for the long one. The burst at the start is the first request of each client. The rest is a round
of requests in the middle, of clients that are spread over a cycle: by then lengths have drawn them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from openshelf.twin.serve.fitting import BURST, closed_form, kv_tokens, rows_of
from openshelf.twin.serve.law import ENGINES, StepLaw
from openshelf.twin.serve.requests import Requests, drawn
from openshelf.twin.serve.settings import LENGTHS, Setting
from openshelf.twin.serve.simulate import Engine, Served, serve
from openshelf.twin.serve.times import times_of_law
from openshelf.twin.serve.work import Floats, work_of

_BLOCK = 16
_CHUNK = 8192
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
    runs = _runs(setting, law)
    burst = _rounds(runs(_requests(setting, 2, seed, 0.0)), setting.concurrency)[:, 0]
    ttft, tpot = closed_form(law, rows_of([setting]))
    cycle = float(ttft[0] + setting.output_tokens * tpot[0])
    steady = _rounds(runs(_requests(setting, 3, seed, cycle)), setting.concurrency)[:, 1]
    first, each = BURST * burst + (1 - BURST) * steady
    speed = setting.concurrency * setting.output_tokens / (first + setting.output_tokens * each)
    return Predicted(float(first), float(each), float(speed))


def _requests(setting: Setting, rounds: int, seed: int, cycle: float) -> Requests:
    """So many for each client, whose first ones are spread over a cycle."""
    clients = setting.concurrency
    ranges = [(each / LENGTHS * 0.8, each / LENGTHS) for each in (setting.input_tokens, setting.output_tokens)]
    made = drawn(rounds * clients, 0.0, ranges[0], ranges[1], seed=seed)
    arrives = np.minimum(np.arange(rounds * clients), clients - 1) / clients * cycle
    return replace(made, arrives_s=arrives)


def _rounds(served: Served, clients: int) -> Floats:
    """Means of each round of requests: seconds to the first token, and for each one after it."""
    after = (served.last_s - served.first_s) / np.maximum(served.output_tokens - 1.0, 1.0)
    both = np.stack([served.first_s - served.arrives_s, after])
    found: Floats = both.reshape(2, -1, clients).mean(axis=2)
    return found


def _runs(setting: Setting, law: StepLaw) -> Callable[[Requests], Served]:
    clients, model, plan = setting.concurrency, setting.model, setting.plan
    work = work_of(model, setting.device, plan)
    times = times_of_law(law, work, setting.engine)
    entry = float(law.entry(work, ENGINES.index(setting.engine), setting.far))
    blocks = int(kv_tokens(setting) // _BLOCK)
    engine = Engine(blocks, _BLOCK, _CHUNK, most_sequences=max(256, clients), under_way=1)
    if setting.decode_plan is None:
        return lambda requests: serve(requests, engine, times, clients=clients, entry_s=entry)
    decodes = times_of_law(law, work_of(model, setting.device, setting.decode_plan), setting.engine)
    hand_over = model.kv_bytes(plan.kv_dtype) / HAND_OVER_BYTES_PER_S / max(1, plan.tensor)
    prompts = Engine(max(blocks, 1 << 16), _BLOCK, _CHUNK, under_way=1)
    return lambda requests: serve(
        requests,
        prompts,
        times,
        clients=clients,
        entry_s=entry,
        replicas=setting.prefill_workers,
        decode_engine=engine,
        decode_times=decodes,
        decode_replicas=setting.decode_workers,
        hand_over_s_token=hand_over,
    )
