"""A host that holds the key and sends nonsense as the bytes of a unit: the other keeper ends the connection, and lives.

This test is host 0: it answers the keeper of host 1, which is real, and then sends pieces that no keeper sends.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from openshelf.errors import HostLost
from openshelf.show.tour import Host, on_loopback
from tests.conformance.transports import TCP, Connection, Listener

HELLO, WELCOME, SYNC, PING, PONG, PIECE, MESSAGE = 1, 2, 16, 17, 18, 19, 21
GETS, BACK, DATAS, GRANT = 0, 3, 4, 6
PAGE, UNIT = 4096, 65536

OPEN = """
import sys
import openshelf
space = openshelf.Space.open(sys.argv[1], contribute="16MiB")
space.put("mine", b"still here")
print("open", flush=True)
for line in sys.stdin:
    print(bytes(space["mine"].numpy()).decode(), flush=True)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="openshelf-test-") as made:  # faults need a tmpfs
        yield Path(made)


def frame_id(unit: int, page: int, flags: int) -> int:
    return unit | page << 32 | flags << 56


@contextmanager
def host_1(host: Host) -> Iterator[subprocess.Popen[str]]:
    """A process of the real host, with the space open."""
    with subprocess.Popen(
        [sys.executable, "-c", OPEN, host.url("demo")],
        env=host.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "open\n"
        yield process
        process.stdin.close()


def greeted(listener: Listener) -> Connection:
    """The other keeper's next connection, up to both Syncs."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        connection = listener.accept(1.0)
        if connection is None:
            continue
        try:
            kind, _, hello = connection.receive(10.0) or (0, 0, b"")
            if kind == HELLO and hello[4] == 1:  # a keeper's
                connection.send(WELCOME, 0, b"")
                connection.send(SYNC, 0, struct.pack("<QQII", 1234567, 0, UNIT, 1))
                return connection
        except HostLost:
            continue  # it called before this one listened, and gave up
        connection.close()
    raise AssertionError("no keeper called")


def ended(connection: Connection) -> bool:
    """Whether the other side ends the connection; pings are answered until then."""
    try:
        while got := connection.receive(10.0):
            if got[0] == PING:
                connection.send(PONG, got[1], b"")
    except HostLost:
        return True
    return False


def piece(page: int, pages: int, message: int = DATAS, unit: int = 3) -> tuple[int, int, bytes]:
    return PIECE, frame_id(unit, page, message), bytes(pages * PAGE)


WRONG = {
    "not whole pages": [(PIECE, frame_id(3, 0, DATAS), bytes(100))],
    "nothing": [(PIECE, frame_id(3, 0, DATAS), b"")],
    "too long": [piece(0, 5)],
    "past the end of the unit": [piece(15, 2)],
    "of a page that no unit has": [piece(0xFFFF, 1)],
    "of a unit that no segment has": [piece(0, 1, unit=0xFFFF_FFFF)],
    "of a message that has no bytes": [piece(0, 1, message=GRANT)],
    "of no message": [piece(0, 1, message=200)],
    "twice": [piece(0, 4), piece(2, 1)],
    "of two units": [piece(0, 4), piece(4, 4, unit=4)],
    "before another message": [piece(0, 4), (MESSAGE + GRANT, frame_id(3, 0, 0), b"")],
    "before the message of another unit": [piece(0, 4), (MESSAGE + DATAS, frame_id(4, 0, 0), b"")],
    "too few": [piece(0, 4), (MESSAGE + DATAS, frame_id(3, 0, 0), b"")],
    "none": [(MESSAGE + DATAS, frame_id(3, 0, 0), b"")],
    "in the message itself": [(MESSAGE + DATAS, frame_id(3, 0, 0), bytes(UNIT))],
    "of what was never lent": [piece(0, 1, message=BACK), (MESSAGE + BACK, frame_id(3, 0, 0), b"")],
}


def test_pieces_that_no_keeper_sends_end_the_connection_and_nothing_else(home: Path) -> None:
    with on_loopback(home) as two:
        key = bytes.fromhex(yaml.safe_load(two.b.hosts_file.read_text())["key"])
        listener = TCP.listen(key, "127.0.0.1", int(two.a.address.rsplit(":", 1)[1]))
        try:
            with host_1(two.b) as process:
                keeper = two.b.keeper_pid()
                for what, frames in WRONG.items():
                    connection = greeted(listener)
                    for kind, id, data in frames:
                        connection.send(kind, id, data)
                    assert ended(connection), what
                    connection.close()
                assert process.stdin
                assert process.stdout
                print("?", file=process.stdin, flush=True)
                assert process.stdout.readline() == "still here\n"
                assert two.b.keeper_pid() == keeper
        finally:
            listener.close()


def test_whole_units_in_any_order_of_pieces_are_taken(home: Path) -> None:
    with on_loopback(home) as two:
        key = bytes.fromhex(yaml.safe_load(two.b.hosts_file.read_text())["key"])
        listener = TCP.listen(key, "127.0.0.1", int(two.a.address.rsplit(":", 1)[1]))
        try:
            with host_1(two.b):
                connection = greeted(listener)
                for kind, id, data in (piece(9, 1), piece(10, 4), piece(14, 2), piece(0, 4), piece(4, 4), piece(8, 1)):
                    connection.send(kind, id, data)
                connection.send(MESSAGE + DATAS, frame_id(3, 0, 0), b"")
                connection.send(PING, 77, b"")
                while (got := connection.receive(10.0)) and got[:2] != (PONG, 77):
                    pass
                assert got
                connection.close()
        finally:
            listener.close()
