"""openshelf twin, as a user calls it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.twin.traces import node, trace

from openshelf.cli import main


def test_run_prints_times_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["twin", "run", "gb200-nvl72", "--collective", "all_to_all", "--size", "1MiB,64MiB"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "all_to_all among 72 ranks of gb200-nvl72 (simulated)" in text
    assert "at worst" in text
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["simulated"]
    assert [each["bytes"] for each in found] == [1 << 20, 64 << 20]
    assert found[1]["seconds"] > found[0]["seconds"] > 0
    assert {each["role"] for each in found[0]["load"]} != set()


def test_compare_shows_fabrics_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["twin", "compare", "dgx-h100-ib", "gb200-nvl72", "--ranks", "8", "--algorithm", "ring"]
    assert main(command) == 0
    assert "1.00x" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gb200-nvl72"][0]["seconds"] < found["dgx-h100-ib"][0]["seconds"]


def test_a_chakra_trace_runs_and_is_written_for_perfetto(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out, lines = tmp_path / "step.et", tmp_path / "step.json.gz", tmp_path / "step.csv"
    reduce = node(2, 7, "reduce", (1,), 0, {"comm_type": 0, "comm_size": 1 << 20})
    file.write_bytes(trace(node(1, 4, "backward", (), 100), reduce))
    command = ["twin", "run", "gb200-nvl72", "--et", str(file), "--algorithm", "ring"]
    assert main([*command, "--trace", str(out), "--csv", str(lines)]) == 0
    assert "critical path" in capsys.readouterr().out
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["backward", "reduce"]
    assert len(lines.read_text().splitlines()) == 3
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["simulated"]
    assert found["exposed_s"] == pytest.approx(found["seconds"] - 1e-4)


def test_mistakes_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["twin", "run", "gb200-nvl72", "--collective", "allreduce"]) == 1
    assert "did you mean 'all_reduce'" in capsys.readouterr().err
    assert main(["twin", "run", "laptop"]) == 1
    assert "no topology" in capsys.readouterr().err
    assert main(["twin", "run", "gb200-nvl72", "--ranks", "99"]) == 1
    assert "has 2 to 72" in capsys.readouterr().err
    assert main(["twin", "run", "gb200-nvl72", "--csv", "x.csv"]) == 1
    assert "--et" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--detect", "1"], "name one with --fail"),
        (["--groups", "x.json"], "--groups is of tasks"),
        (["--flops", "1e12"], "--flops is of tasks"),
        (["--et", "x.et", "--salt", "3"], "--salt is of a collective"),
        (["--et", "x.et", "--fail", "0>8:0@0.1"], "--fail is of a collective"),
        (["--ranks", "4", "--size", "1KiB", "--fail", "0>1:0@0.5-0.1"], "is not after the failure"),
    ],
)
def test_an_option_without_effect_is_refused(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["twin", "run", "gb200-nvl72", *given]) == 1
    assert said in capsys.readouterr().err
