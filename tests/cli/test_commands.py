"""The commands, as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space


def openshelf(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys; from openshelf.cli import main; sys.exit(main())", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | {"COLUMNS": "200"})


def answer(*args: str) -> Any:
    done = openshelf(*args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_ls_shows_spaces_and_who_has_them_open(home: Path) -> None:
    assert answer("ls") == []
    with Space.create("demo", dram="16MiB"):
        (row,) = answer("ls")
        assert row["name"] == "demo"
        assert row["members"] == 1
        assert "demo" in openshelf("ls").stdout
    assert answer("ls")[0]["members"] == 0


def test_ls_shows_a_damaged_space_with_the_reason(home: Path) -> None:
    Space.create("demo", dram="16MiB").close()
    (home / "demo" / "control").write_bytes(b"nonsense")
    assert "not the control file" in answer("ls")[0]["error"]


def test_stat_describes_room_members_and_arrays(home: Path) -> None:
    with Space.create("demo", dram="16MiB") as space:
        space.put("model/weights", np.ones((4, 5), "float32"))
        facts = answer("stat", "demo")
        assert facts["bytes"] == 16 << 20
        assert facts["entries"][0]["name"] == "model/weights"
        assert facts["entries"][0]["shape"] == [4, 5]
        assert {member["pid"] for member in facts["members"]} >= {os.getpid()}
        text = openshelf("stat", "demo").stdout
        assert "model/weights" in text
        assert "16 MiB" in text


def test_rm_refuses_a_space_in_use_unless_forced(home: Path) -> None:
    space = Space.create("demo", dram="16MiB")
    refused = openshelf("rm", "demo")
    assert refused.returncode == 1
    assert "the space 'demo' is open in 1 process(es)" in refused.stderr
    assert answer("rm", "demo", "--force") == {"removed": "demo"}
    assert answer("ls") == []
    space.close()


def test_an_unknown_space_is_an_error_with_the_nearest_names(home: Path) -> None:
    Space.create("demo", dram="16MiB").close()
    for command in ("stat", "rm"):
        done = openshelf(command, "demmo")
        assert done.returncode == 1
        assert "did you mean 'demo'" in done.stderr
        assert "Traceback" not in done.stderr
        as_json = openshelf(command, "demmo", "--json")
        assert json.loads(as_json.stdout)["error"] == "UnknownName"


@pytest.mark.parametrize("command", [[], ["ls"], ["stat"], ["rm"], ["hosts"], ["keeper"], ["probe"], ["tour"]])
def test_help_is_there(command: list[str]) -> None:
    done = openshelf(*command, "--help")
    assert done.returncode == 0
    assert "usage: openshelf" in done.stdout


@pytest.mark.serial
def test_tour_shows_that_nothing_broke(home: Path) -> None:
    chapters = answer("tour")
    chapter = chapters["space"]
    assert chapter["same_address"]
    assert chapter["counted"] == chapter["expected"]
    assert chapter["stores_seen"] == [0.0, 1.0, 2.0, 3.0]
    assert chapter["published_array_whole"]
    assert chapter["check"]["leaked_bytes"] == 0
    assert chapter["check"]["missing_blocks"] == 0
    assert set(chapter["courier_s"]) == {"copy", "pack", "send", "unpack", "write"}
    hosts = chapters["hosts"]
    assert hosts["same_address"]
    assert hosts["loads_right"]
    assert hosts["link"] == "network namespaces" or hosts["without_namespaces"]
    assert set(hosts["median_s"]) == {"bare", "miss", "hit", "store"}
    assert answer("ls") == []
