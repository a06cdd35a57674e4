"""What every command keeps to: examples that it takes, wrong arguments as JSON, files that can be written."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from openshelf.cli import command_line, main
from openshelf.cli._arguments import output_file
from openshelf.cli._examples import examples_of, parts_of

SHELL = {"|", ">", "<"}


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    parts = parts_of(parser)
    if not parts:
        yield parser
    for part in parts.values():
        yield from leaves(part)


LEAVES = list(leaves(command_line()))


@pytest.mark.parametrize("parser", LEAVES, ids=lambda parser: parser.prog)
def test_every_command_has_examples_that_it_takes(
    parser: argparse.ArgumentParser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where examples may write
    own = [line for line in examples_of(parser) if line.startswith(parser.prog)]
    assert own
    for line in own:
        words = shlex.split(line.split("  ")[0])
        end = next((place for place, word in enumerate(words) if word in SHELL), len(words))
        found = command_line().parse_args(words[1:end])
        assert callable(found.run)
        assert any(option.dest == "json" for option in parser._actions)
    assert all(line in parser.format_help() for line in own)


@pytest.mark.parametrize(
    "words", [["create", "x"], ["nope"], ["fabric", "ls", "nope"], ["rm", "a", "b"], ["ls", "--nope"]], ids=" ".join
)
def test_wrong_arguments_are_json_where_json_is_asked_for(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--json"]) == 2
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert said["error"] == "BadInput"
    assert err == ""
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: openshelf")
    assert said["message"] in err


OUTPUTS = [
    ["plan", "model.py", "--budget", "1MiB", "--svg"],
    ["plan", "model.py", "--budget", "1MiB", "--trace"],
    ["fabric", "show", "laptop", "--svg"],
    ["fabric", "compare", "--svg"],
    ["fabric", "fit", "rows.txt", "--output"],
    ["twin", "run", "dgx-h100-ib", "--csv"],
    ["twin", "train", "dgx-h100-ib", "--model", "llama3.1-8b", "--batch", "8", "--timeline"],
    ["twin", "serve", "--requests", "5", "--csv"],
    ["twin", "ops", "fit", "tables", "--out"],
]


@pytest.mark.parametrize("words", OUTPUTS, ids=" ".join)
def test_a_file_that_cannot_be_written_is_said_before_anything_is_done(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, reason in ((tmp_path / "no" / "x.svg", "there is no directory"), (tmp_path, "it is a directory")):
        assert main([*words, str(path)]) == 2
        assert f"{path} cannot be written: {reason}" in capsys.readouterr().err


def test_no_argument_that_writes_a_file_is_unchecked() -> None:
    """`hosts new` and `probe` make directories, and say what they cannot make themselves."""
    for parser in LEAVES:
        for option in parser._actions:
            if option.option_strings and (option.help or "").startswith(("write ", "draw ", "append what ")):
                assert option.type is output_file, (parser.prog, option.option_strings)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "no.txt")
    assert main(["fabric", "fit", missing]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["twin", "run", "dgx-h100-ib", "--et", missing, "--json"]) == 1
    assert missing in json.loads(capsys.readouterr().out)["message"]


def test_fabric_ls_alone_lists_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "ls", "--json"]) == 0
    assert "dgx-h100-ib" in json.loads(capsys.readouterr().out)


def test_inputs_of_a_python_file_are_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text("model = None\n")
    assert main(["plan", str(tmp_path / "model.py"), "--budget", "1MiB", "--batch", "4"]) == 1
    assert "--batch and --length go with a config" in capsys.readouterr().err


def test_create_speaks_of_its_own_options(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["create", "demo", "--dram", "1MiB"]) == 0
    assert main(["create", "demo", "--dram", "1MiB"]) == 1
    assert "give --exist-ok" in capsys.readouterr().err
