"""`openshelf plan`, as a user types it."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from openshelf.cli import main  # noqa: E402

MODEL = """
import torch

def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(6)))

inputs = torch.ones(4, 128)

def loss(result):
    return result.square().mean()
"""


@pytest.fixture(autouse=True)
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENSHELF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds the file's folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def said(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    assert main(["plan", *map(str, args), "--time-limit", "0.2", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    assert main(["plan", *map(str, args)]) == 1
    message = capsys.readouterr().err
    assert message.startswith("openshelf: ")
    assert message.count("\n") == 1
    return message


def test_plan_of_a_file_with_pictures(capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path) -> None:
    svg, trace = tmp_path / "plan.svg", tmp_path / "plan.json.gz"
    facts = said(
        capsys,
        file,
        "--budget",
        "200KiB",
        "--fabric",
        "laptop",
        "--svg",
        svg,
        "--trace",
        trace,
        "--explain",
        "3.weight",
    )
    assert facts["peak"] <= 200 << 10 < facts["given_bytes"]
    assert facts["moved_bytes"]["flash_read"] + facts["stays_bytes"] >= 6 * 128 * 128 * 4
    assert facts["stays_bytes"] < facts["arena"] < facts["moved_bytes"]["flash_read"] + facts["stays_bytes"]
    assert facts["predicted_s"] == pytest.approx(facts["compute_s"] + facts["exposed_s"])
    assert facts["explain"].startswith("3.weight")
    assert svg.read_text().startswith("<svg")
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]


def test_run_and_check_of_a_file(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    facts = said(capsys, "run", file, "--budget", "200KiB")
    assert facts["run"]["results"] == [[4, 128]]
    assert facts["run"]["moved_bytes"]["flash_read"] >= facts["given_bytes"]
    facts = said(capsys, "check", file, "--budget", "200KiB")
    assert facts["check"]["predicted_s"] == facts["predicted_s"]
    assert facts["check"]["measured_s"] > 0


def test_training_of_a_file_gives_its_loss(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    facts = said(capsys, "run", file, "--budget", "600KiB", "--fabric", "laptop", "--train")
    names: dict[str, Any] = {}
    exec(MODEL, names)
    expected = names["loss"](names["model"]()(names["inputs"]))
    assert facts["run"]["results"] == [expected.item()]
    assert facts["moved_bytes"]["flash_write"] > 0


def test_config_of_transformers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    path = tmp_path / "llama" / "config.json"
    options = ("--fabric", "laptop", "--length", 8)
    facts = said(capsys, "run", path, *options, "--budget", "200KiB", "--batch", 2)
    assert facts["run"]["results"] == [[2, 8, 96]]
    training = said(capsys, path.parent, *options, "--budget", "400KiB", "--train")
    assert training["given_bytes"] == pytest.approx(3 * facts["given_bytes"], rel=0.01)  # two states more
    (path.parent / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    assert "give --weights" in refused(capsys, "run", path.parent, "--budget", "1MiB")
    (path.parent / "adapter.safetensors").touch()
    quick = ("--budget", "200KiB", "--time-limit", 0.2)
    assert "it has adapter.safetensors" in refused(capsys, "run", path.parent, *options, *quick)
    assert "there is no" in refused(capsys, "run", path, "--budget", "200KiB", "--weights", tmp_path / "nowhere")
    weights = ("--weights", tmp_path / "elsewhere.safetensors")
    assert "run" in said(capsys, "run", path, *options, "--budget", "200KiB", "--batch", 2, *weights)
    path.write_text("{}")
    assert "no config of a causal language model" in refused(capsys, path, "--budget", "1MiB")


def test_config_without_transformers_names_the_extra(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    (tmp_path / "config.json").write_text("{}")
    assert "pip install transformers" in refused(capsys, tmp_path, "--budget", "1MiB")


def test_budget_too_small_is_one_line(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert "the least that works is" in refused(capsys, file, "--budget", "1KiB")


def test_what_is_wrong_with_a_file_is_one_line(capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path) -> None:
    assert "no file" in refused(capsys, tmp_path / "none.py", "--budget", "1MiB")
    assert "plan run MODEL" in refused(capsys, file, "--budget", "1MiB", "--weights", file)
    assert "expected MODEL, run MODEL or check MODEL" in refused(capsys, "go", file, "--budget", "1MiB")
    for text, message in (
        ("model = 3\ninputs = 3", "of type int"),
        ("x = 1", "has no `model`"),
        ("\n1 / 0", "line 2: ZeroDivisionError"),
        ("def model():\n    raise OSError('gone')", "line 2: OSError: gone"),
    ):
        file.write_text(text)
        assert message in refused(capsys, file, "--budget", "1MiB")
    (tmp_path / "model.txt").touch()
    assert "neither a Python file" in refused(capsys, tmp_path / "model.txt", "--budget", "1MiB")
