"""The tour's two hosts: parted but for the wire, gone afterwards; and orders reach processes on either."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf.errors import NotPermitted
from openshelf.show.tour import Failed, Host, Line, TwoHosts, in_namespaces, obey, on_loopback, serve_bare, time_bare


def _add(left: int, right: int) -> int:
    return left + right


def _die() -> None:
    os._exit(3)


def _serve(ip: str) -> int:
    return serve_bare(ip, np.full(4096, 7, np.uint8))


def _ask(ip: str, port: int) -> int:
    target = np.zeros(4096, np.uint8)
    with socket.create_connection((ip, port), 5) as line:
        time_bare(line, target, 3)
    return int(target.sum())


FUNCTIONS: dict[str, Callable[..., Any]] = {"add": _add, "die": _die, "serve": _serve, "ask": _ask}


@pytest.fixture(params=[on_loopback, in_namespaces])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TwoHosts]:
    try:
        with request.param(tmp_path) as found:
            yield found
    except NotPermitted as reason:
        pytest.skip(str(reason))


def worker(host: Host, path: Path) -> Line:
    return Line(path).run([*host.enter, sys.executable, __file__, str(path)], host.environment)


def test_a_process_on_each_host_obeys_and_they_reach_each_other(two: TwoHosts, tmp_path: Path) -> None:
    with worker(two.a, tmp_path / "a.line") as a, worker(two.b, tmp_path / "b.line") as b:
        assert a.call("add", 1, 2) == 3
        assert b.call("ask", two.a.ip, a.call("serve", two.a.ip)) == 7 * 4096


def test_an_order_that_fails_says_why_and_the_next_one_works(two: TwoHosts, tmp_path: Path) -> None:
    with worker(two.b, tmp_path / "b.line") as b:
        with pytest.raises(Failed, match="TypeError"):
            b.call("add", 1)
        assert b.call("add", 1, 1) == 2


def test_a_process_that_dies_is_noticed(two: TwoHosts, tmp_path: Path) -> None:
    with worker(two.a, tmp_path / "a.line") as a, pytest.raises(Failed, match="gone"):
        a.call("die")


def test_a_process_that_never_starts_is_noticed(tmp_path: Path) -> None:
    with (
        Line(tmp_path / "x.line").run([sys.executable, "-c", "exit('no way')"], os.environ) as line,
        pytest.raises(Failed, match="no way"),
    ):
        line.call("add", 1, 1)


def test_hosts_have_their_own_directory_and_one_private_file(two: TwoHosts) -> None:
    assert two.a.directory != two.b.directory
    assert stat.S_IMODE(two.a.hosts_file.stat().st_mode) == 0o600
    assert two.a.address in two.a.hosts_file.read_text()
    assert two.b.url("demo") == f"openshelf://{two.b.address}/demo"


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_keeper_is_found_by_its_socket(tmp_path: Path, kind: socket.SocketKind) -> None:
    with on_loopback(tmp_path) as two:
        with pytest.raises(ProcessLookupError):
            two.b.keeper_pid()
        path = two.b.directory / f"keeper@{two.b.address}.sock"
        with socket.socket(socket.AF_UNIX, kind) as listener:
            listener.bind(str(path))
            listener.listen()
            assert two.b.keeper_pid() == os.getpid()
        path.unlink()


def test_namespaces_go_with_their_maker(tmp_path: Path) -> None:
    try:
        with in_namespaces(tmp_path) as two:
            links = subprocess.run([*two.a.enter, "ip", "link"], capture_output=True, text=True).stdout
            assert two.a.device in links
            assert two.b.device not in links.replace(f"@{two.b.device}", "")
            pid = int(two.a.enter[-2])
    except NotPermitted as reason:
        pytest.skip(str(reason))
    assert not Path(f"/proc/{pid}").exists()
    here = subprocess.run(["ip", "link"], capture_output=True, text=True).stdout
    assert two.a.device not in here


if __name__ == "__main__":
    obey(sys.argv[1], FUNCTIONS)
