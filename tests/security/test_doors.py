"""Who is let in: another key or list of hosts is said, silence keeps nobody out, and a full keeper says that it is."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from openshelf import Space
from openshelf.errors import Refused
from openshelf.space import new_hosts_file, read_hosts
from openshelf.space.hosts import start_keeper
from tests.conformance.transports import TCP
from tests.conftest import free_port, keeper_of
from tests.processes import Peer, State
from tests.security.test_wire import KEY, serving

MANY = 64 + 40  # more than may be unproven at a time


@pytest.fixture
def two(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Two hosts on this one, each with a directory of its own; the second's keeper is not there yet."""
    hosts = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
    monkeypatch.setenv("OPENSHELF_LINGER", "1")
    new_hosts_file(home / "hosts.yaml", hosts)
    for number in range(2):
        (home / str(number)).mkdir(mode=0o700)
    yield hosts
    for lock in home.glob("*/keeper@*.lock"):
        os.kill(int(lock.read_text()), 9)


def open_there(state: State, directory: str, url: str, hosts: str) -> None:
    os.environ["OPENSHELF_DIR"] = directory
    state["space"] = Space.open(url, hosts=hosts)


@pytest.fixture
def first(home: Path, two: list[str], peer: Peer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The first host, which another process is on; this one is on the second."""
    peer.call(open_there, str(home / "0"), f"openshelf://{two[0]}/demo", str(home / "hosts.yaml"))
    monkeypatch.setenv("OPENSHELF_DIR", str(home / "1"))
    return two[0]


def test_a_host_with_another_key_is_refused_by_name(home: Path, two: list[str], first: str) -> None:
    new_hosts_file(home / "other.yaml", two)  # the same hosts, a key of its own
    with pytest.raises(Refused, match=f"{first} refused this host: .* another key than {home}/other.yaml"):
        Space.open(f"openshelf://{two[1]}/demo", hosts=home / "other.yaml")
    with Space.open(f"openshelf://{two[1]}/demo", hosts=home / "hosts.yaml") as space:
        assert [one["up"] for one in space.hosts()] == [True, True]


def test_a_host_with_another_list_of_hosts_is_refused_by_name(home: Path, two: list[str], first: str) -> None:
    longer = home / "longer.yaml"
    longer.write_text((home / "hosts.yaml").read_text() + '  - "127.0.0.3:7400"\n')
    longer.chmod(0o600)
    with pytest.raises(Refused, match=f"{first} refused: .*all hosts need the same hosts file"):
        Space.open(f"openshelf://{two[1]}/demo", hosts=longer)


def test_who_has_the_key_gets_in_past_any_number_that_say_nothing() -> None:
    with serving() as port, ExitStack() as silent:
        for _ in range(MANY):
            silent.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        for _ in range(3):
            TCP.connect("127.0.0.1", port, KEY, 10).close()


def test_a_keeper_with_silent_connections_serves_a_newcomer(home: Path, url: str) -> None:
    with Space.open(url, contribute="16MiB"), ExitStack() as silent:
        host, port = url.split("/")[2].split(":")
        for _ in range(MANY):
            silent.enter_context(socket.create_connection((host, int(port)), timeout=10))
        key = read_hosts().key
        TCP.connect(host, int(port), key, 10).close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fill(pid: int) -> None:
    """Lets a keeper have no more descriptors than it has."""
    used = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, used))


def asked(path: Path) -> bytes:
    """What a keeper's socket says to a process that comes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as process:
        process.settimeout(20)
        process.connect(str(path))
        return process.recv(1 << 16)


def check_full_keeper(pid: int, sock: Path, log: Path) -> None:
    fill(pid)
    before, start = cpu_seconds(pid), time.monotonic()
    for _ in range(5):
        assert b"at the limit of" in asked(sock)
    while time.monotonic() - start < 1.5:
        time.sleep(0.05)
    assert cpu_seconds(pid) - before < 0.75 * (time.monotonic() - start)  # one that spins takes all it gets
    said = [line for line in log.read_text().splitlines() if "open files (ulimit -n)" in line]
    assert len(said) == 1, said  # and not once for each


def test_a_hosts_keeper_at_its_limit_says_so_and_sleeps(home: Path, url: str) -> None:
    with Space.open(url, contribute="16MiB"):
        keeper = start_keeper.of_host(home, read_hosts(), 0)
        check_full_keeper(keeper_of(home), keeper.socket, keeper.log)


def test_a_keeper_of_a_flash_tier_at_its_limit_says_so_and_sleeps(home: Path, tmp_path: Path) -> None:
    with Space.create("shelf", "32MiB", flash=f"{tmp_path}/flash:64MiB") as space:
        keeper = start_keeper.of_space(home / "shelf")
        check_full_keeper(space.describe()["tiers"]["keeper"], keeper.socket, keeper.log)
    Space.remove("shelf")


def test_a_process_that_a_full_keeper_cannot_take_is_told_why(home: Path, tmp_path: Path) -> None:
    with Space.create("shelf", "32MiB", flash=f"{tmp_path}/flash:64MiB") as space:
        fill(space.describe()["tiers"]["keeper"])
        code = "from openshelf import Space; Space.open('shelf')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert "open files (ulimit -n)" in done.stderr.splitlines()[-1]
        assert "userfaultfd is" not in done.stderr
    Space.remove("shelf")
