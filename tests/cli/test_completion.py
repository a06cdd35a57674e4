"""`openshelf completion`: what real shells offer with its scripts."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from openshelf import Space
from openshelf.cli import command_line, main
from openshelf.cli._tree import Command, commands_of

SHELLS = ("bash", "zsh", "fish")
# Lines in, and for each of them a line of what is offered.
ASK = {
    "bash": """
source "$1"
while IFS= read -r line; do
    read -ra COMP_WORDS <<< "$line"
    [[ $line == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
    _openshelf
    printf '%s ' "${COMPREPLY[@]}"
    echo
done
""",
    # Its completion system runs at a prompt only: what our function hands to it is shown.
    "zsh": """
compdef() { }
_files() { for one in ${words[CURRENT]}*(N); do print -n -- "$one "; done }
compadd() { shift; for one in $@; do [[ $one == ${words[CURRENT]}* ]] && print -n -- "$one "; done }
source "$1"
while IFS= read -r line; do
    words=(${(s: :)line})
    [[ $line == *" " ]] && words+=("")
    CURRENT=$#words
    _openshelf
    print
done
""",
    "fish": """
source $argv[1]
while read -l line
    echo (complete -C $line | string replace -r '\\t.*' '')
end
""",
}


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


def offered(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *lines: str) -> list[set[str]]:
    """What a shell offers at the end of each line."""
    assert main(["completion", shell]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "ask").write_text(ASK[shell])
    plain = {"bash": ["bash", "--norc"], "zsh": ["zsh", "-f"], "fish": ["fish", "--no-config"]}[shell]
    command = [*plain, str(tmp_path / "ask"), str(tmp_path / "script")]
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = [set(line.split()) for line in done.stdout.splitlines()]
    assert len(found) == len(lines)
    return found


def test_commands_options_values_and_spaces_are_offered(
    shell: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("demo", "dim.2-x"):
        Space.create(name, dram="16MiB").close()
    (home / "d$(touch broken)").mkdir()  # no name that a space can have: some program put it there
    (home / "d$(touch broken)" / "control").touch()
    (home / "demo@10.0.0.1:7400").mkdir()
    (home / "demo@10.0.0.1:7400" / "control").touch()
    first, kv, spaces, some, options, long, choices, nothing, paths, after = offered(
        shell, tmp_path, capsys,
        "openshelf ", "openshelf kv ", "openshelf stat ", "openshelf kv stat de", "openshelf stat --",
        "openshelf rm --s", "openshelf fabric compare --access ", "openshelf top --interval ",
        "openshelf hosts --hosts scr", "openshelf kv stat --pool kv d",
    )  # fmt: skip
    assert {"ls", "create", "metrics", "completion", "kv", "tour"} <= first
    assert kv == {"ls", "stat"}
    assert spaces == {"demo", "dim.2-x"}
    assert some == {"demo"}
    assert {"--json", "--hosts", "--top"} <= options
    assert long == {"--stale"}
    assert choices == {"load", "store"}
    assert nothing == set()
    assert paths == {"script"}
    assert after == {"demo", "dim.2-x"}
    assert not (tmp_path / "broken").exists()


def leaves() -> list[tuple[str, argparse.ArgumentParser, Command]]:
    """Commands that run, with their parsers."""
    found = []
    for command in commands_of(command_line()):
        if not command.commands:
            parser = command_line()
            for word in command.path:
                (below,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
                parser = below.choices[word]
            found.append((" ".join(command.path), parser, command))
    return found


def test_every_command_has_json_a_description_and_a_help_for_each_argument() -> None:
    found = leaves()
    assert len(found) > 20
    for name, parser, command in found:
        assert "--json" in [one for option in command.options for one in option.names], name
        assert parser.description, name
        assert command.help, name
        assert all(action.help for action in parser._actions), name
        assert parser.format_help(), name


def test_the_script_comes_as_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shell"] == "bash"
    assert "complete -F _openshelf openshelf" in found["script"]
