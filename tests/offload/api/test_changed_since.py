"""What has changed since a plan was made is refused, not computed with; what is closed is given back."""

from __future__ import annotations

import copy
import gc
import importlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from openshelf import offload  # noqa: E402
from openshelf.errors import BadInput, Closed, FlashFailed, Mismatch  # noqa: E402

transfers: Any = importlib.import_module("openshelf.offload.measure.transfers")
nn = torch.nn
LANE = offload.Lane(1e9)
RATES = offload.Rates(LANE, LANE, LANE, LANE)
OPTIONS: dict[str, Any] = {"fabric": RATES, "time_limit": 0.1, "cache": False}


@pytest.fixture(autouse=True)
def seeded(own_cache: Path) -> None:
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


def appended(model: Any) -> None:
    model.append(nn.Linear(64, 64))


def dropped(model: Any) -> None:
    del model[2]


def replaced(model: Any) -> None:
    model[1] = nn.GELU()


def grown(model: Any) -> None:
    model[1].register_buffer("scale", torch.ones(1))


CHANGES = {
    appended: "the module '3' was not there",
    dropped: "the module '2' is no longer there",
    replaced: "the module '1' was a .*ReLU, and is a .*GELU",
    grown: "the module '1' had the tensors , and has scale",
    nn.Module.eval: "the model trained",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_of_other_modules_is_refused(change: Any) -> None:
    model = layers()
    plan = planned(model)
    with plan.load(layers()):
        pass  # another one that is made of the same
    change(model)
    with pytest.raises(Mismatch, match=CHANGES[change]):
        plan.load(model)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)])
@pytest.mark.parametrize("before", [0, 2])
def test_an_optimizer_that_was_stepped_since_is_refused(kind: Any, before: int) -> None:
    model = layers()
    optimizer = kind(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 64)).square().mean().backward()
        optimizer.step()

    for _ in range(before):
        step()
    plan = planned(model, optimizer=optimizer, loss=lambda result: result.square().mean())
    with plan.load(model) as run:
        run(torch.ones(4, 64))
    plan.check(repeats=1)
    plan.load(model).close()
    step()
    with pytest.raises(Mismatch, match="stepped"):
        plan.load(model)


def test_parameters_that_were_frozen_or_added_since_are_refused() -> None:
    model = layers()
    loss = {"loss": lambda result: result.square().mean()}
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    plan = planned(model, optimizer=optimizer, **loss)
    model[0].requires_grad_(False)
    with pytest.raises(Mismatch, match=r"requires_grad of 0\.bias, 0\.weight"):
        plan.load(model)
    with planned(model).load(model):  # of a plan that does not train it does not matter
        pass
    model[0].requires_grad_(True)
    with plan.load(model) as run:
        run(torch.ones(4, 64))
        optimizer.add_param_group({"params": model[0].parameters()})
        with pytest.raises(Mismatch, match=r"groups of \[2, 2\] parameters now, and had \[2\]"):
            run(torch.ones(4, 64))
    with pytest.raises(Mismatch, match="add_param_group"):
        plan.load(model)


def test_what_is_for_training_is_refused_without_it() -> None:
    for more in ({"micro": 2}, {"micro": 0}, {"clip": 1.0}):
        with pytest.raises(BadInput, match="for training"):
            planned(layers(), **more)


@pytest.mark.parametrize("trains", [False, True])
def test_a_large_budget_makes_no_large_arena(trains: bool) -> None:
    model = layers()
    loss = {"loss": torch.sum, "optimizer": torch.optim.AdamW(model.parameters())} if trains else {}
    for _ in range(3):
        assert offload.plan(model, torch.ones(4, 64), "100TiB", **OPTIONS, **loss).peak < 1 << 20


def test_rates_are_measured_once_and_plans_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))  # nothing was probed
    measured = []

    def calibrate() -> offload.Rates:
        measured.append(1)
        return RATES

    monkeypatch.setattr(transfers, "calibrate", calibrate)
    for _ in range(3):
        offload.plan(layers(), torch.ones(4, 64), "64KiB", time_limit=0.1)
    assert len(measured) == 1
    assert len(list((tmp_path / "cache" / "plans").iterdir())) == 2


def test_a_disk_on_which_nothing_can_be_measured_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPENSHELF_CACHE", str(tmp_path / "file" / "cache"))
    with (
        pytest.warns(UserWarning, match="cannot be used"),
        pytest.raises(FlashFailed, match=r"transfers cannot be measured in .*Set OPENSHELF_CACHE"),
    ):
        offload.plan(layers(), torch.ones(4, 64), "64KiB", time_limit=0.1)


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
    assert not any(one.is_meta for one in wrapped.state_dict().values())
    with pytest.raises(BadInput, match="left memory"):
        wrapped.load_state_dict({})


@pytest.mark.parametrize("order", [(4, 512), (512, 4)])
def test_a_wrapped_model_takes_no_more_than_it_needs(order: tuple[int, int]) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).eval()
    plain = copy.deepcopy(model)
    wrapped = offload.wrap(model, "1GiB", **OPTIONS)
    before = resident()
    with torch.no_grad():
        for count in (*order, *order):
            x = torch.randn(count, 64)
            assert torch.equal(wrapped(x), plain(x))
    assert resident() - before < 64 << 20


def test_threads_come_one_after_the_other() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20))).eval()
    xs = [torch.randn(4, 64) for _ in range(32)]
    with planned(model).load(model) as run, ThreadPoolExecutor(4) as pool, torch.no_grad():
        for x, found in zip(xs, pool.map(run, xs), strict=True):
            assert torch.equal(found, model(x))


def test_checking_a_plan_draws_nothing() -> None:
    generator = torch.Generator().manual_seed(1)

    class Noisy(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return nn.functional.dropout(x + torch.rand(64, generator=generator), 0.5)

    plan = planned(Noisy())
    before = torch.get_rng_state(), generator.get_state()
    plan.check(repeats=2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(generator.get_state(), before[1])


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


def test_closed_runs_give_back_host_memory_and_files_while_they_are_held() -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(24))).eval()
    plan = offload.plan(model, torch.ones(4, 1024), "16MiB", dram="1GiB", **OPTIONS)
    plan.load(model).close()
    gc.collect()
    before, files, held = resident(), os.listdir("/proc/self/fd"), []
    for _ in range(4):
        held.append(plan.load(model))
        held[-1](torch.ones(4, 1024))
        held[-1].close()
    assert resident() - before < 48 << 20  # each has 96 MiB in host memory
    assert len(os.listdir("/proc/self/fd")) == len(files)


def test_saving_holds_one_tensor_in_memory_at_a_time(tmp_path: Path) -> None:
    program = """
import sys, torch
from openshelf import offload
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(24)))  # 96 MiB, 288 with states
x, lane = torch.ones(4, 1024), offload.Lane(1e9)
optimizer = torch.optim.AdamW(model.parameters())
plan = offload.plan(model, x, "24MiB", optimizer=optimizer, loss=lambda one: one.square().mean(), time_limit=0.1,
                    cache=False, fabric=offload.Rates(lane, lane, lane, lane))
run = plan.load(model)
run(x)
run.save(sys.argv[1])  # takes what is taken once
open("/proc/self/clear_refs", "w").write("5")
status = lambda key: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))
before = status("VmRSS")
run.save(sys.argv[1])
print((status("VmHWM") - before) >> 10)
state = run.state_dict()
with plan.load(sys.argv[1]) as again:
    assert all(torch.equal(one, state[name]) for name, one in again.state_dict().items())
    assert torch.equal(again(x)[0], run(x)[0])
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "saved")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64
    assert (tmp_path / "saved").stat().st_size > 288 << 20


def test_a_plan_loaded_in_inference_mode_is_called_outside_of_it() -> None:
    model = layers().eval()
    plan = planned(model)
    with torch.inference_mode():
        run = plan.load(model)
    with run, torch.no_grad():
        assert torch.equal(run(torch.ones(4, 64)), model(torch.ones(4, 64)))
