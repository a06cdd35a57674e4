"""`openshelf twin train`, `search` and `ops`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openshelf.cli import main

TRAIN = ["twin", "train", "dgx-h100-ib", "--model", "llama3.1-8b", "--batch", "256", "--tp", "2", "--dp", "128"]
TABLE = "system,vllm,dtype,n,k,m,us\n" + "".join(
    f"h100_sxm,1,bfloat16,{n},{k},{m},{5 + n * k * m / 1e8}\n"
    for n in (256, 512, 1024)
    for k in (256, 512)
    for m in (1, 64)
)


def test_a_step_is_shown_by_cause_with_memory_and_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--zero", "1"]) == 0
    out = capsys.readouterr().out
    for part in ("compute", "MFU", "memory of a device", "activations", "% off"):
        assert part in out
    assert main([*TRAIN, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["by_cause_s"].values()) == pytest.approx(found["seconds"])
    assert found["fits"] is (found["why_not"] == "")


def test_a_step_writes_its_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "passes.csv"
    degrees = ["--tp", "8", "--dp", "8", "--pp", "4", "--timeline", str(path)]
    assert main(["twin", "train", "dgx-h100-ib", "--model", "gpt3-175b", "--batch", "64", *degrees]) == 0
    assert len(path.read_text().splitlines()) == 1 + 2 * 8 * 4


def test_the_fastest_plans_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["twin", "search", "dgx-h100-ib", "--model", "llama3.1-8b", "--batch", "256", "--accelerators", "16"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"][0]["seconds"] <= found["best"][-1]["seconds"]
    assert found["tried"] > found["too_large"]


def test_what_cannot_be_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--pp", "3"]) == 1
    assert "there are 256 accelerators" in capsys.readouterr().err
    assert main(["twin", "ops", "show", "h100_sxm", "--op", "gemm", "--shape", "m"]) == 1
    assert "NAME=VALUE" in capsys.readouterr().err


def test_tables_are_imported_fitted_and_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gemm.csv").write_text(TABLE)
    out, laws = tmp_path / "out", tmp_path / "laws.yaml"
    assert main(["twin", "ops", "import", str(tmp_path / "gemm.csv"), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {str(out / "gemm.csv"): 12}
    assert main(["twin", "ops", "fit", str(out), "--out", str(laws), "--source", "mine", "--json"]) == 0
    fitted = json.loads(capsys.readouterr().out)["gemm"]["h100_sxm"]["bfloat16"]
    assert (fitted["rows"], fitted["source"]) == (12, "mine, 1")
    ask = ["twin", "ops", "show", "h100_sxm", "--op", "gemm", "--json", "--shape"]
    for shape, how in (("m=64,n=512,k=512", "exact"), ("m=64,n=700,k=512", "borrowed"), ("m=999,n=512,k=512", "held")):
        assert main([*ask, shape, "--table", str(out)]) == 0
        assert json.loads(capsys.readouterr().out)["how"] == how
    assert main([*ask, "m=64,n=512,k=512", "--laws", str(laws)]) == 0
    assert json.loads(capsys.readouterr().out)["how"] == "roofline"
    assert main(["twin", "ops", "show", "h100_sxm"]) == 0
    assert "aiconfigurator" in capsys.readouterr().out.replace("\n", "")
