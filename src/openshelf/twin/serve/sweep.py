"""Many scenarios at once: a grid of fields, in parallel, resumable; and which of their differences are shown at all.

Each figure has the error of its kind, as measured on settings that were not fitted. Two scenarios that differ by less
are not told apart: "no difference shown".
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from openshelf._texts import opened_text
from openshelf.errors import BadInput, OpenshelfError
from openshelf.twin.serve.law import shipped
from openshelf.twin.serve.requests import Requests
from openshelf.twin.serve.scenario import Scenario, run_scenario

NO_DIFFERENCE = "no difference shown"
_BEGINNING = '{"key": "'  # of a line of outcomes
_KIND = {"ttft_s": "ttft", "ttft_p99_s": "ttft", "tpot_s": "tpot", "output_tokens_per_s": "tpot", "latency_s": "tpot"}


@dataclass(frozen=True)
class Outcome:
    """A scenario and its figures; or why there are none."""

    scenario: Scenario
    figures: dict[str, Any]
    problem: str = ""

    def plain(self) -> dict[str, Any]:
        return {"scenario": self.scenario.plain(), "problem": self.problem, **self.figures}


def grid(first: Scenario, axes: Mapping[str, Sequence[Any]]) -> list[Scenario]:
    """Every combination of the axes' values, each the name of a field."""
    known = {each.name for each in fields(Scenario)}
    if wrong := [name for name in axes if name not in known]:
        raise BadInput(f"a scenario has no field {wrong[0]!r}; there is {', '.join(sorted(known))}")
    return [replace(first, **dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())]


def sweep(
    scenarios: Sequence[Scenario],
    requests: Requests,
    *,
    jobs: int = 1,
    done: Path | None = None,
    slo: tuple[float, float] | None = None,
) -> Iterator[Outcome]:
    """In the order of the scenarios.

    `done`: JSON lines, to which each outcome is added, and from which those that are there are taken: of the same
    requests, and of models and fabrics whose files say the same.
    """
    known = _known(done) if done is not None and done.exists() else {}
    asked = _digest(requests)

    def one(scenario: Scenario) -> tuple[Outcome, bool]:
        if (found := known.get(_key(scenario, asked, slo))) is not None:
            return found, False
        try:
            served = run_scenario(scenario, requests)
        except OpenshelfError as why:
            return Outcome(scenario, {}, str(why)), True
        figures = served.plain()
        if slo is not None and figures["served"]:
            figures["goodput_per_s"] = served.goodput(*slo)
        return Outcome(scenario, figures), True

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        for outcome, fresh in pool.map(one, scenarios):
            if fresh and done is not None:
                with done.open("a") as file:
                    file.write(json.dumps({"key": _key(outcome.scenario, asked, slo), **outcome.plain()}) + "\n")
            yield outcome


def _known(done: Path) -> dict[str, Outcome]:
    """What a file has. A last line without its end was cut when its process was killed: it is taken away."""
    with opened_text(done) as file:
        *lines, cut = file.read().split("\n")
    known: dict[str, Outcome] = {}
    for number, line in enumerate(lines, 1):
        try:
            plain = json.loads(line)
            key, scenario, problem = plain.pop("key"), Scenario(**plain.pop("scenario")), plain.pop("problem")
            known[key] = Outcome(scenario, plain, problem)
        except (OpenshelfError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise BadInput(f"{done}, line {number}: that is no outcome of a sweep: {error}") from None
    if cut:
        if not cut.startswith(_BEGINNING[: len(cut)]):
            raise BadInput(f"{done}, line {len(lines) + 1}: that is no outcome of a sweep")
        os.truncate(done, sum(len(line.encode()) + 1 for line in lines))
    return known


def _digest(requests: Requests) -> str:
    columns = (requests.arrives_s, requests.input_tokens, requests.output_tokens, requests.ids_at, requests.ids)
    made = blake2b(digest_size=16)
    for each in columns:
        made.update(len(each).to_bytes(8, "little") + np.ascontiguousarray(each).tobytes())
    return made.hexdigest()


def _key(scenario: Scenario, asked: str, slo: tuple[float, float] | None) -> str:
    files = [Path(each) for each in (scenario.model, scenario.fabric, scenario.table or ".")]
    files += sorted(files[-1].iterdir()) if scenario.table and files[-1].is_dir() else []
    said = [blake2b(each.read_bytes(), digest_size=16).hexdigest() if each.is_file() else "" for each in files]
    return json.dumps([scenario.plain(), asked, said, slo], sort_keys=True)


def error_of(figure: str) -> float:
    """As a share: the median error of figures of that kind on settings that were not fitted."""
    return float(shipped().errors[_KIND[figure]])


def difference(figure: str, base: float, other: float) -> str:
    """How many times as large, or that the model cannot tell."""
    if base <= 0 or other <= 0:
        return NO_DIFFERENCE if base == other else "-"
    ratio = other / base
    return NO_DIFFERENCE if max(ratio, 1 / ratio) - 1 < error_of(figure) else f"{ratio:.2f}x"
