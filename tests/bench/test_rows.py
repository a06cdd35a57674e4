"""The benchmarks run quickly and write the rows that people look for. What they measure is not asserted here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent.parent / "bench"
SPACE = {
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
HOSTS = {
    "hosts.miss",
    "hosts.upgrade",
    "hosts.get",
    "hosts.scatter",
    "hosts.warm",
    "hosts.idle",
}
KV = {"kv.match_ms", "kv.view_us", "kv.copy", "kv.put"}
KV_PEERS = {"kv.x_mooncake", "kv.x_redis", "kv.x_lmcache_mp"}
TTFT = {"kv.ttft", "kv.ttft_restart", "kv.ttft_miss", "kv.ttft_warm", "kv.ttft_beyond", "kv.throughput"}
KV_TRACE = {"kv.gap1", "kv.gap5", "kv.gap10", "kv.share"}
KV_FLOORS = {f"kv.floor.{trace}" for trace in ("conversation", "chat", "agents", "retrieval", "scans", "shift")}
TIERS = {
    "tiers.prefetch",
    "tiers.touch",
    "tiers.x_mmap",
    "tiers.hidden",
    "tiers.warm",
    "tiers.sampling",
    "tiers.policy",
}
TABLES = {
    *("tables.x_torch", "tables.x_fbgemm", "tables.consistent", "tables.x_torch_huge", "tables.random_read"),
    *("tables.scale", "tables.scale_machine", "tables.scale_loads", "tables.scale_fbgemm"),
    *("tables.x_redis", "tables.x_lmdb", "tables.x_rocksdb"),
    *("tables.pipelined", "tables.hot", "tables.early", "tables.dynamic", "tables.day", "tables.engram"),
    *("tables.fresh_host_s", "tables.fresh_host_speed", "tables.fresh_hosts_s", "tables.fresh_hosts_speed"),
    *("tables.flash", "tables.flash_x_rocksdb", "tables.flash_disk"),
}
TIERS_POLICY = {f"tiers.policy_{case}" for case in ("zipf", "scan", "loop", "mooncake5", "kernel_zipf", "kernel_scan")}
OFFLOAD_STREAM = {"offload.stream", "offload.stream_checked"}
OFFLOAD = {
    "offload.bound16",
    "offload.bound256",
    "offload.memory",
}
OFFLOAD_TRAIN = {"offload.train50", "offload.train30", "offload.utilisation"}
OFFLOAD_DECODE = {"offload.decode", "offload.peak"}
TWIN = {"twin.ring1024", "twin.a2a1024", "twin.flows10k", "twin.batched", "twin.scale", "twin.scale_memory"}
FIELDS = {"id", "case", "value", "unit", "peer", "ratio", "spread"}


def rows_of(out: Path, *command: str, path: Path | None = None) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(BENCH / command[0]), *command[1:], "--quick", "--json", str(out)],
        capture_output=True, text=True, timeout=300, env=os.environ | ({"PYTHONPATH": str(path)} if path else {}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["machine"]["cores"]
    rows = {row["id"]: row for row in report["rows"]}
    assert all(row.keys() >= FIELDS for row in rows.values())
    return rows


@pytest.mark.soak
@pytest.mark.serial
def test_space_benchmark_writes_its_rows(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "rows.json", "space.py")
    assert rows.keys() >= SPACE
    assert all(row["value"] > 0 for row in rows.values())


@pytest.mark.serial
def test_kv_benchmark_writes_its_rows(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "rows.json", "kv_peers.py", "--no-peers")
    assert rows.keys() >= KV | KV_PEERS
    for id, row in rows.items():
        if id.startswith("kv.x_"):
            assert row["value"] is None
            assert row["note"].startswith("skipped")
        else:
            assert row["value"] > 0


@pytest.mark.soak
@pytest.mark.serial
def test_kv_benchmark_measures_its_peers_or_says_why_not(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "rows.json", "kv_peers.py")
    assert rows.keys() >= KV | KV_PEERS
    for row in rows.values():
        assert (row["value"] is None) == row["note"].startswith("skipped")


@pytest.mark.soak
@pytest.mark.serial
def test_transformers_benchmark_writes_its_rows(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    rows = rows_of(tmp_path / "rows.json", "kv_ttft.py")
    assert rows.keys() == TTFT
    assert all(row["value"] > 0 for row in rows.values())


@pytest.mark.soak
@pytest.mark.serial
def test_kv_trace_benchmark_writes_its_rows(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "rows.json", "kv_trace.py")
    assert rows.keys() == KV_TRACE | {"kv.floor"} | KV_FLOORS
    assert all(rows[id]["value"] < 1 for id in KV_TRACE)
    assert rows["kv.floor"]["value"] == min(rows[id]["value"] for id in KV_FLOORS if rows[id]["value"] is not None)


@pytest.mark.soak
@pytest.mark.serial
def test_hosts_benchmark_writes_its_rows_on_loopback_and_between_namespaces(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "rows.json", "hosts.py", "--no-peers")
    assert rows.keys() >= HOSTS
    assert rows.keys() >= {f"{id}.netns" for id in HOSTS} or "skipped" in rows["hosts.all.netns"]["note"]
    for row in rows.values():
        assert (row["value"] is None) == row["note"].startswith("skipped")
        assert row["value"] is None or row["value"] > 0 or row["id"].startswith("hosts.idle")


@pytest.mark.soak
@pytest.mark.serial
def test_tier_policy_benchmark_writes_its_rows(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "rows.json", "tiers_policy.py")
    assert rows.keys() >= TIERS_POLICY
    assert all(row["value"] or row["note"].startswith("skipped") for row in rows.values())


@pytest.mark.soak
@pytest.mark.serial
def test_tiers_benchmark_writes_its_rows(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "rows.json", "tiers.py")
    assert rows.keys() >= TIERS
    assert all(row["value"] is not None for row in rows.values())


@pytest.mark.soak
@pytest.mark.serial
def test_tables_benchmark_writes_its_rows(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "rows.json", "tables.py")
    assert rows.keys() >= TABLES
    assert all(row["value"] is not None or row["note"].startswith("not measured: ") for row in rows.values())


def test_tables_benchmark_says_what_is_missing_and_goes_on(tmp_path: Path) -> None:
    """Without torch, which its own peers need."""
    hidden = tmp_path / "torch.py"
    hidden.write_text("raise ModuleNotFoundError('no torch here')")
    rows = rows_of(tmp_path / "rows.json", "tables.py", "--only", "engram", "stores", path=tmp_path)
    assert rows["tables.engram"]["value"] is None
    assert rows["tables.engram"]["note"] == "not measured: no torch here"
    assert rows.keys() == {"tables.engram", "tables.x_redis"}


@pytest.mark.soak
@pytest.mark.serial
def test_offload_stream_benchmark_writes_its_rows(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "rows.json", "offload_stream.py")
    assert rows.keys() == OFFLOAD_STREAM
    assert all(row["value"] > 0 for row in rows.values())


@pytest.mark.soak
@pytest.mark.serial
def test_offload_benchmark_writes_its_rows(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    rows = rows_of(tmp_path / "rows.json", "offload.py", "--no-peers")
    rows |= rows_of(tmp_path / "rows.json", "offload_train.py")
    rows |= rows_of(tmp_path / "rows.json", "offload_decode.py")
    rows |= rows_of(tmp_path / "rows.json", "offload_peak.py")
    rows |= rows_of(tmp_path / "rows.json", "offload_predict.py")
    assert rows.keys() >= OFFLOAD | OFFLOAD_TRAIN | OFFLOAD_DECODE | {"offload.predict", "offload.predict_peak"}
    assert all(row["value"] > 0 for row in rows.values() if row["id"] != "offload.predict_peak")


@pytest.mark.soak
@pytest.mark.serial
def test_twin_benchmark_writes_its_rows(tmp_path: Path) -> None:
    assert rows_of(tmp_path / "rows.json", "twin.py").keys() >= TWIN
