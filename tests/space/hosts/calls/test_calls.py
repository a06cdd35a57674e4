"""Calls of one host by processes of another, over loopback: arrays, names, bytes."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import _core
from openshelf.errors import (
    BadAddress,
    BadInput,
    Closed,
    HostLost,
    NameTaken,
    NoRoom,
    NotPermitted,
    Refused,
    UnknownName,
)
from tests.processes import Peer
from tests.space.hosts.calls import faraway
from tests.space.hosts.calls.faraway import UINT8, Place, bytes_of, call_on, make, put, sound, until
from tests.space.shelf import pattern


@pytest.mark.parametrize("nbytes", [0, 1, 100, 4096, 256 * 1024 - 1, 256 * 1024, 256 * 1024 + 1, 3_000_000])
def test_put_array_is_found_with_its_bytes_and_facts(server: Peer, remote: _core.Remote, nbytes: int) -> None:
    data = pattern(nbytes, nbytes)
    pin = remote.put(data, nbytes, UINT8, 0, (nbytes,), "", "it", False)
    assert (pin.nbytes, pin.dtype, pin.kind, pin.shape, pin.descr, pin.name) == (nbytes, UINT8, 0, (nbytes,), "", "it")
    found = remote.find("it")
    assert found is not None
    assert found.address == pin.address
    assert np.array_equal(bytes_of(remote, found), data)
    assert server.call(faraway.ask_core, "find", "it") == pin.address
    assert remote.at(pin.address + nbytes // 2).address == pin.address
    sound(server)


def test_names_are_given_changed_and_taken_away(server: Peer, remote: _core.Remote) -> None:
    draft = remote.make(64, UINT8, 0, (8, 8), "|u1", "a", True)
    assert draft.shape == (8, 8)
    assert draft.descr == "|u1"
    assert not remote.contains("a")
    assert draft.name == "a"
    remote.publish(draft, False)
    assert remote.contains("a")
    assert server.call(faraway.ask_core, "contains", "a")
    remote.rename("a", "b")
    assert draft.name == "b"
    assert remote.find("a") is None
    unnamed = make(remote, "", 10)
    assert unnamed.name == ""
    remote.name(unnamed, "c")
    assert [entry[0] for entry in remote.list("")] == ["b", "c"]
    assert remote.list("c")[0] == ("c", 10, unnamed.address, UINT8, 0, (10,), "")
    assert not remote.remove("b", unnamed)
    assert remote.remove("b", draft)
    assert not remote.remove("b")
    assert [entry[0] for entry in remote.list("")] == ["c"]
    assert draft.state != unnamed.state


def test_long_lists_come_whole(remote: _core.Remote) -> None:
    names = sorted(f"{'x' * 300}/{number}" for number in range(1500))
    for name in names:
        make(remote, name, 8)
    assert [entry[0] for entry in remote.list("x")] == names


def test_errors_are_those_of_the_space(remote: _core.Remote) -> None:
    pin = make(remote, "a", 100)
    with pytest.raises(NameTaken, match="'a' exists already"):
        put(remote, "a", b"x")
    put(remote, "a", b"x", replace=True)
    with pytest.raises(UnknownName):
        remote.rename("none", "other")
    with pytest.raises(NoRoom, match="bytes are free"):
        make(remote, "", 1 << 30)
    with pytest.raises(NoRoom):
        make(remote, "", (1 << 64) - 1)
    big = np.zeros(80 << 20, np.uint8)  # its bytes are on their way when it is refused
    with pytest.raises(NoRoom):
        put(remote, "big", big)
    with pytest.raises(BadAddress):
        remote.at(4096)
    with pytest.raises(BadInput):
        remote.publish(pin, False)
    with pytest.raises(BadInput, match="1 to 1024 bytes"):
        make(remote, "n" * 2000, 8)
    with pytest.raises(NoRoom):
        remote.grow(1 << 60)
    with pytest.raises(BadInput, match="pickle"):
        pickle.dumps(pin)
    assert remote.contains("a")


def test_whole_of_the_space(server: Peer, remote: _core.Remote) -> None:
    pin = put(remote, "a", pattern(1, 1000))
    before = remote.stats()
    assert before["arrays"] == 1
    assert before["name"] == "shelf"
    assert [member["remote"] for member in before["members"]] == [False, True]
    remote.grow(1 << 20)
    assert remote.stats()["bytes"] == before["bytes"] + (1 << 20)
    remote.collect()
    assert remote.audit()["arrays"] == 1
    assert remote.owners(pin.address, 10) == f"{pin.address}+10".encode()
    with pytest.raises(BadAddress):
        remote.owners(before["data_address"], 1 << 40)
    assert before["free"] == server.call(faraway.ask_core, "stats")["free"] - (1 << 20)


def test_transfers_move_the_bytes(server: Peer, remote: _core.Remote) -> None:
    data = pattern(1, 4 << 20)
    pin = put(remote, "it", data)
    random = np.random.default_rng(2)
    offsets = [int(offset) for offset in random.integers(0, data.nbytes - 4096, 300)]
    rows = np.zeros((300, 4096), np.uint8)
    assert remote.get_bytes([pin.address + offset for offset in offsets], rows, 4096).wait(10.0)
    assert all(np.array_equal(row, data[offset : offset + 4096]) for row, offset in zip(rows, offsets, strict=True))

    places = [4096 * int(place) for place in random.permutation(1024)[:200]]
    news = random.integers(0, 256, (200, 1000), dtype=np.uint8)
    transfer = remote.put_bytes([pin.address + place for place in places], news, 1000)
    assert transfer.wait()
    assert transfer.done
    for place, row in zip(places, news, strict=True):
        data[place : place + 1000] = row
    assert np.array_equal(bytes_of(remote, pin), data)
    empty = remote.get_bytes([pin.address], np.zeros(0, np.uint8), 0)
    assert empty.done
    assert empty.wait()


def test_many_transfers_are_in_flight_and_none_needs_a_waiter(remote: _core.Remote) -> None:
    data = pattern(3, 2 << 20)
    pin = put(remote, "it", data)
    out = np.zeros(data.nbytes, np.uint8)
    sizes = [1, 100, 4096, 300_000, 65_536] * 40
    random = np.random.default_rng(4)
    moves = []
    for size in sizes:
        offset = int(random.integers(0, data.nbytes - size))
        moves.append(remote.get_bytes([pin.address + offset], out[offset : offset + size], size))
        moves.append(remote.put_bytes([pin.address + offset], data[offset : offset + size], size))
    del moves[::3]  # let go of under way: it ends all the same
    until(lambda: all(move.done for move in moves))
    assert all(move.wait(0.0) for move in moves)
    assert np.array_equal(bytes_of(remote, pin), data)


def test_threads_share_a_remote(remote: _core.Remote) -> None:
    data = pattern(5, 1 << 20)
    pin = put(remote, "it", data)
    counter = make(remote, "n", 64)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        out = np.empty(50_000, np.uint8)
        for _ in range(40):
            offset = int(random.integers(0, data.nbytes - out.nbytes))
            remote.get_bytes([pin.address + offset], out, out.nbytes).wait()
            if not np.array_equal(out, data[offset : offset + out.nbytes]):
                wrong.append(offset)
            _core.add_u8(counter, 0, 1)
            remote.find("it")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert _core.load_u8(counter, 0) == 240


def test_wrong_transfers_are_refused_and_harm_no_others(remote: _core.Remote) -> None:
    data = pattern(6, 1 << 20)
    pin = put(remote, "it", data)
    stats = remote.stats()
    end = stats["data_address"] + stats["bytes"]
    out = np.zeros(data.nbytes, np.uint8)
    right = remote.get_bytes([pin.address], out, out.nbytes)
    for address in (0, 4096, stats["base"], stats["data_address"] - 1, end - 10, end - 5000, end, (1 << 64) - 20):
        buffer = np.zeros(1000, np.uint8)
        with pytest.raises(BadAddress, match="not all in arrays of the space"):
            remote.get_bytes([pin.address, address], buffer, 500).wait()
        with pytest.raises(BadAddress):
            remote.put_bytes([address], buffer, 1000).wait()
    assert right.wait()
    assert np.array_equal(out, data)
    for addresses, size, row in (
        ([], 10, 10),
        ([pin.address], 10, 9),
        ([pin.address] * 2, 10, 10),
        ([1] * 3, 1, 1 << 63),
    ):
        with pytest.raises(BadInput):
            remote.get_bytes(addresses, np.zeros(size, np.uint8), row)
    with pytest.raises((BufferError, ValueError)):
        remote.get_bytes([pin.address], b"constant", 8)
    assert np.array_equal(bytes_of(remote, pin), data)


def test_nothing_is_said_to_strangers(place: Place) -> None:
    with pytest.raises((HostLost, Refused)):
        call_on(place, key=bytes(32)).find("it")
    with pytest.raises(UnknownName, match="no space 'other'"):
        call_on(place, space="other").find("it")
    for wrong in ({"base": 1 << 40}, {"reserve": 1 << 35}, {"hosts": 3}, {"hosts_hash": 1}):
        with pytest.raises(Refused, match="same hosts file"):
            call_on(place, other=wrong).find("it")
    with pytest.raises(Refused, match="host 2 of 2"):
        call_on(place, other={"own": 2}).find("it")
    for host in ("nowhere", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"):
        with pytest.raises(BadInput, match="host:port"):
            call_on((host, *place[1:]))
    with pytest.raises(BadInput, match="32 bytes"):
        call_on(place, key=b"short")


def test_reader_cannot_write(place: Place, remote: _core.Remote) -> None:
    put(remote, "it", b"12345678")
    reader = call_on(place, read_only=True)
    pin = reader.find("it")
    assert pin is not None
    assert bytes(bytes_of(reader, pin)) == b"12345678"
    calls: list[Callable[[], Any]] = [
        lambda: make(reader, "other", 8),
        lambda: put(reader, "other", np.zeros(1 << 20, np.uint8)),
        lambda: reader.remove("it"),
        lambda: _core.store_u8(pin, 0, 1),
        lambda: _core.lock_take(pin, 0.1),
        lambda: reader.put_bytes([pin.address], b"abcdefgh", 8).wait(),
    ]
    for call in calls:
        with pytest.raises(NotPermitted):
            call()
    assert _core.load_u8(pin, 0) != 1
    reader.close()


def test_views_need_a_mapping(space: Any) -> None:
    core = space._native
    server = _core.serve_for_tests(core, faraway.KEY)
    stats = core.stats()
    remote = call_on((f"127.0.0.1:{server.port}", stats["base"], stats["reserve"]))
    pin = put(remote, "it", b"12345678")
    with pytest.raises(NotPermitted, match=r"space\.get"):
        pin.numpy()
    with pytest.raises(NotPermitted, match=r"space\.get"):
        memoryview(pin)
    remote.set_mapped(True)  # it is: the home is this process
    assert bytes(pin) == b"12345678"
    assert bytes(pin.numpy()) == b"12345678"
    remote.close()
    server.stop()


def test_calls_after_close_are_refused(remote: _core.Remote) -> None:
    pin = make(remote, "it", 64)
    remote.close()
    for call in (lambda: remote.find("it"), lambda: _core.load_u8(pin, 0), remote.check_usable):
        with pytest.raises(Closed):
            call()
    with pytest.raises(Closed):
        remote.get_bytes([pin.address], np.zeros(64, np.uint8), 64)


def test_one_look_up_asks_several_hosts(home: Path, server: Peer, place: Place, remote: _core.Remote) -> None:
    put(remote, "it", b"1")
    again = call_on(place)
    gone = call_on(("127.0.0.1:1", *place[1:]))
    found, same, lost = _core.find_all([remote, again, gone], "it")
    assert isinstance(found, _core.RemotePin)
    assert isinstance(same, _core.RemotePin)
    assert found.address == same.address
    assert isinstance(lost, HostLost)
    assert lost.host == "127.0.0.1:1"
    assert _core.find_all([remote, again], "none") == [None, None]
    again.close()
