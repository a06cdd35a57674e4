"""mode="r": nothing can be changed, by call or by store, and the reader still protects what it reads."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import NotPermitted
from tests.processes import Died, Peer, State
from tests.space import shelf


def _refused(state: State, what: str) -> str:
    space: Space = state["space"]
    calls: dict[str, Callable[[], Any]] = {
        "put": lambda: space.put("b", np.zeros(3)),
        "new": lambda: space.new("b", 3),
        "zeros": lambda: space.zeros("b", 3),
        "anonymous": lambda: space.put(None, np.zeros(3)),
        "delete": lambda: space.delete("a"),
        "rename": lambda: space.rename("a", "b"),
        "grow": lambda: space.grow("1MiB"),
        "store": lambda: space["a"].atomic().store(1),
        "add": lambda: space["a"].atomic().add(1),
        "counter": lambda: space.counter("counter").add(),
        "lock": lambda: space.lock("lock").acquire(),
        "release": lambda: space.lock("lock").release(),
        "new lock": lambda: space.lock("another"),
        "barrier": lambda: space.barrier("barrier", 1).wait(),
        "reset": lambda: space.barrier("barrier", 1).reset(),
        "send": lambda: space.channel("channel").send(b"x"),
        "receive": lambda: space.channel("channel").receive(),
        "delete channel": lambda: space.delete("channel"),
    }
    with pytest.raises(NotPermitted) as error:
        calls[what]()
    return str(error.value)


CALLS = [
    "put", "new", "zeros", "anonymous", "delete", "rename", "grow", "store", "add", "counter", "lock",
    "release", "new lock", "barrier", "reset", "send", "receive", "delete channel",
]  # fmt: skip


def test_calls_that_change_something_are_refused(space: Space, peer: Peer) -> None:
    space.put("a", np.arange(5))
    space.lock("lock")
    space.barrier("barrier", 1)
    space.counter("counter")
    space.channel("channel")
    peer.call(shelf.open_space, "shelf", "r")
    for what in CALLS:
        assert 'mode="r"' in peer.call(_refused, what), what
    assert peer.call(shelf.read, "a").tolist() == [0, 1, 2, 3, 4]
    assert len(space) == 5
    assert shelf.problems(space) == shelf.SOUND


def _flags(state: State, name: str) -> tuple[bool, bool]:
    array = state["space"][name]
    return bool(array.numpy().flags.writeable), bool(array[1:].numpy("uint8").flags.writeable)


def _assign(state: State, name: str) -> None:
    state["space"][name].numpy()[0] = 1


def test_views_of_a_reader_are_not_writable(space: Space, peer: Peer) -> None:
    space.put("a", np.arange(5))
    peer.call(shelf.open_space, "shelf", "r")
    assert peer.call(_flags, "a") == (False, False)
    with pytest.raises(Exception, match="read-only"):
        peer.call(_assign, "a")


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_raw_store_kills_a_reader_and_not_a_writer(space: Space, mode: str) -> None:
    array = space.put("a", np.zeros(100, np.uint8))
    with Peer() as peer:
        peer.call(shelf.open_space, "shelf", mode)
        peer.start(shelf.write_raw, array.address, 1, 100)
        if mode == "r":
            with pytest.raises(Died) as death:
                peer.finish()
            assert death.value.code == -signal.SIGSEGV
        else:
            peer.finish()
    assert array.numpy().sum() == (0 if mode == "r" else 100)
    assert shelf.problems(space) == shelf.SOUND


@pytest.mark.parametrize("nbytes", [100, 1 << 20])
@pytest.mark.parametrize("killed", [False, True])
def test_reader_that_is_last_to_hold_a_deleted_array_leaks_nothing(space: Space, nbytes: int, killed: bool) -> None:
    wanted = shelf.pattern(1, nbytes)
    space.put("a", wanted)
    with Peer() as peer:
        peer.call(shelf.open_space, "shelf", "r")
        peer.call(shelf.hold, "a")
        space.delete("a")
        for seed in range(10):
            space.put("b", shelf.pattern(seed, nbytes))
        assert np.array_equal(peer.call(shelf.held, "a"), wanted)
        assert shelf.problems(space) == shelf.SOUND
        assert space.check()["bytes"] == 2 * nbytes
        if killed:
            peer.kill()
        else:
            peer.call(shelf.drop, "a")
        assert space.check()["bytes"] == nbytes
    assert shelf.problems(space) == shelf.SOUND


def test_reader_sees_what_a_writer_does_next(space: Space, peer: Peer) -> None:
    view = space.zeros("a", 10, "int64").numpy()
    peer.call(shelf.open_space, "shelf", "r")
    peer.call(shelf.hold, "a")
    view[:] = 5
    assert peer.call(shelf.held, "a").tolist() == [5] * 10
    space.rename("a", "b")
    space.put("c", np.ones(2))
    assert peer.call(shelf.names) == ["b", "c"]
    assert peer.call(shelf.read_at, space["b"].address, 10, "int64").tolist() == [5] * 10


def test_reader_alone_opens_a_space_and_leaves_it_as_it_was(space: Space) -> None:
    space.put("a", np.arange(10))
    space.close()
    for _ in range(2):
        with Peer() as peer:
            peer.call(shelf.open_space, "shelf", "r")
            assert peer.call(shelf.read, "a").tolist() == list(range(10))
    with Space.open("shelf") as again:
        assert again["a"].numpy().tolist() == list(range(10))
        assert shelf.problems(again) == shelf.SOUND


def test_reader_waits_for_a_word_that_a_writer_changes(space: Space, peer: Peer) -> None:
    word = space.zeros("a", 1, "int32").atomic()
    peer.call(shelf.open_space, "shelf", "r")
    peer.start(_wait, "a")
    word.store(1)
    word.wake()
    assert peer.finish()


def _wait(state: State, name: str) -> bool:
    return bool(state["space"][name].atomic().wait(0, 60))
