"""Channels: each message reaches one receiver, arrays travel uncopied, nothing leaks when somebody dies."""

from __future__ import annotations

import numpy as np
import pytest

from openshelf import Array, Channel, Space
from openshelf.errors import BadInput, NameTaken, UnknownName
from tests.processes import Peer, State
from tests.space import shelf


def _send_many(state: State, sender: int, count: int) -> None:
    channel: Channel = state["space"].channel("ch", 16, 32)
    for number in range(count):
        assert channel.send(f"{sender} {number}", 60)


def _receive_many(state: State) -> list[str]:
    channel: Channel = state["space"].channel("ch", 16, 32)
    found: list[str] = []
    while True:
        message = channel.receive(60)
        assert isinstance(message, bytes)
        if message == b"end":
            return found
        found.append(message.decode())


def test_each_message_reaches_exactly_one_receiver(space: Space) -> None:
    channel = space.channel("ch", 16, 32)
    with Peer() as a, Peer() as b, Peer() as c, Peer() as d:
        for peer in (a, b, c, d):
            peer.call(shelf.open_space)
        for receiver in (c, d):
            receiver.start(_receive_many)
        for number, sender in enumerate((a, b)):
            sender.start(_send_many, number, 2000)
        for sender in (a, b):
            sender.finish()
        for _ in range(2):
            channel.send(b"end")
        lists = [c.finish(), d.finish()]
    assert sorted(lists[0] + lists[1]) == sorted(f"{sender} {number}" for sender in range(2) for number in range(2000))
    for found in lists:  # in order, for each sender
        for number in range(2):
            numbers = [int(text.split()[1]) for text in found if text.startswith(f"{number} ")]
            assert numbers == sorted(numbers)


def test_full_channel_and_empty_channel_say_so_in_time(space: Space) -> None:
    channel = space.channel("ch", 2, 16)
    assert (channel.capacity, channel.message_bytes, len(channel)) == (2, 16, 0)
    assert channel.receive(0) is None
    assert channel.send(b"")
    assert channel.send(b"x" * 16)
    assert not channel.send(b"third", 0.01)
    assert len(channel) == 2
    assert channel.receive() == b""
    assert channel.receive() == b"x" * 16
    assert channel.receive(0.01) is None
    with pytest.raises(BadInput, match="does not fit this channel"):
        channel.send(b"x" * 17)
    assert channel.send(b"y")
    assert channel.receive() == b"y"


def _receive(state: State) -> tuple[int, str | None] | bytes | str | None:
    try:
        got = state["space"].channel("ch", 4, 64).receive(60)
    except UnknownName as error:
        return str(error)
    if isinstance(got, Array):
        state.setdefault("views", {})["got"] = got.numpy()
        return got.address, got.name
    assert got is None or isinstance(got, bytes)
    return got


def test_named_array_is_sent_without_a_copy(space: Space, peer: Peer) -> None:
    channel = space.channel("ch", 4, 64)
    array = space.put("a", shelf.pattern(1, 1 << 20))
    peer.call(shelf.open_space)
    channel.send(array)
    assert peer.call(_receive) == (array.address, "a")
    assert np.array_equal(peer.call(shelf.held, "got"), shelf.pattern(1, 1 << 20))


def test_anonymous_array_lives_in_the_channel_and_then_with_its_receiver(space: Space, peer: Peer) -> None:
    channel = space.channel("ch", 4, 64)
    array = space.put(None, shelf.pattern(2, 1 << 20))
    address = array.address
    channel.send(array)
    del array
    space.put("other", shelf.pattern(3, 1 << 20))
    assert list(space) == ["ch", "other"]
    peer.call(shelf.open_space)
    assert peer.call(_receive) == (address, None)
    space.put("another", shelf.pattern(4, 1 << 20))
    assert np.array_equal(peer.call(shelf.held, "got"), shelf.pattern(2, 1 << 20))
    peer.call(shelf.drop, "got")
    assert peer.call(shelf.check) == shelf.SOUND
    assert space.check()["arrays"] == 3


def test_array_that_was_deleted_or_replaced_under_way_is_unknown(space: Space, peer: Peer) -> None:
    channel = space.channel("ch", 4, 64)
    peer.call(shelf.open_space)
    array = space.put("a", np.zeros(3))
    channel.send(array)
    space.delete("a")
    assert "'a' was deleted or replaced" in peer.call(_receive)
    channel.send(space.put("a", np.zeros(3)))
    space.put("a", np.ones(3))
    assert "'a' was deleted or replaced" in peer.call(_receive)
    channel.send(b"next")
    assert peer.call(_receive) == b"next"


def test_part_of_an_array_is_not_sent(space: Space) -> None:
    with pytest.raises(BadInput, match="whole array"):
        space.channel("ch").send(space.put("a", np.zeros(3))[1:])


@pytest.mark.parametrize("full", [False, True])
def test_deleted_channel_takes_arrays_under_way_with_it(space: Space, full: bool) -> None:
    channel = space.channel("ch", 4, 64)
    for number in range(4 if full else 2):
        channel.send(space.put(None, shelf.pattern(number, 1 << 20)))
    assert space.check()["arrays"] > 1
    space.delete("ch")
    del channel
    found = space.check()
    assert (found["arrays"], found["bytes"]) == (0, 0)
    assert shelf.problems(space) == shelf.SOUND


def test_put_does_not_replace_a_channel(space: Space) -> None:
    channel = space.channel("ch", 4, 64)
    channel.send(space.put(None, shelf.pattern(1, 1 << 20)))
    with pytest.raises(NameTaken, match="delete it first"):
        space.put("ch", np.zeros(1, np.uint8))
    assert isinstance(channel.receive(), Array)


def test_send_into_a_deleted_channel_leaks_nothing(space: Space, peer: Peer) -> None:
    channel = space.channel("ch", 4, 64)
    peer.call(shelf.open_space)
    peer.call(_receive_nothing)
    peer.call(shelf.delete, "ch")
    with pytest.raises(UnknownName, match="deleted"):
        channel.send(space.put(None, shelf.pattern(1, 1 << 20)))
    with pytest.raises(UnknownName, match="deleted"):
        channel.receive()
    del channel
    peer.stop()
    assert space.check()["bytes"] == 0


def _receive_nothing(state: State) -> None:
    assert state["space"].channel("ch", 4, 64).receive(0) is None


def _send_arrays(state: State) -> None:
    channel: Channel = state["space"].channel("ch", 4, 64)
    while True:
        channel.send(state["space"].put(None, np.full(100_000, 7, np.uint8)), 0.001)


def _receive_arrays(state: State) -> None:
    channel: Channel = state["space"].channel("ch", 4, 64)
    while True:
        got = channel.receive(0.001)
        assert got is None or (isinstance(got, Array) and (got.numpy() == 7).all())


@pytest.mark.parametrize("turn", range(5))
def test_killed_senders_and_receivers_leak_nothing(space: Space, turn: int) -> None:
    channel = space.channel("ch", 4, 64)
    with Peer() as sender, Peer() as receiver:
        for peer in (sender, receiver):
            peer.call(shelf.open_space)
        sender.start(_send_arrays)
        receiver.start(_receive_arrays)
        for _ in range(200 + 100 * turn):
            channel.receive(0)
        sender.kill()
        receiver.kill()
    while (got := channel.receive(0)) is not None:
        assert isinstance(got, Array)
        assert (got.numpy() == 7).all()
    del got
    channel.send(b"still works")
    assert channel.receive(60) == b"still works"
    space.delete("ch")
    del channel
    assert space.check()["bytes"] == 0
    assert shelf.problems(space) == shelf.SOUND
