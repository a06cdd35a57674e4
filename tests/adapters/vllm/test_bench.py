"""The benchmark runs quickly and writes its rows. What they measure is not asserted here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vllm is not installed")

BENCH = Path(__file__).parents[3] / "bench" / "kv_ttft_vllm.py"
ROWS = {"kv.ttft", "kv.ttft_restart", "kv.ttft_miss", "kv.ttft_warm", "kv.ttft_beyond", "kv.throughput"}


def test_the_benchmark_writes_its_rows(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, str(BENCH), "--quick", "--json", str(out)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert {row["id"] for row in rows} == ROWS
    assert all(row["value"] > 0 and "vLLM" in row["case"] for row in rows)
