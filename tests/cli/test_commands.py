"""The commands, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import keeper_of

from openshelf import Space
from openshelf.space.hosts.start_keeper import answers, socket_path


def openshelf(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys; from openshelf.cli import main; sys.exit(main())", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


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


def test_ls_of_a_space_lists_all_its_arrays(home: Path) -> None:
    assert "no space 'demo'" in openshelf("ls", "demo").stderr
    with Space.create("demo", dram="16MiB") as space:
        assert openshelf("ls", "demo").stdout == "no arrays\n"
        for number in range(25):
            space.put(f"model/layer.{number:02}", np.zeros((4, number + 1), "float32"))
        shown = openshelf("ls", "demo").stdout
        assert all(f"model/layer.{number:02} " in shown for number in range(25))
        assert [row["nbytes"] for row in answer("ls", "demo")] == [16 * (number + 1) for number in range(25)]


def test_without_a_command_there_is_help() -> None:
    done = openshelf()
    assert done.returncode == 2
    assert "list the spaces of this user" in done.stderr


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


def test_hosts_new_writes_a_private_file_and_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    assert answer("hosts", "new", str(path), "10.0.0.1:7400", "10.0.0.2:7400")["hosts"] == [
        "10.0.0.1:7400",
        "10.0.0.2:7400",
    ]
    assert path.stat().st_mode & 0o777 == 0o600
    again = openshelf("hosts", "new", str(path), "10.0.0.1:7400")
    assert again.returncode == 1
    assert "exists already" in again.stderr
    assert answer("hosts", "new", str(tmp_path / "key"))["hosts"] == []  # a key alone, for hosts that agree in etcd
    for wrong in (["new"], ["new", str(tmp_path / "x"), "nowhere"], ["a", "b"]):
        refused = openshelf("hosts", *wrong)
        assert refused.returncode == 1
        assert "Traceback" not in refused.stderr
    assert path.read_text().split()[1] not in again.stdout + again.stderr


def test_hosts_shows_who_is_there(url: str) -> None:
    with Space.open(url, contribute="16MiB"):
        here, there = answer("hosts", url, "--measure")
        assert (here["own"], here["up"], here["bytes"]) == (True, True, 16 << 20)
        assert (there["up"], there["bytes"], there["bandwidth"]) == (False, None, None)
        shown = openshelf("hosts", url)
        assert "this host" in shown.stdout, shown.stderr
        assert "down" in shown.stdout
        assert answer("stat", url)["name"] == "demo"
        assert answer("ls")[0]["url"] == url
        assert "in use" in openshelf("rm", url).stderr
    assert answer("rm", url) == {"removed": url}
    assert answer("ls") == []


def test_keeper_runs_until_it_is_told_to_end(home: Path, url: str) -> None:
    command = [sys.executable, "-c", "import sys; from openshelf.cli import main; sys.exit(main())", "keeper"]
    host = url.split("/")[2]
    for last in (signal.SIGTERM, signal.SIGINT):
        with subprocess.Popen([*command, "--host", host], stdout=subprocess.PIPE, text=True) as keeper:
            assert keeper.stdout is not None
            assert f"keeper of {host}, host 0 of" in keeper.stdout.readline()
            while not answers(socket_path(home, host)):
                time.sleep(0.01)
            with Space.open(url, contribute="16MiB") as space:
                assert keeper_of(home) == keeper.pid
                assert space.hosts()[0]["up"]
            keeper.send_signal(last)
            assert keeper.wait(10) == 0
    ambiguous = openshelf("keeper")
    assert ambiguous.returncode == 1
    assert "name the one that is meant" in ambiguous.stderr


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
    kv = chapters["kv"]
    assert kv["answers_equal"]
    assert [request["tokens_found"] for request in kv["requests"]] == [0, 1536, 1536, 1536, 1552]
    assert not any(count for name, count in kv["check"].items() if name not in ("blocks", "free"))
    tiers = chapters["tiers"]
    assert tiers["equal"]
    assert tiers["bytes"] > tiers["dram"]
    assert tiers["layers"][0] == "dram"
    assert "flash" in tiers["layers"]
    assert set(tiers["network"]) == {"in dram", "on flash, touched", "on flash, prefetched"}
    assert tiers["killed"]["equal"]
    assert len(set(tiers["killed"]["keepers"])) == 2
    assert tiers["durable"]["equal"]
    assert tiers["durable"]["later_gone"]
    assert not Path(tiers["directory"]).exists()
    rows = chapters["tables"]
    assert rows["rows_whole"]
    assert rows["changes_seen"] > 0
    assert rows["interrupted"] <= 1
    day = rows["dynamic"]
    assert day["admitted"] - day["evicted"] == day["keys"] <= day["room"]
    assert day["evicted"] > 0
    assert day["served"] > 0.5
    if "skipped" not in chapters["offload"]:  # without torch
        for trial in (chapters["offload"]["inference"], chapters["offload"]["training"]):
            assert trial["equal"]
            assert trial["peak"] <= trial["budget"]
            assert trial["measured_s"] > 0
        assert not Path(chapters["offload"]["directory"]).exists()
    assert answer("ls") == []


@pytest.mark.parametrize("command", [["ls"], ["kv", "stat", "demo"]])
def test_an_unknown_argument_shows_how_the_command_itself_is_used(command: list[str]) -> None:
    done = openshelf(*command, "--no-such")
    assert done.returncode == 2
    assert done.stderr.startswith(f"usage: openshelf {' '.join(command[:2])} [-h]")
    assert "unrecognized arguments: --no-such" in done.stderr
