"""A budget is kept: with little more memory than that the kernel lets a planned run happen, and no plain one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

PREPARE = """
import resource, sys
import torch
from openshelf import offload
torch.set_num_threads(1)
BUDGET, BESIDE = 34 << 20, 24 << 20

def model_of(device, layers=8, width=2048):
    with torch.device(device):
        return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers))).eval()

def limit():
    lines = open("/proc/self/status").read().splitlines()
    now = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (now + BUDGET + BESIDE,) * 2)

lane = offload.Lane(1e9)
inputs = (torch.ones(1, 2048) / 64,)
path = sys.argv[1]
"""
PLANNED = """
plan = offload.plan(model_of("meta"), inputs, BUDGET, fabric=offload.Rates(lane, lane, lane, lane), time_limit=0.1)
limit()
with plan.load(path, folder=sys.argv[2]) as run:
    print(plan.peak <= BUDGET, float(run(*inputs).sum()))
"""
PLAIN = """
from safetensors.torch import load_file
model = model_of("meta")
limit()
model.load_state_dict({name: one.clone() for name, one in load_file(path).items()}, assign=True)
with torch.no_grad():
    print(float(model(*inputs).sum()))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """128 MiB, almost four times the budget: what comes in goes out moved by one place, and is doubled."""
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path_factory.mktemp("limit") / "model.safetensors"
    weight = 2 * torch.eye(2048).roll(1, 0)
    safetensors.save_file({f"{layer}.weight": weight.clone() for layer in range(8)}, path)
    return path


def run(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    """In a process whose threads have small stacks, which the kernel counts too."""
    small = ["prlimit", "--stack=524288:524288"]
    command = [*small, sys.executable, "-c", PREPARE + code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_run_within_a_limit_of_the_kernel(checkpoint: Path, tmp_path: Path) -> None:
    done = run(PLANNED, checkpoint, tmp_path)
    assert done.stdout == f"True {2.0**8 * 2048 / 64}\n", done.stderr


def test_plain_model_exceeds_that_limit(checkpoint: Path) -> None:
    done = run(PLAIN, checkpoint)
    assert done.returncode != 0
    assert "memory" in done.stderr


TRAINED = """
WIDTH, LAYERS = 3072, 5
before = resident()
if len(sys.argv) > 3:
    lines = open("/proc/self/status").read().splitlines()
    now = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (now + int(sys.argv[3]),) * 2)
model = model_of("meta", LAYERS, WIDTH)
inputs = (torch.ones(1, WIDTH) / 64,)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
rates = offload.Rates(lane, lane, lane, lane)
plan = offload.plan(model, inputs, 170 << 20, optimizer=optimizer, loss=torch.sum, fabric=rates, time_limit=0.1)
with plan.load(path, folder=sys.argv[2]) as run:
    losses = [float(run(*inputs)[0]) for _ in range(2)]
print(plan.expected_peak - before, resident("VmHWM") - before, losses[0] != losses[1])
"""
RESIDENT = """
def resident(what="VmRSS"):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))
"""


def test_planning_loading_and_training_stay_within_the_peak_that_the_plan_says(
    tmp_path: Path,
) -> None:
    """An update takes 144 MiB; weights and states, 540 MiB, three times the budget."""
    safetensors = pytest.importorskip("safetensors.torch")
    weight = torch.eye(3072).roll(1, 0)
    safetensors.save_file({f"{layer}.weight": weight.clone() for layer in range(5)}, tmp_path / "model.safetensors")
    free = run(RESIDENT + TRAINED, tmp_path / "model.safetensors", tmp_path)
    said, taken, trained = free.stdout.split()
    assert trained == "True", free.stderr
    assert int(taken) <= int(said) <= 400 << 20
    limited = run(RESIDENT + TRAINED, tmp_path / "model.safetensors", tmp_path, said)
    assert limited.stdout.endswith("True\n"), limited.stderr
