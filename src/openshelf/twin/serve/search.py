"""Search: the value of one field at which an SLO begins to be kept, or ends to be, by halving the range.

Which end keeps the SLO is found out, not told: more clients are worse, more replicas are better.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from openshelf.errors import BadInput
from openshelf.twin.serve.requests import Requests
from openshelf.twin.serve.scenario import Scenario
from openshelf.twin.serve.sweep import Outcome, grid, sweep

SEARCHED = ("clients", "replicas", "decode_replicas", "most_tokens", "most_sequences")
_NEAR = 0.02
"""Values that differ by less of themselves are not told apart."""


@dataclass(frozen=True)
class Found:
    """What was tried, by rising value; and the value nearest to the edge that keeps the SLO, if any does."""

    tried: list[Outcome]
    best: Outcome | None


def keeps(outcome: Outcome, slo: tuple[float, float]) -> bool:
    """Whether 99 of 100 requests have their first token, and 99 of 100 each one after it, within these seconds."""
    made = outcome.figures
    if outcome.problem or made.get("served", 0) < made.get("requests", 1):
        return False
    return bool(made["ttft_p99_s"] <= slo[0] and made["tpot_p99_s"] <= slo[1])


def search(
    first: Scenario,
    name: str,
    low: int,
    high: int,
    requests: Requests,
    slo: tuple[float, float],
    done: Path | None = None,
) -> Found:
    """Both ends, and then the middle of what is left. `done` is as in `sweep`."""
    if name not in SEARCHED:
        known = "" if name in {each.name for each in fields(Scenario)} else "; it is no field of a scenario"
        raise BadInput(f"{name!r} cannot be searched{known}; there is {', '.join(SEARCHED)}")
    if not 1 <= low < high:
        raise BadInput(f"{name} from {low} to {high}: expected two numbers from 1 on, the smaller one first")
    tried: dict[int, Outcome] = {}

    def kept(value: int) -> bool:
        (tried[value],) = sweep(grid(first, {name: [value]}), requests, done=done, slo=slo)
        return keeps(tried[value], slo)

    ends = kept(low), kept(high)
    yes, no = (low, high) if ends[0] else (high, low)
    while ends[0] != ends[1] and abs(yes - no) > max(1.0, _NEAR * min(yes, no)):
        middle = (yes + no) // 2
        yes, no = (middle, no) if kept(middle) else (yes, middle)
    best = {(True, True): high, (False, False): None}.get(ends, yes)
    return Found([tried[value] for value in sorted(tried)], None if best is None else tried[best])
