"""openshelf fabric, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openshelf.cli import main


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
