"""openshelf fabric, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openshelf.cli import main
from openshelf.fabric import Fabric


def test_show_prints_a_summary_a_picture_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "x.svg"
    assert main(["fabric", "show", "gb200-nvl72", "--svg", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "not known, and not in the sum" in text
    assert "modelled" in text
    assert picture.read_text().startswith("<svg")
    assert main(["fabric", "show", "gb200-nvl72", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bill"]["usd"] == {"known": None, "unknown": ["b200", "rack-switch", "nvlink (switch)"]}
    assert main(["fabric", "show", "laptop"]) == 0
    assert main(["fabric", "show", "--json"]) == 0
    assert "scalepool" in json.loads(capsys.readouterr().out.splitlines()[-1])


def test_check_names_assumptions_or_the_line_of_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "check", "cloudmatrix384", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["valid"]
    assert "protocols.unifiedbus.end_s" in [each["figure"] for each in found["assumed"]]
    assert main(["fabric", "check", "laptop"]) == 0
    assert "assumed: places[0].capacity_bytes = 1.6e+10" in capsys.readouterr().out
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: bad\nplaces: 3\n")
    assert main(["fabric", "check", str(bad)]) == 1
    assert "bad.yaml, line 2, column 9: places: expected a list" in capsys.readouterr().err


def test_diff_shows_what_was_changed_and_what_comes_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "diff", "scalepool", "scalepool-rdma"]) == 0
    text = capsys.readouterr().out
    assert "wires.between.protocol: cxl-3 -> infiniband" in text
    assert "farthest, 8 bytes, s:" in text
    assert main(["fabric", "diff", "laptop", "laptop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": [], "outcome": []}


def test_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Fabric"


def test_compare_prints_a_table_and_a_plot_and_marks_extrapolation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "plot.svg"
    assert main(["fabric", "compare", "--protocols", "cxl-3,roce", "--svg", str(plot)]) == 0
    text = capsys.readouterr().out
    assert "beyond the sizes" in text
    assert "us*" in text
    assert "cxl-3" in plot.read_text()
    assert main(["fabric", "compare", "--json", "--switches", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 70
    assert main(["fabric", "compare", "--medium", "string"]) == 1
    assert main(["fabric", "compare", "--length", "-1"]) == 1


def test_derived_lists_misses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "derived"]) == 0
    assert "missed by more than 15 %" in capsys.readouterr().out
    assert main(["fabric", "derived", "--json"]) == 0
    assert sum(not each["met"] for each in json.loads(capsys.readouterr().out)) == 7


def test_fit_reports_every_row_and_writes_what_can_be_included(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {
        "m/ranks2/per_node2": [[2048, 10], [1 << 20, 20], [1 << 24, 180], [1 << 26, 690]],
        "m/send_recv/per_node2": [[2048, 8], [1 << 20, 18], [1 << 24, 178]],
        "m/ranks4/per_node4": [[1 << 22, 80], [1 << 30, 16500]],
        "other/ranks4/per_node4": [[1 << 22, 80], [1 << 23, 160]],
    }
    data, output = tmp_path / "m.json", tmp_path / "fit.yaml"
    data.write_text(json.dumps({"data": rows}))
    told = ["--machine", "m", "--link", "100e9"]
    assert main(["fabric", "fit", str(data), *told, "--hold", "4", "--output", str(output)]) == 0
    text = capsys.readouterr().out
    assert "held back and predicted: median absolute error" in text
    assert "wire: m-within" in output.read_text()
    kept = [json.loads(line) for line in (tmp_path / "fit.yaml.ledger.jsonl").read_text().splitlines()]
    assert [line["rows"] for line in kept] == [7]
    assert main(["fabric", "fit", str(data), *told, "--hold", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["ranks"], row["use"]) for row in found["rows"]].count((4, "predicted")) == 2
    assert [row["nbytes"] for row in found["rows"] if "beyond the calibrated sizes" in row["flags"]] == [1 << 30]
    assert found["ledger"][0]["rows_sha256"] == kept[0]["rows_sha256"]
    assert main(["fabric", "fit", str(data), "--output", str(output)]) == 1
    assert "choose by --machine" in capsys.readouterr().err
    assert main(["fabric", "fit", str(data), "--machine", "none"]) == 1
    assert "no rows of machine 'none'" in capsys.readouterr().err
    assert main(["fabric", "fit", str(tmp_path / "none.json")]) == 1


def test_fit_over_a_fabrics_wires_makes_a_library_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, output = tmp_path / "m.json", tmp_path / "fit.yaml"
    points = [[1 << n, 10 + (1 << n) / 2e5] for n in range(10, 28, 2)]
    data.write_text(json.dumps({"data": {"m/ranks2/per_node2": points}}))
    assert main(["fabric", "fit", str(data), "--fabric", "dgx-a100-ib", "--output", str(output)]) == 0
    (tmp_path / "mine.yaml").write_text("name: mine\ninclude: [dgx-a100-ib, fit.yaml]\n")
    mine = Fabric.load(tmp_path / "mine.yaml")
    assert mine.library
    assert mine.library.name == "m"
    assert {each.wire for regime in mine.library.regimes for each in regime.crossings} == {"nvlink"}
    capsys.readouterr()
