"""What the chapter on offload runs. Apart from it, for this needs torch."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openshelf import offload
from openshelf.offload import calibrate, torch

LAYERS, SIDE, BATCH = 12, 1024, 64  # a layer: 4 MiB of float32; all: 48 MiB
SHARE = 4  # the budget is one part in so many of the weights
STEPS, ROUNDS = 2, 3
TIME_LIMIT_S = 2.0  # for each plan


class Trial:
    """One model, run and trained with its files in `folder`; the machine's rates are measured first."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._rates = folder, calibrate(folder)
        torch.manual_seed(5)
        layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(SIDE, SIDE), torch.nn.GELU())]
        self._model = torch.nn.Sequential(*layers)
        self._x = torch.randn(BATCH, SIDE)
        self.nbytes = sum(one.nbytes for one in self._model.parameters())

    def infer(self) -> dict[str, Any]:
        """In a quarter of the room that the weights take."""
        model, x = self._model, self._x
        plan = self._plan(self.nbytes // SHARE)
        with torch.no_grad(), plan.load(model, folder=self._folder) as run:
            equal = torch.equal(run(x), model(x))
            plain = statistics.median(_seconds(lambda: model(x)) for _ in range(ROUNDS))
        return self._facts(plan, self.nbytes // SHARE) | {"equal": equal, "plain_s": plain, "report": str(plan)}

    def train(self) -> dict[str, Any]:
        """Steps of AdamW in the room of the weights, of which plain PyTorch needs four times that, and activations."""
        model, plain, x = self._model, copy.deepcopy(self._model), self._x
        ours, theirs = (torch.optim.AdamW(one.parameters(), lr=1e-4) for one in (model, plain))
        plan = self._plan(self.nbytes, optimizer=ours, loss=_loss)

        def step() -> None:
            theirs.zero_grad()
            _loss(plain(x)).backward()
            theirs.step()

        with plan.load(model, folder=self._folder) as run:
            for _ in range(STEPS):
                run(x)
            trained = run.state_dict()
        taken = statistics.median(_seconds(step) for _ in range(STEPS))
        equal = all(torch.equal(trained[name], value) for name, value in plain.state_dict().items())
        return self._facts(plan, self.nbytes) | {"equal": equal, "plain_s": taken}

    def _plan(self, budget: int, **more: Any) -> offload.ModelPlan:
        return offload.plan(
            self._model, self._x, budget, fabric=self._rates, time_limit=TIME_LIMIT_S, cache=False, **more
        )

    def _facts(self, plan: offload.ModelPlan, budget: int) -> dict[str, Any]:
        check = plan.check(repeats=ROUNDS, folder=self._folder)
        return {
            "budget": budget,
            "peak": plan.peak,
            "moved_bytes": sum(plan.plan.times.moved.values()),
            "predicted_s": check.predicted_s,
            "exposed_s": plan.plan.times.exposed,
            "measured_s": check.measured_s,
        }


def _loss(result: Any) -> Any:
    return result.square().mean()


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
