"""Which host a call goes to: names, addresses, room, and what happens when hosts are gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import BadAddress, BadInput, HostLost, NameTaken, NoRoom, UnknownName
from tests.space.hosts.fake_hosts import RESERVE, FakeHosts, FakeRemote


@pytest.fixture
def three(home: Path) -> Iterator[FakeHosts]:
    hosts = FakeHosts(home, 3)
    yield hosts
    hosts.cores.clear()


def number_of(address: int) -> int:
    return address // RESERVE % 4  # bases are multiples of four hosts


def lose(space: Any, remote: FakeRemote) -> None:
    """The host is gone, and it took long to notice it."""
    remote.down = True
    space._native.peer_of(space._native.number_of_host(remote.host)).miss(1.0)


def come_back(space: Any, remote: FakeRemote) -> None:
    remote.down = False
    space._native.peers._linked_at = 0.0


def test_arrays_live_here_or_where_they_are_told_to(three: FakeHosts) -> None:
    space, _ = three.seen_from(1)
    assert number_of(space.zeros("a", 10).address) == 1
    assert number_of(space.zeros("b", 10, home=2).address) == 2
    assert number_of(space.put("c", np.arange(5), home="10.0.0.1:7400").address) == 0
    assert number_of(space.full("d", 3, 7, "int32", home=0).address) == 0
    assert [space[name].home for name in "abcd"] == [three.hosts[n] for n in (1, 2, 0, 0)]
    assert number_of(space.channel("e", home=2)._pin.address) == 2
    assert number_of(space.lock("f", home=0)._pin.address) == 0
    with pytest.raises(UnknownName, match=r"there is no host 3; the space 'demo' is on 0 \(10.0.0.1:7400\)"):
        space.new("g", 1, home=3)
    with pytest.raises(UnknownName, match=r"no host '10.0.0.9:7400'"):
        space.new("g", 1, home="10.0.0.9:7400")


def test_names_are_seen_from_every_host(three: FakeHosts) -> None:
    views = [three.seen_from(number)[0] for number in range(3)]
    for number, space in enumerate(views):
        space.put(f"from {number}", np.full(4, number))
    for space in views:
        assert list(space) == ["from 0", "from 1", "from 2"]
        assert all(space[f"from {number}"].numpy()[0] == number for number in range(3))
        assert "from 2" in space
        assert "from 3" not in space
        assert space.get("from 3") is None
    address = views[0]["from 2"].address
    assert views[1].at(address, 4, "int64").numpy().tolist() == [2] * 4
    where = views[1].where(address)
    assert (where.segment, where.array, where.host) == (2, "from 2", three.hosts[2])
    assert views[0].describe()["arrays"] >= 3
    assert views[0].describe()["name"] == "demo"


def test_a_name_is_on_one_host_only(three: FakeHosts) -> None:
    first, second = three.seen_from(0)[0], three.seen_from(1)[0]
    first.zeros("a", 3)
    with pytest.raises(NameTaken, match=r"10.0.0.1:7400|exists already"):
        second.zeros("a", 3)
    draft = second.new("b", 3)
    first.zeros("b", 3)
    with pytest.raises(NameTaken, match=r"on 10.0.0.1:7400"):
        draft.publish()
    unnamed = second.put(None, np.zeros(3))
    with pytest.raises(NameTaken):
        unnamed.publish("a")
    with pytest.raises(NameTaken):
        second.put("a", np.ones(3), replace=False)
    unnamed.publish("c")
    assert list(first) == ["a", "b", "c"]


def test_replacing_moves_a_name_between_hosts(three: FakeHosts) -> None:
    first, second, third = (three.seen_from(number)[0] for number in range(3))
    old = first.put("a", np.zeros(3))
    new = second.put("a", np.ones(3))
    assert number_of(new.address) == 1
    assert [space["a"].address for space in (first, second, third)] == [new.address] * 3
    assert old.name is None
    assert old.numpy().tolist() == [0, 0, 0]
    third.put("a", np.full(3, 2.0), home=0)
    assert number_of(second["a"].address) == 0
    first.lock("l")
    with pytest.raises(NameTaken):
        second.put("l", np.ones(3))


def test_who_dies_while_replacing_leaves_the_rest_to_the_next(three: FakeHosts) -> None:
    first, second = three.seen_from(0)[0], three.seen_from(1)[0]
    first.put("a", np.zeros(3))
    cluster: Any = second._native
    new = second.new("a2", 3)  # a draft under another name, renamed to stand for a publication that was not finished
    new.publish()
    three.cores[1].rename("a2", "a")
    assert three.cores[0].contains("a")
    assert three.cores[1].contains("a")
    cluster.finish_replacing(new.address)
    assert not three.cores[0].contains("a")
    assert first["a"].address == new.address
    cluster.finish_replacing(new.address + 8)  # nothing begins there
    assert "a" in first


def test_rename_and_delete_go_to_where_the_name_is(three: FakeHosts) -> None:
    first, second = three.seen_from(0)[0], three.seen_from(1)[0]
    first.put("a", np.zeros(3))
    second.put("b", np.zeros(3))
    second.rename("a", "c")
    assert list(first) == ["b", "c"]
    assert number_of(first["c"].address) == 0
    with pytest.raises(NameTaken):
        second.rename("c", "b")
    with pytest.raises(UnknownName):
        second.rename("nothing", "d")
    second.delete("c")
    first.delete("b")
    assert list(first) == []
    with pytest.raises(UnknownName):
        first.delete("b")
    first.channel("q", home=1).send(b"x")
    first.delete("q")
    assert "q" not in second


def test_a_full_host_passes_on(home: Path) -> None:
    hosts = FakeHosts(home, 2, size=4 << 20)
    space, remotes = hosts.seen_from(0)
    a, b = space.zeros("a", 3 << 20, "uint8"), space.zeros("b", 3 << 20, "uint8")
    assert (number_of(a.address), number_of(b.address)) == (0, 1)
    with pytest.raises(NoRoom, match="no host that is up has room for 3145728 bytes"):
        space.zeros("c", 3 << 20, "uint8")
    with pytest.raises(NoRoom):
        space.zeros("c", 3 << 20, "uint8", home=0)
    space.delete("b")
    del b
    lose(space, remotes[1])
    with pytest.raises(NoRoom):
        space.zeros("c", 3 << 20, "uint8")


def test_lost_hosts_are_skipped_by_look_ups_and_named(three: FakeHosts) -> None:
    space, remotes = three.seen_from(1)
    space.zeros("there", 3, home=2)
    address = space["there"].address
    space.zeros("here", 3)
    lose(space, remotes[2])
    assert list(space) == ["here"]
    assert "there" not in space
    calls = remotes[2].calls
    with pytest.raises(UnknownName, match=r"on the hosts that are up; 10.0.0.3:7400 did not answer"):
        space["there"]
    assert remotes[2].calls == calls  # not asked again so soon
    with pytest.raises(HostLost) as caught:
        space.at(address, 3, "float32")
    assert caught.value.host == "10.0.0.3:7400"
    with pytest.raises(HostLost):
        space.new("x", 3, home=2)
    space.zeros("new", 3)
    assert space.check()["damaged"] == 0
    assert [one["up"] for one in space.hosts()] == [True, True, False]
    come_back(space, remotes[2])
    assert list(space) == ["here", "new", "there"]


def test_claims_are_on_the_lowest_host_that_is_up(three: FakeHosts) -> None:
    space, remotes = three.seen_from(1)
    space.zeros("a", 3)
    assert [len(core.list("\x02claim/")) for core in three.cores] == [1, 0, 0]
    lose(space, remotes[0])
    space.zeros("a2", 3)
    assert [len(core.list("\x02claim/")) for core in three.cores] == [1, 1, 0]
    come_back(space, remotes[0])
    remotes[0].dies_before = {"find"}  # found missing only when it is asked
    space.zeros("a3", 3)
    assert {"a", "a2", "a3"} <= set(space)
    assert not any(name.startswith("\x02") for name in space)
    assert space.check()["arrays"] == 3


def test_an_address_that_is_no_hosts_says_where_the_space_is(three: FakeHosts) -> None:
    space, _ = three.seen_from(0)
    for address in (three.base - 1, three.base + 3 * RESERVE, 0):
        with pytest.raises(BadAddress, match=r"outside of the space 'demo', which has 0x"):
            space.at(address, 1, "uint8")
        with pytest.raises(BadAddress):
            space.get(address, bytearray(1))
    with pytest.raises(BadAddress):
        space.where(three.base + 64)


def test_bytes_move_by_address_between_all_hosts(three: FakeHosts) -> None:
    space, _ = three.seen_from(1)
    arrays = [space.put(None, np.full(8, number, np.uint8), home=number) for number in range(3)]
    out = np.zeros((3, 8), np.uint8)
    transfer = space.get(arrays, out)
    assert not transfer.done
    assert "under way" in repr(transfer)
    assert transfer.wait(1.0)
    assert out.tolist() == [[0] * 8, [1] * 8, [2] * 8]
    space.put([array.address for array in reversed(arrays)], out).wait()
    assert [int(array.numpy()[0]) for array in arrays] == [2, 1, 0]
    both = np.zeros((2, 4), np.uint8)
    space.get([arrays[2].address, arrays[2].address + 4], both).wait()
    assert both.tolist() == [[0] * 4] * 2


def test_an_array_is_sent_where_it_lives(three: FakeHosts) -> None:
    space, _ = three.seen_from(1)
    channel = space.channel("q", home=0)
    channel.send(space.put("there", np.zeros(3), home=0))
    with pytest.raises(BadInput, match=r"the array lives on 10.0.0.2:7400, the channel elsewhere; send the name"):
        channel.send(space.put("here", np.zeros(3)))
    assert len(channel) == 1


def test_a_lost_host_fails_the_transfer_every_time(three: FakeHosts) -> None:
    space, remotes = three.seen_from(0)
    there = space.put(None, np.zeros(8, np.uint8), home=1)
    transfer = space.get(there, bytearray(8))
    remotes[1].down = True
    for _ in range(2):
        with pytest.raises(HostLost):
            transfer.wait()
    assert transfer.done
    assert "failed" in repr(transfer)


def test_states_and_prefetches_come_from_the_keeper(three: FakeHosts) -> None:
    space, _ = three.seen_from(0)
    here, there = space.zeros("a", 3), space.zeros("b", 3, home=1)
    for counts, states in (
        ((0, 0, 2), ["home", "modified"]),
        ((0, 1, 0), ["shared"] * 2),
        ((1, 0, 0), ["invalid"] * 2),
    ):
        three.attachment.counts = counts
        assert [here.state, there.state] == states
    three.attachment.counts = (1, 1, 0)
    assert there.state == "mixed"
    assert there.prefetch(write=True).wait(1)
    assert there[1:].prefetch().done
    assert three.attachment.fetched == [(there.address, 12, True), (there.address + 4, 8, False)]
    assert [one["misses"] for one in space.hosts()] == [None, 7, None]


def test_one_host_alone_needs_no_claims(home: Path) -> None:
    hosts = FakeHosts(home, 1)
    space: Space = hosts.seen_from(0)[0]
    space.zeros("a", 3)
    space.put("a", np.ones(3))
    space.rename("a", "b")
    assert list(space) == ["b"]
