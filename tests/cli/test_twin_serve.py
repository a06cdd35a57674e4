"""openshelf twin serve, as people call it."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from openshelf.cli import main

SERVE = ["twin", "serve", "--model", "llama-3.1-8b", "--fabric", "dgx-h100-ib", "--replicas", "2"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    rows = [
        {
            "timestamp": 100 * at,
            "input_length": 1600,
            "output_length": 8,
            "hash_ids": [at % 5, 10 + at % 5, 20 + at % 5],
        }
        for at in range(60)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_curve_over_pool_sizes_in_all_its_forms(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, picture, steps = tmp_path / "a.csv", tmp_path / "a.svg", tmp_path / "t.json.gz"
    assert (
        main(
            [
                *SERVE,
                "--trace",
                str(trace),
                "--pool",
                "0,1GiB,4GiB",
                "--json",
                "--csv",
                str(table),
                "--svg",
                str(picture),
                "--timeline",
                str(steps),
            ]
        )
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert [row["pool_bytes"] for row in told["simulated"]] == [0, 1 << 30, 4 << 30]
    assert told["simulated"][2]["pool_hit_rate"] > 0.8
    assert set(told["simulated"][2]["tiers"]) == {"dram", "flash"}
    assert told["errors"]["tpot"] > 0
    with table.open() as file:
        assert len(list(csv.DictReader(file))) == 3
    assert "no pool" in picture.read_text()
    assert any(event["ph"] == "X" for event in json.loads(gzip.decompress(steps.read_bytes()))["traceEvents"])


def test_settings_side_by_side_say_where_no_difference_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main([*SERVE, "--requests", "30", "--rate", "2", "--routing", "by_cache,least_load", "--slo", "1e-6,1e-6"]) == 0
    )
    out = capsys.readouterr().out
    assert "no difference shown" in out
    assert "nothing meets the SLO" in out


def test_an_slo_that_nothing_meets_is_said_with_what_was_reached(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SERVE, "--trace", str(trace), "--pool", "0,1GiB", "--slo", "1e-6,1e-6"]) == 0
    assert "nothing meets 1e-06 s to the first token" in capsys.readouterr().out


def test_what_cannot_be_served_is_an_error_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["twin", "serve", "--model", "llama-3.1-405b", "--fabric", "dgx-h100-ib", "--requests", "5"]) != 0
    assert "does not fit" in capsys.readouterr().err
    assert main([*SERVE]) != 0
    assert "--requests" in capsys.readouterr().err


def test_a_field_is_searched_for_the_edge_of_an_slo(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = [*SERVE[:6], "--replicas", "1", "--requests", "60", "--rate", "1000", "--lengths", "500,50"]
    assert main([*drawn, "--search", "clients=1..32", "--slo", "1,0.008", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "keeps 99 of 100 requests within 1 s" in told["notes"][0]
    assert [row["scenario"]["clients"] for row in told["simulated"]][:1] == [1]
    for wrong, says in (
        (["--search", "clients=1..x", "--slo", "1,1"], "as in clients=1..999"),
        (["--search", "clients=1..9"], "and --slo"),
        (["--search", "clients=1..9", "--slo", "nan,1"], "seconds above 0"),
        (["--search", "clients=1..9", "--slo", "1,1", "--tensor", "1,2"], "of one setting"),
    ):
        assert main([*drawn, *wrong]) != 0
        assert says in capsys.readouterr().err


def test_a_dtype_without_a_rate_is_said_in_comparisons_too(capsys: pytest.CaptureFixture[str]) -> None:
    first = ["twin", "serve", "--model", "llama-3.1-8b", "--fabric", "dgx-a100-ib", "--replicas", "1"]
    assert main([*first, "--requests", "5", "--dtype", "bfloat16,fp8", "--json"]) == 0
    assert "a100_sxm keeps weights in fp8" in " ".join(json.loads(capsys.readouterr().out)["notes"])
