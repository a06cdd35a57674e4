"""Every example runs as a user would run it, and says what it should."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
TORCHREC = all(find_spec(package) for package in ("torchrec", "fbgemm_gpu"))  # not for every machine
EXPECTED = {
    "device_arena.py": "written back: True 8 copies in",
    "fabric.py": "3000 m is beyond the reach of optics-dsp, 500 m",
    "kv_pool.py": "blocks in the pool: 44 for 108 that were asked for",
    "kv_transformers.py": "worker 1: 496 of 500 tokens were there",
    "kv_vllm.py": "vLLM is not installed",  # with it: tests/adapters/vllm/test_example.py
    "offload.py": "the same parameters: True",
    "share_weights.py": "row 0 is now [2. 2. 2.] after 1 worker",
    "tables.py": "the mean of trained rows is 1.00",
    "tables_torchrec.py": "the server sees what was learnt: True" if TORCHREC else "TorchRec is not installed",
    "tiers.py": "0.1001 from 64 MiB in 32 MiB of dram",
    "train.py": "it fits: True",
    "twin.py": "critical path: backward of layer 2 > all-reduce of layer 2 > update",
    "two_racks.py": "128 accelerators, 8 memories in the pool",
    "two_hosts.py": "host a loads [2. 2. 2.]",
    "work_queue.py": "total 190000.0 expected 190000.0",
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example_runs(name: str) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert EXPECTED[name] in done.stdout


def test_no_example_is_left_out() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)
