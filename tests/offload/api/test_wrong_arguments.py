"""Whatever is given for an argument of a plan or a run: no other library's exception."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from openshelf import offload
from openshelf.errors import BadInput
from tests.junk import raw_errors

ASKED = {"budget": "1MiB", "fabric": "laptop", "time_limit": 0.05}
PLAN = (
    "inputs", "budget", "optimizer", "loss", "dram", "time_limit", "fabric", "micro", "clip", "train", "stay", "cache",
)  # fmt: skip


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENSHELF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())


X = torch.ones(2, 8)


@pytest.mark.parametrize("argument", PLAN)
def test_planning(argument: str) -> None:
    one = model()
    assert raw_errors(lambda junk: offload.plan(one, **{"inputs": X, **ASKED, argument: junk})) == []


def test_loading_running_and_saving() -> None:
    one = model()
    plan = offload.plan(one, X, **ASKED)  # type: ignore[arg-type]
    assert raw_errors(lambda junk: plan.load(junk).close()) == []
    assert raw_errors(lambda junk: plan.load(one, share=junk).close()) == []
    assert raw_errors(lambda junk: plan.load(one, folder=junk).close()) == []
    assert raw_errors(plan.explain) == []
    with plan.load(one) as run:
        assert raw_errors(lambda junk: run(junk)) == []
        assert raw_errors(lambda junk: run.step(junk)) == []
        assert raw_errors(lambda junk: run.step([junk])) == []
        assert raw_errors(run.save) == []
        with torch.no_grad():
            assert torch.equal(run(X), one(X))


def test_the_other_ways_to_run() -> None:
    one, inputs = model(), lambda rows: torch.ones(rows, 8)
    assert raw_errors(lambda junk: offload.wrap(junk, "1MiB")) == []
    assert raw_errors(lambda junk: offload.wrap(one, junk)) == []
    assert raw_errors(lambda junk: offload.wrap(one, "1MiB", fallback=junk)) == []
    assert raw_errors(lambda junk: offload.buckets(junk, inputs, longest=4, budget="1MiB", fabric="laptop")) == []
    assert raw_errors(lambda junk: callable(junk) or offload.buckets(one, junk, longest=4, budget="1MiB")) == []
    for argument in ("budget", "longest", "batch", "chunk", "kv", "weights", "time_limit"):

        def decode(junk: Any, argument: str = argument) -> None:
            offload.decode(one, **{"budget": "1MiB", "longest": 8, "fabric": "laptop", argument: junk})

        assert raw_errors(decode) == [], argument


def test_what_was_expected_is_named() -> None:
    with pytest.raises(BadInput, match="time_limit is a number of seconds, got 'long'"):
        offload.plan(model(), X, "1MiB", time_limit="long")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="inputs is a function from a length to inputs of that length, got int"):
        offload.buckets(model(), 3, longest=4, budget="1MiB")  # type: ignore[arg-type]
    with offload.plan(model(), X, **ASKED).load(model()) as run, pytest.raises(BadInput, match="args, kwargs"):  # type: ignore[arg-type]
        run.step(X)
