"""What is no note ends the connection that it came on, and nothing else of a keeper."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import numpy as np
import pytest

from openshelf import Space, _core
from openshelf.space import read_hosts
from openshelf.space.hosts import start_keeper
from tests.conftest import alive, keeper_of

_STATUS, _ANSWER, _TIER_ATTACH, _CHILD = 4, 7, 9, 16
NONE_OF_THEM = {
    "a byte": b"\1",
    "no whole kind": bytes(7),
    "kind 0": struct.pack("<5Q", 0, 0, 0, 0, 0),
    "kind 99": struct.pack("<5Q", 99, 0, 0, 0, 0),
    "a kind with high bits": struct.pack("<QQ", 1 << 32 | _STATUS, 1),
    "a kind and nothing": struct.pack("<Q", _STATUS),
    "less than the kind has": struct.pack("<QI", _STATUS, 1),
    "text where there is none": struct.pack("<QQ", _STATUS, 1) + b"x",
    "text after nothing": struct.pack("<Q", _CHILD) + b"x",
    "more than fits": struct.pack("<QQQ", _ANSWER, 0, 0) + bytes(100_000),
}


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _check(pid: int, sock: Path, packet: bytes) -> None:
    before = _descriptors(pid)
    for _ in range(3):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as process:
            process.settimeout(20)
            process.connect(str(sock))
            with open("/dev/null") as one, open("/dev/null") as other:  # which the keeper must not keep
                socket.send_fds(process, [packet], [one.fileno(), other.fileno()])
            assert process.recv(1 << 16) == b""
    assert alive(pid)
    assert _descriptors(pid) == before


@pytest.mark.parametrize("packet", NONE_OF_THEM.values(), ids=NONE_OF_THEM.keys())
def test_a_hosts_keeper_parts_with_who_sends_what_is_no_note(home: Path, url: str, packet: bytes) -> None:
    with Space.open(url, contribute="16MiB") as space:
        _check(keeper_of(home), start_keeper.of_host(home, read_hosts(), 0).socket, packet)
        assert space.put("a", np.arange(4)).numpy().tolist() == [0, 1, 2, 3]
        assert [one["up"] for one in space.hosts()] == [True, False]


@pytest.mark.parametrize("packet", NONE_OF_THEM.values(), ids=NONE_OF_THEM.keys())
def test_a_keeper_of_a_flash_tier_parts_with_who_sends_what_is_no_note(
    home: Path, tmp_path: Path, packet: bytes
) -> None:
    with Space.create("shelf", "32MiB", flash=f"{tmp_path}/flash:64MiB") as space:
        _check(space.describe()["tiers"]["keeper"], start_keeper.of_space(home / "shelf").socket, packet)
        assert space.put("a", np.arange(4)).numpy().tolist() == [0, 1, 2, 3]
    Space.remove("shelf")


def test_a_note_of_the_other_kind_of_keeper_is_refused_and_the_connection_stays(home: Path, url: str) -> None:
    with Space.open(url, contribute="16MiB"), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as process:
        process.settimeout(20)
        process.connect(str(start_keeper.of_host(home, read_hosts(), 0).socket))
        for number in (5, 6):
            process.send(struct.pack("<QQ", 11, number))  # a CancelNote
            answer = process.recv(1 << 16)
            assert struct.unpack_from("<QQQ", answer) == (_ANSWER, number, 0)
            assert b"not for the keeper of a host" in answer


def _asks(process: socket.socket, number: int) -> tuple[int, int, int]:
    process.send(struct.pack("<QQ", _STATUS, number))
    return struct.unpack_from("<QQQ", process.recv(1 << 16))


def test_a_child_whose_connection_is_none_is_nobody(home: Path, url: str, tmp_path: Path) -> None:
    with Space.open(url, contribute="16MiB"), Space.create("shelf", "32MiB", flash=f"{tmp_path}/flash:64MiB") as space:
        host = keeper_of(home), start_keeper.of_host(home, read_hosts(), 0).socket
        tiers = space.describe()["tiers"]["keeper"], start_keeper.of_space(home / "shelf").socket
        for pid, sock in (host, tiers):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as process, open("/dev/null") as null:
                process.settimeout(20)
                process.connect(str(sock))
                assert _asks(process, 1) == (_ANSWER, 1, 0)  # not attached
                before = _descriptors(pid)
                socket.send_fds(process, [struct.pack("<Q", _CHILD)], [null.fileno()])
                assert _asks(process, 2) == (_ANSWER, 2, 0)
                assert _descriptors(pid) == before
    Space.remove("shelf")


def test_a_process_that_attaches_with_no_userfaultfd_is_refused(home: Path, tmp_path: Path) -> None:
    with Space.create("shelf", "32MiB", flash=f"{tmp_path}/flash:64MiB") as space:
        pid, sock = space.describe()["tiers"]["keeper"], start_keeper.of_space(home / "shelf").socket
        note = struct.pack(
            "<QQQIIIIQQ", _TIER_ATTACH, _core.space_id(str(home / "shelf")), os.getpid(), 0, 0, 0, 0, 0, 1
        )
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as process, open("/dev/null") as null:
            process.settimeout(20)
            process.connect(str(sock))
            socket.send_fds(process, [note], [null.fileno()])
            assert b"no userfaultfd" in process.recv(1 << 16)
        assert alive(pid)
        assert space.put("a", np.arange(4)).numpy().tolist() == [0, 1, 2, 3]
    Space.remove("shelf")
