"""Commands that show something make nothing, start nothing and join nothing: files are the same before and after."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.test_commands import answer
from tests.conftest import alive, keeper_of

import openshelf as osf
from openshelf.cli import main
from openshelf.errors import NotPermitted, UnknownName
from openshelf.show.tour import Host, TwoHosts, on_loopback
from openshelf.space import Space, describe_space, hosts_of, look, spaces, tiers_of

MIB = 1 << 20
SHM = Path("/dev/shm")
OF_ALL = (["ls"], ["top", "--once", "--interval", "0.01"], ["top", "--prometheus"], ["metrics"])
OF_ONE = (["stat"], ["kv", "ls"], ["kv", "stat", "--prometheus"])


def files(home: Path) -> set[tuple[str, int, int]]:
    """Everything below a directory, with sizes and times of change. Members come and go in theirs."""
    return {
        (str(path.relative_to(home)), path.lstat().st_size, 0 if path.name == "members" else path.lstat().st_ctime_ns)
        for path in home.rglob("*")
    }


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """A command within this process: the code it ends with, and what it says."""
    code = main(args)
    said = capsys.readouterr()
    return code, said.out + said.err


def test_without_spaces_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("OPENSHELF_DIR", str(tmp_path / "none"))
    ours = {path.name for path in SHM.iterdir() if path.name.startswith("openshelf-")}
    for command in OF_ALL:
        assert run(capsys, *command)[0] == 0
    for command in OF_ONE:
        code, said = run(capsys, *command, "demo")
        assert code == 1
        assert "there is no space 'demo'" in said
    assert not (tmp_path / "none").exists()
    assert f"openshelf-{os.getuid()}" in ours or not (SHM / f"openshelf-{os.getuid()}").exists()


def test_a_space_is_left_as_it_was(home: Path, capsys: Any) -> None:
    with Space.create("demo", dram="64MiB") as space:
        space.put("w", np.ones(5))
        with osf.KVPool(space, osf.Layout("m", layers=1, heads=1, head_dim=8, dtype="float32"), capacity="1MiB"):
            pass
    before = files(home)
    for command in [*OF_ALL, *([*one, "demo"] for one in OF_ONE)]:
        assert run(capsys, *command)[0] == 0, command
    assert files(home) == before
    assert Space.members("demo") == 0


def test_who_looks_is_no_member(home: Path) -> None:
    Space.create("demo", dram="16MiB").close()
    assert describe_space("demo")["members"] == []
    with Space.create("other", dram="16MiB"):
        (member,) = answer("stat", "other")["members"]
        assert member["pid"] == os.getpid()


def flash_space(tmp_path: Path) -> None:
    with Space.create("deep", dram="32MiB", flash=f"{tmp_path / 'flash'}:64MiB") as space:
        space.put("w", np.ones(1000))
        with osf.KVPool(space, osf.Layout("m", layers=1, heads=1, head_dim=8, dtype="float32"), capacity="1MiB"):
            pass


@pytest.fixture
def deep(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A space with a flash tier whose keeper has ended; the keeper's number."""
    monkeypatch.setenv("OPENSHELF_LINGER", "0")
    flash_space(tmp_path)
    keeper = tiers_of("deep")["deep"]["keeper"]
    end = time.monotonic() + 60
    while alive(keeper) and time.monotonic() < end:
        time.sleep(0.01)
    yield keeper
    Space.remove("deep")


def test_no_keeper_of_a_flash_tier_is_started(deep: int, home: Path, capsys: Any) -> None:
    before = files(home)
    for command in [*OF_ALL, ["stat", "deep"], ["stat", "deep", "--json"]]:
        assert run(capsys, *command)[0] == 0, command
    for command in (["kv", "ls", "deep"], ["kv", "stat", "deep"]):
        code, said = run(capsys, *command)
        assert code == 1
        assert "looking does not start" in said
    with pytest.raises(NotPermitted):
        look("deep")
    facts = describe_space("deep")
    assert [entry["name"] for entry in facts["entries"]] == ["kv", "w"]
    assert facts["tiers"]["capacity"] == 64 * MIB
    assert files(home) == before


def test_pools_on_flash_are_shown_while_somebody_has_the_space_open(deep: int, home: Path) -> None:
    with Space.open("deep"):
        assert [pool["pool"] for pool in answer("kv", "ls", "deep")] == ["kv"]


def test_a_url_makes_no_part_and_starts_no_keeper(url: str, home: Path, capsys: Any) -> None:
    before = files(home)
    for command in [*OF_ALL, *([*one, url] for one in OF_ONE), ["hosts", url, "--measure"]]:
        code, said = run(capsys, *command)
        assert code == (command not in OF_ALL), said
        assert command in OF_ALL or "this host has no part of" in said
    code, said = run(capsys, "hosts", url)
    assert code == 0
    assert "this host, has not opened this space" in said
    assert "down" in said
    with pytest.raises(UnknownName, match="makes one"):
        look(url)
    assert files(home) == before


def test_a_part_whose_keeper_has_ended_is_shown_without_one(
    url: str, home: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setenv("OPENSHELF_LINGER", "0")
    program = f"import openshelf, sys; s = openshelf.Space.open({url!r}, contribute='16MiB'); s.zeros('w', 3)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    end = time.monotonic() + 60
    while alive(keeper_of(home)) and time.monotonic() < end:
        time.sleep(0.01)
    before = files(home)
    here, there = hosts_of(url)
    assert (here["state"], here["own"], here["bytes"]) == ("up", True, 16 * MIB)
    assert (there["state"], there["up"], there["bytes"]) == ("down", False, None)
    assert [entry["name"] for entry in describe_space(url)["entries"]] == ["w"]
    assert run(capsys, "kv", "ls", url)[0] == 0
    assert run(capsys, "metrics")[0] == 0
    assert files(home) == before


@pytest.fixture
def two(home: Path) -> Iterator[TwoHosts]:
    with on_loopback(home) as found:
        yield found


OPENED = """
import openshelf, sys
space = openshelf.Space.open(sys.argv[1], contribute='16MiB')
print(*(one['state'] for one in space.hosts()), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def opened(host: Host, name: str) -> Iterator[list[str]]:
    """Another process on a host has a space open; the states of all hosts as it sees them."""
    command = [sys.executable, "-c", OPENED, host.url(name)]
    with subprocess.Popen(command, env=host.environment, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().split()
        process.stdin.close()


def test_a_host_that_has_not_opened_the_space_is_told_from_one_that_is_down(
    two: TwoHosts, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name, value in two.b.environment.items():
        monkeypatch.setenv(name, value)
    url = two.b.url("demo")
    assert [one["state"] for one in hosts_of(url)] == ["down", "unopened"]
    with opened(two.a, "other"):  # a runs a keeper, but has opened another space
        before = files(two.b.directory)
        assert [one["state"] for one in hosts_of(url)] == ["unopened", "unopened"]
        assert "has not opened this space" in run(capsys, "hosts", url)[1]
        assert files(two.b.directory) == before
        with opened(two.b, "demo") as seen:
            assert seen == ["unopened", "up"], "as a process that has it open sees it"
            assert [one["state"] for one in hosts_of(url)] == seen
    with opened(two.a, "demo"):
        there, here = json.loads(run(capsys, "hosts", url, "--json")[1])
        assert (there["state"], there["bytes"], here["state"]) == ("up", 16 * MIB, "up")


def test_processes_of_other_hosts_are_counted_apart(
    two: TwoHosts, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name, value in two.a.environment.items():
        monkeypatch.setenv(name, value)
    with opened(two.a, "demo"), opened(two.b, "demo") as seen:
        assert seen == ["up", "up"], "b has called a"
        (found,) = spaces()
        assert (found["members"], found["remote_members"]) == (2, 1), "a process of a, its keeper; a process of b"
        assert Space.members(two.a.url("demo")) == 2
        assert "2 processes, 1 of other hosts" in run(capsys, "ls")[1]
        assert "1 members," in run(capsys, "stat", two.a.url("demo"))[1]
        metrics = run(capsys, "metrics")[1]
        assert f'openshelf:space_members{{space="{found["url"]}"}} 2' in metrics
        assert f'openshelf:space_remote_members{{space="{found["url"]}"}} 1' in metrics


def test_a_part_of_a_space_over_several_hosts_is_named_by_its_url(two: TwoHosts, monkeypatch: Any, capsys: Any) -> None:
    for name, value in two.a.environment.items():
        monkeypatch.setenv(name, value)
    with opened(two.a, "demo"):
        for command in (["stat", "demo"], ["rm", "demo"]):
            code, said = run(capsys, *command)
            assert code == 1
            assert two.a.url("demo") in said
        with pytest.raises(UnknownName, match=two.a.url("demo")):
            Space.open("demo")
