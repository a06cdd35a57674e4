"""Names and messages are other people's text: a terminal is shown what is in them, and obeys none of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from openshelf import KVPool, Layout, Space
from openshelf.cli import main
from openshelf.cli._screen import printable
from openshelf.errors import OpenshelfError
from tests.security.forging import CHECK

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eb"
RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def hostile(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "300")  # nothing is wrapped
    with Space.create("shelf", "16MiB") as space:
        space.put(HOSTILE, np.arange(3))
        space.channel(f"channel {HOSTILE}")
    return home


@pytest.mark.parametrize("command", [["stat", "shelf"], ["ls"], ["kv", "ls", "shelf"], ["stat", HOSTILE]])
def test_commands_show_escape_sequences(hostile: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(command)
    out, err = capsys.readouterr()
    assert out + err
    assert not RAW.search(out + err), repr(out + err)
    if command == ["stat", "shelf"]:
        assert r"a\x1b]0;owned" in out  # what is left of a bell is nothing


def test_a_name_stays_on_its_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Space.create("shelf", "16MiB") as space:
        space.put("a\nb\r\x0b\x85\u2028[red]c", np.arange(3))
        with KVPool(space, Layout("m", layers=1, heads=1, head_dim=8, dtype="float32"), name="p\nq", capacity="1MiB"):
            pass
    assert main(["stat", "shelf"]) == main(["kv", "ls", "shelf"]) == 0
    text = capsys.readouterr().out
    assert len(re.findall(r"a\\nb\\r\\x0b\\x85\\u2028\[red\]c .* int64 .* 24", text)) == 1
    assert len(re.findall(r"p\\nq ", text)) == 2


def test_json_keeps_the_name_exactly(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["stat", "shelf", "--json"])
    text = capsys.readouterr().out
    assert not RAW.search(text.rstrip("\n"))
    assert HOSTILE in [entry["name"] for entry in json.loads(text)["entries"]]


def test_colours_of_our_own_reach_a_terminal_and_those_of_others_do_not(hostile: Path) -> None:
    code = "from openshelf.cli import main; main(['stat', 'shelf'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "FORCE_COLOR": "1"}, capture_output=True, check=True
    )
    text = done.stdout.decode()
    assert "\x1b[" in text
    assert "\x1b]" not in text
    assert "\x1b[2J" not in text


def test_errors_of_the_native_core_are_printable(home: Path) -> None:
    with Space.create("shelf", "1MiB") as space:
        space.put(HOSTILE, np.arange(3))
        with pytest.raises(OpenshelfError) as caught:
            space.put(HOSTILE, np.arange(3), replace=False)
        assert not RAW.search(str(caught.value)), repr(str(caught.value))
        with pytest.raises(OpenshelfError) as caught:
            space[HOSTILE + "x"]
        assert not RAW.search(str(caught.value)), repr(str(caught.value))


def test_a_header_that_a_group_member_rewrote_cannot_speak_to_a_terminal(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Space.create("shelf", "1MiB").close()
    with (home / "shelf" / "control").open("r+b") as file:
        file.seek(CHECK - 1)
        file.write(b"\x1b")
    main(["ls"])
    assert not RAW.search("".join(capsys.readouterr()))


def test_printable_keeps_what_is_text() -> None:
    assert printable("Grüße, 世界\nzwei") == "Grüße, 世界\nzwei"
    assert printable("\x1b[0m\t\u202e") == r"\x1b[0m\t\u202e"
