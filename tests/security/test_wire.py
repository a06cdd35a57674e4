"""Who has no key gets nothing, and who sits in the middle can end a connection but never change what it says.

Every bit, every cut and 50,000 streams of chance are tried in native/tests/net/wire_attack_test.cpp. Here the same is
seen from Python, through a real socket and a real man in the middle.
"""

from __future__ import annotations

import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import openshelf
from openshelf.errors import HostLost, Refused
from tests.conformance.transports import TCP, Connection

KEY = bytes(range(32))
HELLO, HEAD, TAG = 72, 16, 16

Alter = Callable[[bytes], list[bytes]]  # of the bytes that the dialer sent: what goes on instead


def answer_to(port: int, said: bytes, end: bool = True) -> bytes:
    """All that a listener sends back to these bytes before it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(said)
        if end:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
        got = b""
        with suppress(ConnectionResetError):
            while more := sock.recv(4096):
                got += more
        return got


@contextmanager
def serving() -> Iterator[int]:
    """A listener that keeps accepting; gives its port."""
    listener = TCP.listen(KEY)
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            listener.accept(0.05)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield listener.port
    over.set()
    thread.join()
    listener.close()


def read_exactly(sock: socket.socket, nbytes: int) -> bytes:
    got = b""
    while len(got) < nbytes and (more := sock.recv(nbytes - len(got))):
        got += more
    return got


def through(alter: Alter, frames: list[bytes]) -> tuple[list[bytes], type[Exception] | None]:
    """What a listener receives of `frames` when somebody in the middle alters them, and how the connection ended."""
    listener = TCP.listen(KEY)
    with socket.create_server(("127.0.0.1", 0)) as middle, ThreadPoolExecutor(2) as pool:
        dialing = pool.submit(TCP.connect, "127.0.0.1", middle.getsockname()[1], KEY)
        accepting = pool.submit(listener.accept, 10)
        left, _ = middle.accept()
        with left, socket.create_connection(("127.0.0.1", listener.port)) as right:
            right.sendall(read_exactly(left, HELLO))
            left.sendall(read_exactly(right, HELLO))
            here, there = dialing.result(), accepting.result()
            assert there is not None
            sealed = []
            for number, frame in enumerate(frames):
                here.send(1, number, frame)
                sealed.append(read_exactly(left, HEAD + len(frame) + TAG))
            for piece in alter(b"".join(sealed)):
                right.sendall(piece)
        return drain(there)


def drain(there: Connection) -> tuple[list[bytes], type[Exception] | None]:
    got: list[bytes] = []
    try:
        while frame := there.receive(10):
            got.append(frame[2])
    except (HostLost, Refused) as error:
        return got, type(error)
    return got, None


FRAMES = [b"first", b"second!", b"third.."]
FIRST, SECOND, THIRD = (HEAD + len(frame) + TAG for frame in FRAMES)


def test_untouched_frames_go_through_the_middle() -> None:
    assert through(lambda stream: [stream], FRAMES) == (FRAMES, HostLost)


@pytest.mark.parametrize(
    ("alter", "whole"),
    [
        (lambda s: [s[:FIRST], s[:FIRST]], 1),
        (lambda s: [s, s[-THIRD:]], 3),
        (lambda s: [s[FIRST : FIRST + SECOND], s[:FIRST]], 0),
        (lambda s: [s[:FIRST], s[-THIRD:]], 1),
        (lambda s: [s[:20], bytes([s[20] ^ 1]), s[21:]], 0),
        (lambda s: [s[:FIRST], b"\xff" * 16], 1),
    ],
    ids=["repeated", "repeated at the end", "swapped", "left out", "one bit", "invented"],
)
def test_frames_that_are_not_as_sent_are_refused(alter: Alter, whole: int) -> None:
    assert through(alter, FRAMES) == (FRAMES[:whole], Refused)


@pytest.mark.parametrize("cut", [1, HEAD, FIRST - 1, FIRST, FIRST + 3])
def test_a_cut_stream_gives_whole_frames_only(cut: int) -> None:
    assert through(lambda stream: [stream[:cut]], FRAMES) == (FRAMES[: int(cut >= FIRST)], HostLost)


def test_without_the_key_nothing_is_answered() -> None:
    chance = random.Random(3)
    with serving() as port:
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n", b"OSHF", b"OSHF" + bytes(68), b"OSHF" + bytes(5000)):
            assert answer_to(port, said) == b""
        for _ in range(200):
            noise = chance.randbytes(chance.randrange(1, 300))
            assert answer_to(port, noise if chance.random() < 0.5 else b"OSHF\1\0\0\0" + noise) == b""


def test_who_connects_and_says_nothing_is_sent_away_and_keeps_nobody_out() -> None:
    with serving() as port, ThreadPoolExecutor(1) as pool:
        start = time.monotonic()
        silent = pool.submit(answer_to, port, b"OSHF", False)
        TCP.connect("127.0.0.1", port, KEY).close()
        assert time.monotonic() - start < 1.5
        assert silent.result() == b""
        assert time.monotonic() - start < 8


def test_a_hello_that_was_overheard_is_answered_once() -> None:
    heard: list[bytes] = []
    with serving() as port, socket.create_server(("127.0.0.1", 0)) as middle, ThreadPoolExecutor(1) as pool:
        dialing = pool.submit(TCP.connect, "127.0.0.1", middle.getsockname()[1], KEY, 2)
        left, _ = middle.accept()
        with left:
            heard.append(read_exactly(left, HELLO))
        with pytest.raises(HostLost):
            dialing.result()
        assert len(answer_to(port, heard[0])) == HELLO
        assert answer_to(port, heard[0]) == b""


def test_strangers_leave_no_open_files() -> None:
    with serving() as port:
        answer_to(port, b"warm")
        time.sleep(0.2)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(300):
            answer_to(port, os.urandom(80))
        deadline = time.monotonic() + 5
        while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(os.listdir("/proc/self/fd")) <= before


def test_a_listener_is_on_loopback_unless_told_otherwise() -> None:
    listener = TCP.listen(KEY)
    table = Path("/proc/net/tcp").read_text()
    listener_rows = [row for row in table.splitlines() if f":{listener.port:04X} 00000000:0000 0A" in row]
    assert len(listener_rows) == 1
    assert "0100007F:" in listener_rows[0]
    listener.close()


# The tour times what a message costs, packing included, between a program and its own child: nothing comes from a wire.
SHOWN = {Path("show/tour/courier_steps.py")}


def test_nothing_that_runs_what_it_reads_is_in_the_package() -> None:
    unsafe = re.compile(
        r"\b(pickle|cPickle|cloudpickle|dill|marshal|shelve)\b|\byaml\.(unsafe_)?load\(|\beval\(|\bexec\("
    )
    root = Path(openshelf.__file__).parent
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in root.rglob("*.py")
        if path.relative_to(root) not in SHOWN
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if unsafe.search(line)
    ]
    assert found == []
