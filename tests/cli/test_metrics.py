"""`openshelf metrics`: all figures of this host, as text and over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import has_threads, keeper_of

import openshelf as osf
from openshelf.cli import main
from openshelf.cli._serve import parse_address
from openshelf.errors import BadInput, NotPermitted
from openshelf.show import figures, figures_text, host_metrics, troubles
from openshelf.space import Space
from openshelf.tables import SGD, DynamicIds

SAMPLE = re.compile(r'^openshelf:[a-z_]+\{[a-z]+="(?:[^"\\]|\\.)*"(?:,[a-z]+="(?:[^"\\]|\\.)*")*\} [0-9.e+-]+$')
RUN = "import sys; from openshelf.cli import main; sys.exit(main())"


def check_form(text: str) -> None:
    """As Prometheus wants it: each name once, its samples together behind it."""
    names: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            names.append(line.split()[2])
        elif not line.startswith("# "):
            assert SAMPLE.match(line), line
            assert line.split("{")[0] == names[-1]
    assert len(names) == len(set(names))


@pytest.fixture
def demo(home: Path) -> Iterator[Space]:
    with Space.create("demo", dram="64MiB") as space:
        space.put("w", np.ones(3))
        with osf.KVPool(space, osf.Layout("m", layers=1, heads=1, head_dim=8, dtype="float32"), capacity="1MiB"):
            pass
        yield space


def test_plain_spaces_and_pools_are_counted(demo: Space, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.close()
    Space.create("damaged", dram="16MiB").close()
    (home / "damaged" / "control").write_bytes(b"nonsense")
    assert main(["metrics"]) == 0
    text = capsys.readouterr().out
    check_form(text)
    assert f'openshelf:space_capacity_bytes{{space="demo"}} {64 << 20}\n' in text
    assert 'openshelf:space_arrays{space="demo"} 2\n' in text
    assert 'openshelf:space_members{space="demo"} 0\n' in text
    assert 'openshelf:space_readable{space="damaged"} 0\n' in text
    assert 'openshelf:kv_cache_blocks{space="demo",pool="kv"} 0\n' in text
    assert "# left out: damaged:" in text
    assert main(["metrics", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["spaces"]] == ["damaged", "demo"]
    assert found["spaces"][1]["free"] > 0


def test_tables_are_counted(demo: Space) -> None:
    table = osf.Table.create(demo, "users", rows=100, dim=4, optimizer=SGD(1.0))
    table.lookup([1, 2, 3])
    table.update([5], np.ones((1, 4)))
    keyed = osf.Table.create(demo, "items", rows=16, dim=4, keys=DynamicIds(admit_after=1))
    keyed.write([-7, 1 << 60], np.ones((2, 4)))
    for one in (table, keyed, demo):
        one.close()
    text = figures_text(figures())
    check_form(text)
    for line in (
        'table_rows{space="demo",table="users"} 100', 'table_read_rows_total{space="demo",table="users"} 3',
        'table_updated_rows_total{space="demo",table="users"} 1',
        'table_interrupted_total{space="demo",table="users"} 0',
        'table_rows{space="demo",table="items"} 16', 'table_keys{space="demo",table="items"} 2',
        'table_admitted_total{space="demo",table="items"} 2', 'table_evicted_total{space="demo",table="items"} 0',
    ):  # fmt: skip
        assert f"openshelf:{line}\n" in text
    assert 'table_keys{space="demo",table="users"}' not in text


def test_a_table_that_cannot_be_read_does_not_hide_what_can(demo: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("good", 'a "quoted"\\name'):
        osf.Table.create(demo, name, rows=10, dim=4).close()
    demo.close()
    monkeypatch.setattr("openshelf.show.exposition.tables", lambda _: ["good", "gone", 'a "quoted"\\name'])
    text = figures_text(figures())
    check_form(text)
    assert 'openshelf:table_rows{space="demo",table="good"} 10\n' in text
    assert 'openshelf:table_rows{space="demo",table="a \\"quoted\\"\\\\name"} 10\n' in text
    assert "# left out: demo, table 'gone': there is no table 'gone'" in text
    assert 'openshelf:kv_cache_blocks{space="demo",pool="kv"} 0\n' in text


def test_hosts_are_counted(url: str, home: Path) -> None:
    program = f"import openshelf, sys; s = openshelf.Space.open({url!r}, contribute='16MiB'); print(flush=True)"
    command = [sys.executable, "-c", f"{program}; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        text = figures_text(figures())
        other.communicate()
    check_form(text)
    here, there = url.split("/")[2], "127.0.0.2"
    assert re.search(rf'openshelf:host_up{{space="{url}",host="{here}"}} 1\n', text)
    assert re.search(rf'openshelf:host_up{{space="{url}",host="{there}:[0-9]+"}} 0\n', text)
    assert f'openshelf:host_capacity_bytes{{space="{url}",host="{here}"}} {16 << 20}\n' in text
    assert re.search(rf'openshelf:host_misses_total{{space="{url}",host="{there}:[0-9]+"}} 0\n', text)

    with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
        os.kill(keeper := keeper_of(home), signal.SIGKILL)
    while has_threads(keeper):  # looking at hosts while it ends could start the next one
        time.sleep(0.02)
    assert troubles(found := figures()) == [f"{url}: the keeper of this host, {here}, does not answer"]
    assert f'openshelf:host_up{{space="{url}",host="{here}"}} 0\n' in figures_text(found)


def test_a_host_that_answers_without_the_space_is_not_up() -> None:
    one = {"host": "h:1", "up": False, "answers": True, "bytes": None, "round_trip_us": 250.0}
    text = host_metrics({"openshelf://h:1/x": [one]})
    assert 'host_up{space="openshelf://h:1/x",host="h:1"} 0\n' in text
    assert 'host_answers{space="openshelf://h:1/x",host="h:1"} 1\n' in text
    assert 'host_round_trip_seconds{space="openshelf://h:1/x",host="h:1"} 0.00025\n' in text
    assert "host_capacity_bytes{" not in text


@contextlib.contextmanager
def serving(*args: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-c", RUN, "metrics", "--listen", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, int(json.loads(process.stdout.readline())["url"].split(":")[2].split("/")[0])
        finally:
            process.kill()


def asked(port: int, request: bytes) -> str:
    """The whole answer to these bytes."""
    with socket.create_connection(("127.0.0.1", port), 60) as line:
        line.sendall(request)
        found = b""
        while piece := line.recv(65536):
            found += piece
    return found.decode()


def test_they_are_served_and_nothing_else_is(demo: Space) -> None:
    with serving("127.0.0.1:0", "--json") as (process, port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as found:
            assert found.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = found.read().decode()
        check_form(text)
        assert 'openshelf:space_members{space="demo"} 1\n' in text
        get = "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for path in (
            "/",
            "/metrics/",
            "//metrics",
            "/../metrics",
            "/metrics/../../etc/passwd",
            "/%6detrics",
        ):
            assert asked(port, (get % path).encode()).startswith("HTTP/1.1 404 "), path
        assert asked(port, (get % "/metrics?x=1").encode()).startswith("HTTP/1.1 200 ")  # Prometheus' params
        for method in ("POST", "HEAD", "PUT", "DELETE", "OPTIONS", "get"):
            answer = asked(port, f"{method} /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            assert answer.startswith("HTTP/1.1 405 "), method
            assert "Allow: GET" in answer
        for wrong in (b"GET /metrics\r\n\r\n", b"\r\n\r\n", b"GET /metrics HTTP/9\r\n\r\n", b"\xff\x00 \xfe\r\n\r\n"):
            assert asked(port, wrong).startswith("HTTP/1.1 400 ")
        rebound = b"GET /metrics HTTP/1.1\r\nHost: evil.example:9100\r\n\r\n"
        assert asked(port, rebound).startswith("HTTP/1.1 403 ")
        # Far too much: refused, or cut off while it is still being sent.
        with contextlib.suppress(ConnectionError):
            assert asked(port, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * (1 << 20)).startswith("HTTP/1.1 431 ")
        assert asked(port, (get % "/metrics").encode()).startswith("HTTP/1.1 200 ")
        idle = socket.create_connection(("127.0.0.1", port), 60)  # it does not hold up the end
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
        idle.close()


def test_health_says_what_is_wrong_on_this_host(demo: Space, home: Path) -> None:
    with serving("127.0.0.1:0", "--json") as (_, port):
        get = b"GET /health HTTP/1.1\r\n\r\n"
        answer = asked(port, get)
        assert answer.startswith("HTTP/1.1 200 ")
        assert answer.endswith("\r\n\r\nok\n")
        (home / "damaged").mkdir(mode=0o700)
        (home / "damaged" / "control").write_bytes(b"x" * 4096)
        answer = asked(port, get)
        assert answer.startswith("HTTP/1.1 503 ")
        assert "damaged: " in answer
        assert asked(port, b"POST /health HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 405 ")


def test_only_the_own_keeper_is_this_hosts_trouble() -> None:
    hosts = [{"host": "a:1", "own": True, "answers": True}, {"host": "b:1", "own": False, "answers": False}]
    assert troubles({"spaces": [], "hosts": {"openshelf://a:1/x": hosts}}) == []
    hosts[0]["answers"] = False
    assert troubles({"spaces": [], "hosts": {"openshelf://a:1/x": hosts}}) == [
        "openshelf://a:1/x: the keeper of this host, a:1, does not answer"
    ]


def test_who_says_nothing_is_hung_up_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "RUN", f"import openshelf.cli._serve as s; s._MOST_S = 1.0; {RUN}")
    with serving("127.0.0.1:0", "--json") as (_, port), socket.create_connection(("127.0.0.1", port), 60) as silent:
        assert silent.recv(1) == b""


def test_silence_keeps_nobody_out(home: Path) -> None:
    """Of many who say nothing the oldest goes for each who comes."""
    get = b"GET /metrics HTTP/1.1\r\n\r\n"
    with serving("127.0.0.1:0", "--json") as (_, port), contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        for _ in range(3):
            assert asked(port, get).startswith("HTTP/1.1 200 ")
        with contextlib.suppress(ConnectionResetError):
            assert first.recv(1) == b""


def test_without_descriptors_it_serves_on_and_prints_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is silent goes; who asked is answered, if only that nothing can be looked at now."""
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))"
    monkeypatch.setattr(sys.modules[__name__], "RUN", f"{few}; {RUN}")
    get = b"GET /metrics HTTP/1.1\r\n\r\n"
    with serving("127.0.0.1:0", "--json") as (process, port), contextlib.ExitStack() as stack:
        for number in range(60):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            if number % 2:
                line.sendall(get)
                line.shutdown(socket.SHUT_WR)
        answer = ""
        while not answer.startswith("HTTP/1.1 200 "):
            with contextlib.suppress(ConnectionError):  # hung up on before it was heard
                answer = asked(port, get)
                assert answer.startswith(("HTTP/1.1 200 ", "HTTP/1.1 500 ", "HTTP/1.1 503 ")), answer
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_only_this_machine_is_listened_to_unless_it_is_said() -> None:
    assert parse_address("127.0.0.1:9100", False) == ("127.0.0.1", 9100)
    assert parse_address("localhost:0", False) == ("127.0.0.1", 0)
    assert parse_address("[::1]:9100", False) == ("::1", 9100)
    for public in ("0.0.0.0:9100", "[::]:9100", "10.0.0.1:9100", "[::ffff:10.0.0.1]:80"):
        with pytest.raises(NotPermitted, match="--anybody"):
            parse_address(public, False)
    assert parse_address("0.0.0.0:9100", True) == ("0.0.0.0", 9100)
    for wrong in ("9100", "127.0.0.1", "example.org:80", "127.0.0.1:99999", ":9100", "127.0.0.1:-1", ""):
        with pytest.raises(BadInput):
            parse_address(wrong, True)


def test_a_port_that_is_taken_is_said(home: Path, capsys: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["metrics", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"]) == 1
    assert "Address already in use" in capsys.readouterr().err
