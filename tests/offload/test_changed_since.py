"""What has changed since a plan was made is refused, not computed with; what is closed is given back."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from openshelf import offload  # noqa: E402
from openshelf.errors import BadInput, Closed, Mismatch  # noqa: E402

nn = torch.nn
LANE = offload.Lane(1e9)
RATES = offload.Rates(LANE, LANE, LANE, LANE)
OPTIONS: dict[str, Any] = {"fabric": RATES, "time_limit": 0.1, "cache": False}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENSHELF_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)


def layers(*more: Any) -> Any:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64), *more)


def planned(model: Any, **more: Any) -> offload.ModelPlan:
    return offload.plan(model, torch.ones(4, 64), "1MiB", **OPTIONS, **more)


def test_weights_of_another_type_or_shape_are_refused(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    plan = offload.plan(layers().bfloat16(), torch.ones(4, 64, dtype=torch.bfloat16), "1MiB", **OPTIONS)
    save_file(layers().half().state_dict(), tmp_path / "half.safetensors")
    for source in (layers().half(), tmp_path / "half.safetensors"):
        with pytest.raises(Mismatch, match=r"float16.*bfloat16"):
            plan.load(source)
    turned = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).bfloat16()
    with pytest.raises(Mismatch, match=r"\(64, 32\).*\(32, 64\)"):
        plan.load(turned)
    transposed = layers().bfloat16()
    transposed[0].weight = nn.Parameter(torch.empty(64, 32, dtype=torch.bfloat16).t())
    with pytest.raises(Mismatch, match="strides"):
        plan.load(transposed)


def test_weights_that_are_no_longer_one_are_refused() -> None:
    tied = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    tied[1].weight = tied[0].weight
    plan = planned(tied)
    tied[1].weight = nn.Parameter(torch.zeros(64, 64))
    with pytest.raises(Mismatch, match="were one tensor"):
        plan.load(tied)


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    model = layers()
    loss = {"loss": lambda result: result.square().mean()}
    with planned(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **loss).load(model) as run:
        run(torch.ones(4, 64))
        run.save(tmp_path / "saved")
    with pytest.raises(Mismatch, match="another optimizer"):
        planned(model, optimizer=torch.optim.AdamW(model.parameters()), **loss).load(tmp_path / "saved")


def test_a_wrapped_model_minds_train_and_eval() -> None:
    wrapped = offload.wrap(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)), "1MiB", **OPTIONS)
    x = torch.ones(4, 64)
    assert (wrapped(x) == 0).any()
    wrapped.eval()
    assert not (wrapped(x) == 0).any()
    with pytest.raises(BadInput, match="left memory"):
        wrapped.state_dict()
    with pytest.raises(BadInput, match="left memory"):
        wrapped.load_state_dict({})


def resident() -> int:
    return next(int(line.split()[1]) << 10 for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith("VmRSS:"))  # fmt: skip


def test_a_closed_run_gives_its_arena_back_at_once() -> None:
    model = nn.Sequential(nn.Linear(2048, 2048), nn.Linear(2048, 2048))
    plan = offload.plan(model, torch.ones(4, 2048), "64MiB", **OPTIONS)
    assert plan.peak > 32 << 20
    gc.disable()
    try:
        with plan.load(model) as run:
            run(torch.ones(4, 2048))
            before = resident()
        assert before - resident() > plan.peak // 2
    finally:
        gc.enable()
    with pytest.raises(Closed, match="closed"):
        run.state_dict()


def test_a_plan_loaded_in_inference_mode_is_called_outside_of_it() -> None:
    model = layers().eval()
    plan = planned(model)
    with torch.inference_mode():
        run = plan.load(model)
    with run, torch.no_grad():
        assert torch.equal(run(torch.ones(4, 64)), model(torch.ones(4, 64)))
