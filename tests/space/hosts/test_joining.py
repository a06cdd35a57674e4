"""Opening by URL on one host: its part of the space, its keeper, and what is refused."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import AddressOccupied, BadInput, Mismatch, NotPermitted, OpenshelfError, UnknownName
from openshelf.space import new_hosts_file, read_hosts
from openshelf.space.hosts import start_keeper
from tests.conftest import alive, keeper_of
from tests.processes import Peer, State


def shard_of(home: Path) -> Path:
    (path,) = home.glob("demo@*")
    return path


def test_the_first_open_makes_this_hosts_part_and_starts_its_keeper(home: Path, url: str) -> None:
    with Space.open(url, contribute="16MiB") as space:
        assert space.name == "demo"
        assert space.put("a", np.arange(4)).numpy().tolist() == [0, 1, 2, 3]
        assert space["a"].home == url.split("/")[2]
        own, other = space.hosts()
        assert (own["own"], own["up"], own["bytes"]) == (True, True, 16 << 20)
        assert (other["own"], other["up"], other["bytes"]) == (False, False, None)
        assert alive(keeper_of(home))
        assert read_hosts().key.hex() not in Path(f"/proc/{keeper_of(home)}/cmdline").read_text()
        assert os.getsid(keeper_of(home)) != os.getsid(0)
    assert shard_of(home).name == f"demo@{url.split('/')[2]}"


def test_keeper_stays_while_processes_come_and_go_however_short_they_stay(
    home: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENSHELF_LINGER", "2")
    visits, keeper, last = 0, 0, 0.0
    while visits < 8:  # for longer than it lingers
        Space.open(url).close()
        now = time.monotonic()
        if now - last > 1.5:  # the machine is busy: from here
            visits, keeper = 0, keeper_of(home)
        assert keeper_of(home) == keeper
        visits, last = visits + 1, now
        time.sleep(0.4)


def test_spaces_of_one_process_share_and_the_room_grows(home: Path, url: str) -> None:
    first, second = Space.open(url, contribute="16MiB"), Space.open(url)
    assert first._native is second._native
    assert second.describe()["bytes"] == 16 << 20
    third = Space.open(url, contribute="24MiB")
    assert first.describe()["bytes"] == 24 << 20
    assert Space.open(url, contribute="16MiB").describe()["bytes"] == 24 << 20
    with pytest.raises(Mismatch, match=r"contribute=8 MiB: .* was made with 16 MiB"):
        Space.open(url, contribute="8MiB")
    third.grow("8MiB")
    assert first.describe()["bytes"] == 32 << 20
    with pytest.raises(NotPermitted, match="open for writing"):
        Space.open(url, "r")


def test_the_unit_stays_as_it_was_chosen(home: Path, url: str) -> None:
    for wrong in ("3KiB", "5000", "4MiB", "1KiB"):
        with pytest.raises(BadInput, match="power of two from 4 KiB to 2 MiB"):
            Space.open(url, unit=wrong)
    with Space.open(url, contribute="16MiB", unit="4KiB") as space:
        assert space.describe()["unit"] == 4096
    with Space.open(url) as space:
        assert space.describe()["unit"] == 4096
    with pytest.raises(BadInput, match="has units of 4 KiB, not 64 KiB"):
        Space.open(url, unit="64KiB")


def test_a_host_that_moved_in_the_list_is_refused(home: Path, url: str) -> None:
    Space.open(url, contribute="16MiB").close()
    path = home / "hosts.yaml"
    listed = read_hosts()
    swapped = home / "swapped.yaml"
    new_hosts_file(swapped, listed.hosts[::-1])
    with pytest.raises(BadInput, match=r"was made as host 0 of 2, .* the hosts file says host 1 of 2"):
        Space.open(url, hosts=swapped)
    longer = home / "longer.yaml"
    longer.write_text(path.read_text() + '  - "127.0.0.3:7400"\n')
    longer.chmod(0o600)
    with pytest.raises(BadInput, match="says host 0 of 3"):
        Space.open(url, hosts=longer)


def test_addresses_that_are_taken_are_refused_before_anything_is_made(home: Path, url: str) -> None:
    base = read_hosts().base_of("demo")
    with Space.create("local", "16MiB", base=base + (128 << 30)):  # where the other host will be
        with pytest.raises(AddressOccupied, match="another space of yours"):
            Space.open(url)
    assert not list(home.glob("demo@*"))


def test_removing_takes_this_hosts_part(home: Path, url: str) -> None:
    space = Space.open(url, contribute="16MiB")
    space.put("a", np.zeros(4))
    assert Space.members(url) >= 1
    with pytest.raises(NotPermitted, match="in use"):
        Space.remove(url)
    space.close()
    Space.remove(url)
    assert not list(home.glob("*demo*"))
    with pytest.raises(UnknownName):
        Space.remove(url)
    with Space.open(url, contribute="16MiB") as space:
        assert list(space) == []


def open_by_url(state: State, url: str, mode: str) -> Any:
    state["space"] = Space.open(url, mode)
    return state["space"]["a"].numpy().tolist()


def store(state: State) -> None:
    state["space"]["a"].numpy()[0] = 1


def test_processes_of_a_host_share_its_keeper(home: Path, url: str, peer: Peer) -> None:
    with Space.open(url, contribute="16MiB") as space:
        space.put("a", np.zeros(2))
        before = keeper_of(home)
        assert peer.call(open_by_url, url, "r") == [0, 0]
        assert keeper_of(home) == before
        with pytest.raises(Exception, match="read-only"):
            peer.call(store)


def test_a_killed_keeper_is_replaced(home: Path, url: str) -> None:
    with Space.open(url, contribute="16MiB") as space:
        array = space.put("a", np.zeros(2))
        before = keeper_of(home)
        os.kill(before, signal.SIGKILL)
        end = time.monotonic() + 10
        while (keeper_of(home) == before or not space.hosts()[0]["up"]) and time.monotonic() < end:
            time.sleep(0.01)
        assert keeper_of(home) != before
        array.numpy()[0] = 1
        assert space["a"].numpy()[0] == 1


def test_a_keeper_that_nobody_needs_ends(home: Path, url: str) -> None:
    Space.open(url, contribute="16MiB").close()
    pid, end = keeper_of(home), time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not alive(pid)
    with Space.open(url) as space:
        assert list(space) == []


def test_a_keeper_that_cannot_start_says_why(home: Path, url: str) -> None:
    host = url.split("/")[2]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(host.split(":")[1])))
        taken.listen()
        start = time.monotonic()
        with pytest.raises(OpenshelfError, match=r"(?s)keeper of .* did not start.*Address already in use"):
            Space.open(url, contribute="16MiB")
        assert time.monotonic() - start < 5  # it is seen to have ended


def test_a_socket_whose_path_is_too_long_is_refused(home: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = home / ("x" * 100)
    deep.mkdir(mode=0o700)
    monkeypatch.setenv("OPENSHELF_DIR", str(deep))
    with pytest.raises(BadInput, match="too long for a Unix socket"):
        Space.open(url)


def test_what_linger_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENSHELF_LINGER", raising=False)
    assert start_keeper.linger() == 60
    monkeypatch.setenv("OPENSHELF_LINGER", "soon")
    with pytest.raises(BadInput, match="expected seconds"):
        start_keeper.linger()
