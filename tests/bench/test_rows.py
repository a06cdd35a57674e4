"""The benchmark runs quickly and writes the rows that people look for. What it measures is not asserted here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent.parent / "bench"
IDS = {
    "space.read",
    "space.update",
    "space.random",
    "space.open_us",
    "space.lookup_ratio",
    "space.lookup_hot_ns",
    "space.put",
    "space.join_ms",
    "space.scale",
}
FIELDS = {"id", "case", "value", "unit", "peer", "ratio", "spread"}


@pytest.mark.serial
def test_space_benchmark_writes_its_rows(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    command = [sys.executable, str(BENCH / "space.py"), "--quick", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["machine"]["cores"]
    rows = {row["id"]: row for row in report["rows"]}
    assert rows.keys() >= IDS
    for row in rows.values():
        assert row.keys() >= FIELDS
        assert row["value"] > 0
