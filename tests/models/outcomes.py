"""What becomes of a model: its results equal plain PyTorch's bit for bit, or it is refused, or something is wrong.

Each kind of use is one function from a name to an Outcome. An exception that is not Openshelf's is `raw`, results that
differ are `wrong`; neither may be. `not built` and `not compared` say why there is nothing to compare with.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import random
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy

from openshelf import offload
from openshelf.errors import OpenshelfError
from tests.models import architectures, nets
from tests.models.built import Built, NotBuilt, NotCompared, Wrong
from tests.models.generating import decode, pool
from tests.offload.models import bits
from tests.offload.rates import RATES

torch: Any = importlib.import_module("torch")

OPTIONS: dict[str, Any] = {"fabric": RATES, "cache": False, "time_limit": 0.05}
MUCH = "8GiB"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """`equal`, `refused`, `wrong`, `raw`, `not built` or `not compared`, and why."""

    what: str
    why: str = ""

    @property
    def counts(self) -> bool:
        return self.what not in ("not built", "not compared")


def built(name: str) -> Built:
    return nets.build(name) if name.startswith("net:") else architectures.build(name)


def outcome(kind: str, name: str) -> Outcome:
    """Of one kind of use of one model."""
    torch.set_num_threads(1)
    with architectures.quiet():
        try:
            try:
                made = built(name)
            except NotBuilt as error:
                return Outcome("not built", str(error))
            KINDS[kind](made)
        except NotCompared as error:
            return Outcome("not compared", str(error))
        except Wrong as error:
            return Outcome("wrong", str(error))
        except OpenshelfError as error:
            return Outcome("refused", f"{type(error).__name__}: {error}")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            return Outcome("raw", f"{type(error).__name__}: {error} ({place})")
    return Outcome("equal")


def flat(value: Any) -> list[Any]:
    """What a result is made of: bits of tensors, and constants, with their places."""
    found: list[Any] = []

    def walk(one: Any, path: str, seen: tuple[int, ...]) -> None:
        if isinstance(one, torch.Tensor):
            found.append((path, str(one.dtype), bits(one.resolve_conj().float() if one.dtype in SHORT else one)))
        elif id(one) in seen or isinstance(one, torch.nn.Module):
            return
        elif isinstance(one, dict):
            for key, part in one.items():
                walk(part, f"{path}[{key!r}]", (*seen, id(one)))
        elif isinstance(one, (list, tuple)):
            for key, part in enumerate(one):
                walk(part, f"{path}[{key}]", (*seen, id(one)))
        elif (
            hasattr(one, "__dict__")
            and not isinstance(one, type)
            and type(one).__module__.startswith("transformers")
            and "config" not in path
        ):
            for key, part in sorted(vars(one).items()):
                walk(part, f"{path}.{key}", (*seen, id(one)))
        else:
            found.append((path, type(one).__name__))

    walk(value, "", ())
    return found


SHORT = (torch.bfloat16, torch.float16)


def need_equal(ours: list[Any], theirs: list[Any], what: str) -> None:
    if len(ours) != len(theirs):
        raise Wrong(f"{what}: {len(ours)} values, plain PyTorch has {len(theirs)}")
    for one, two in zip(ours, theirs, strict=True):
        if one != two:
            raise Wrong(f"{what}: {one[0] or 'the result'} differs")


def plainly(model: Any, batch: dict[str, Any], seed: int) -> list[Any]:
    seeded(seed)
    try:
        with torch.no_grad():
            return flat(model(**batch))
    except Exception as error:
        raise NotCompared(f"plain PyTorch fails: {type(error).__name__}: {error}") from error


def seeded(seed: int) -> None:
    """Of all generators that models draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def budgets(captured: Any) -> Iterator[int]:
    """All that it needs, half of that, and the least that works."""
    known = offload.lifetimes(captured.program)
    return iter(dict.fromkeys([known.live_peak, max(known.least, known.live_peak // 2), known.least]))


def loaded(plan: offload.ModelPlan, model: Any) -> Iterator[tuple[int, Any]]:
    """Runs of one capture at the three budgets."""
    for budget in budgets(plan.captured):
        made = offload.make_plan(plan.captured.program, budget, RATES, time_limit=0.05, cache=False)
        with offload.ModelPlan(plan.captured, made, ((), {})).load(model) as run:
            yield budget, run


def infer(made: Built) -> None:
    """Two calls at each of three budgets."""
    plain = _twin(made.model)
    expected = [plainly(plain, made.batch(seed), seed) for seed in (0, 1)]
    if expected[0] != plainly(_twin(made.model), made.batch(0), 0):
        raise NotCompared("plain PyTorch gives other results the second time")
    plan = offload.plan(made.model, made.batch(0), MUCH, **OPTIONS)
    for budget, run in loaded(plan, made.model):
        for seed in (0, 1):
            seeded(seed)
            need_equal(flat(run(**made.batch(seed))), expected[seed], f"call {seed} in {budget} bytes")


def train(made: Built) -> None:
    """Two steps of AdamW in half of the memory: losses, and all weights and buffers after them."""
    model = made.model.train()
    twins = [_trained(_twin(model), made) for _ in range(2)]
    if twins[0] != twins[1]:
        raise NotCompared("plain PyTorch gives other results the second time")
    losses, state = twins[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    plan = offload.plan(model, made.batch(0), MUCH, optimizer=optimizer, loss=made.loss, **OPTIONS)
    _, budget, *_ = [*budgets(plan.captured), 0]
    budget = budget or offload.lifetimes(plan.captured.program).least
    half = offload.make_plan(plan.captured.program, budget, RATES, time_limit=0.05, cache=False)
    with offload.ModelPlan(plan.captured, half, ((), {})).load(model) as run:
        for seed in range(2):
            seeded(seed)
            (loss,) = run(**made.batch(seed))
            need_equal([("loss", *bits(loss))], [("loss", *losses[seed])], f"step {seed}")
        ours = {name: bits(one) for name, one in run.state_dict().items()}
    need_equal(list(ours.items()), [(name, state[name]) for name in ours], "after 2 steps")


def _trained(model: Any, made: Built) -> tuple[list[Any], dict[str, Any]]:
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    try:
        for seed in range(2):
            seeded(seed)
            result = model(**made.batch(seed))
            loss = made.loss(result) if made.loss is not None else result.loss
            loss.backward()
            losses.append(bits(loss))
            optimizer.step()
            optimizer.zero_grad()
    except Exception as error:
        raise NotCompared(f"plain PyTorch cannot train it: {type(error).__name__}: {error}") from error
    return losses, {name: bits(one) for name, one in model.state_dict().items()}


def _twin(model: Any) -> Any:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise NotCompared(f"it cannot be copied: {type(error).__name__}: {error}") from error


KINDS: dict[str, Callable[[Built], None]] = {"inference": infer, "training": train, "decode": decode, "pool": pool}
_GENERATIVE = ("decode", "pool")


def rows_of(kinds: Iterable[str]) -> list[tuple[str, str]]:
    """All there is to try: a kind of use, and a model."""
    every = [*nets.names(), *architectures.names()]
    generative = [name for name in every if name.split(":")[0] in architectures.GENERATIVE]
    return [(kind, name) for kind in kinds for name in (generative if kind in _GENERATIVE else every)]
