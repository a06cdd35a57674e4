"""What `make benchmarks` writes, from rows that were made up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, headings, tables

sys.path.insert(0, str(ROOT / "bench"))

import benchmarks

MACHINE = {"cpu": "A CPU", "cores": 2, "memory": "8 GiB", "kernel": "6.1", "python": "3.11.7"}


def row(id: str, value: float | None, unit: str, bar: str = "", ratio: float | None = None, note: str = "") -> Any:
    made = {"id": id, "case": f"case of {id}", "value": value, "unit": unit, "peer": "a peer", "ratio": ratio}
    return made | {"spread": 1.0123, "bar": bar, "note": note}


def kept(folder: Path, name: str, *rows: Any) -> None:
    made = {"date": "2026-01-31", "full": False, "seconds": 7.2, "machine": MACHINE, "rows": rows}
    (folder / f"{name}.json").write_text(json.dumps(made))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"before\n{benchmarks.BEGIN}\nold\n{benchmarks.END}\nafter\n")
    return folder


def test_the_page_is_written_from_rows(tmp_path: Path, results: Path) -> None:
    kept(results, "space", row("space.read", 1.034, "x", ">= 0.95", 1.034), row("space.open_us", 1.08, "us", "<= 2"))
    kept(results, "hosts", row("hosts.get", None, "", note="skipped: no cable"))
    kept(results, "offload", row("offload.bound16", 1.04, "x", "<= 1.15", 0.96))
    (results / "kv_ttft_vllm.json").write_text(json.dumps({"skipped": "vllm is not installed"}))
    benchmarks.write(results, tmp_path)
    page = (tmp_path / "docs" / "benchmarks.md").read_text()
    assert "| `space.read` case of space.read | 1.03x | >= 0.95 | a peer | 1.03x, more is better | 1.01 |" in page
    assert "| `space.open_us` case of space.open_us | 1.08 us, less is better | <= 2 | a peer |  | 1.01 |" in page
    assert "| 1.04x | <= 1.15 | a peer | 0.96x, more is better |" in page
    assert "skipped: no cable" in page
    assert "`bench/kv_ttft_vllm.py` was skipped: vllm is not installed." in page
    assert "`bench/twin.py` was not run." in page
    assert "`bench/space.py`, quick, 7 s, on 2026-01-31.\nA CPU, 2 cores, 8 GiB, Linux 6.1, Python 3.11.7." in page
    assert headings(page) == ["Benchmarks", *(each.title for each in benchmarks.BENCHMARKS)]
    assert "\nold\n" in (tmp_path / "README.md").read_text(), "a table of six rows, or none"


def test_the_first_page_gets_its_table(tmp_path: Path, results: Path) -> None:
    for name, id, _ in benchmarks.FIRST_PAGE:
        kept(results, name, row("other", 7.0, "s"), row(id, 1.034, "x", "<= 1.15" if "offload" in id else ">= 0.95"))
    benchmarks.write(results, tmp_path)
    text = (tmp_path / "README.md").read_text()
    head = "\n".join([*benchmarks.HEAD, "| speed of reading a shared"])
    assert text.startswith(f"before\n{benchmarks.BEGIN}\n{head}")
    assert "plain PyTorch, which has all the memory that it wants | case of offload.train30 | 1.03x" in text
    assert text.count("| 1.03x, more is better | >= 0.95 |") == 4
    assert text.count("| 1.03x, less is better | <= 1.15 |") == 2
    assert text.endswith(f"Measured on A CPU, 2 cores; 2026-01-31.\n{benchmarks.END}\nafter\n")


def test_a_ratio_says_which_way_is_better() -> None:
    assert benchmarks.ratio_is(row("hosts.miss", 2.2, "x", "<= 3", 2.2)) == "less"
    assert benchmarks.ratio_is(row("tiers.hidden", 0.2, "% lost", "<= 5", 0.99)) == "more"
    assert benchmarks.ratio_is(row("offload.peak", 40.0, "% less", ">= 26", 1.01)) == "less"
    assert benchmarks.ratio_is(row("space.open_us", 1.0, "us", "<= 2")) == ""
    assert benchmarks.figure_is(row("offload.memory", 86.0, "MiB", "the least", 3.0)) == "less"


def test_a_benchmark_without_its_needs_is_skipped(tmp_path: Path) -> None:
    odd = benchmarks.Benchmark("odd", "Odd", needs=("no_such_module",), made_by="make odd")
    assert benchmarks.run(odd, False, tmp_path) == ""
    assert json.loads((tmp_path / "odd.json").read_text()) == {"skipped": "no_such_module is not installed: make odd"}


def test_a_benchmark_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "ROOT", tmp_path)
    assert benchmarks.run(benchmarks.Benchmark("gone", "Gone"), False, tmp_path) == "bench/gone.py failed (2)"
    assert json.loads((tmp_path / "gone.json").read_text()) == {"skipped": "it failed"}


def test_every_benchmark_is_there() -> None:
    assert all((ROOT / "bench" / f"{each.name}.py").exists() for each in benchmarks.BENCHMARKS)
    with_rows = {path.stem for path in (ROOT / "bench").glob("*.py") if "report.finish(" in path.read_text()}
    assert with_rows == {each.name for each in benchmarks.BENCHMARKS}
    named = {(name, id) for name, id, _ in benchmarks.FIRST_PAGE}
    assert len(named) == 6


def test_the_first_page_has_the_markers() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count(benchmarks.BEGIN) == text.count(benchmarks.END) == 1
    assert tables(text.partition(benchmarks.BEGIN)[2].partition(benchmarks.END)[0]) == 1
