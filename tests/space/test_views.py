"""Views own pins: memory is kept while any view of it lives, in any process, whatever else goes."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import Closed
from tests.elf import sanitizer
from tests.processes import Peer, State
from tests.space import shelf

BIG = 1 << 20


def _churn(space: Space, rounds: int = 20) -> None:
    """Takes and frees memory, so that anything wrongly free is overwritten."""
    for number in range(rounds):
        space.put(f"churn{number % 4}", np.full(BIG, 0xEE, np.uint8))
        space.put(f"small{number % 4}", np.full(100, 0xEE, np.uint8))
    for number in range(4):
        space.delete(f"churn{number}")
        space.delete(f"small{number}")


@pytest.mark.parametrize("nbytes", [100, BIG])
def test_view_outlives_array_delete_and_close(space: Space, nbytes: int) -> None:
    wanted = shelf.pattern(1, nbytes)
    other = Space.open("shelf")
    view = other.put("a", wanted).numpy()
    other.close()
    space.delete("a")
    del other
    gc.collect()
    _churn(space)
    assert np.array_equal(view, wanted)
    view[:] = 1  # and it can still be written
    part = view[10:20][::2]
    del view
    gc.collect()
    _churn(space)
    assert part.tolist() == [1] * 5
    del part
    assert shelf.problems(space) == shelf.SOUND
    assert space.check()["bytes"] == 0


def test_view_outlives_the_space_itself(home: Path) -> None:
    space = Space.create("shelf", "16MiB")
    view = space.put("a", shelf.pattern(1, BIG)).numpy()
    Space.remove("shelf")
    assert np.array_equal(view, shelf.pattern(1, BIG))
    space.close()
    del space
    gc.collect()
    with Space.create("shelf", "16MiB") as fresh:
        fresh.full("a", BIG, 1, "uint8")
        assert np.array_equal(view, shelf.pattern(1, BIG))
        view[:] = 5
        assert (fresh["a"].numpy() == 1).all()


def test_other_process_keeps_its_view_after_remove(space: Space, peer: Peer) -> None:
    space.put("a", shelf.pattern(2, BIG))
    peer.call(shelf.open_space)
    peer.call(shelf.hold, "a")
    Space.remove("shelf")
    assert np.array_equal(peer.call(shelf.held, "a"), shelf.pattern(2, BIG))
    peer.call(shelf.close_space)
    assert np.array_equal(peer.call(shelf.held, "a"), shelf.pattern(2, BIG))
    with pytest.raises(Closed):
        space.put("b", np.zeros(1))


@pytest.mark.parametrize("nbytes", [100, BIG])
def test_reader_keeps_old_array_after_delete(space: Space, peer: Peer, nbytes: int) -> None:
    wanted = shelf.pattern(3, nbytes)
    space.put("a", wanted)
    peer.call(shelf.open_space)
    peer.call(shelf.hold, "a")
    space.delete("a")
    assert "a" not in space
    _churn(space)
    assert np.array_equal(peer.call(shelf.held, "a"), wanted)
    assert shelf.problems(space) == shelf.SOUND
    peer.call(shelf.drop, "a")
    assert peer.call(shelf.check) == shelf.SOUND
    assert space.check()["bytes"] == 0


def test_reader_keeps_old_array_after_replacement(space: Space, peer: Peer) -> None:
    space.put("a", shelf.pattern(4, BIG))
    peer.call(shelf.open_space)
    old = peer.call(shelf.hold, "a")
    for seed in range(5, 15):
        assert space.put("a", shelf.pattern(seed, BIG)).address != old
    assert np.array_equal(peer.call(shelf.held, "a"), shelf.pattern(4, BIG))
    assert np.array_equal(peer.call(shelf.read, "a"), shelf.pattern(14, BIG))


def test_killed_readers_memory_comes_back(space: Space) -> None:
    with Peer() as peer:
        space.put("a", shelf.pattern(6, BIG))
        peer.call(shelf.open_space)
        peer.call(shelf.hold, "a")
        space.delete("a")
        assert shelf.free_bytes(space) == (64 << 20) - BIG
        peer.kill()
    assert space.check()["bytes"] == 0
    assert shelf.problems(space) == shelf.SOUND


def test_forked_child_reads_views_that_its_parent_dropped(space: Space) -> None:
    empty = shelf.free_bytes(space)
    view = space.put("a", shelf.pattern(7, BIG)).numpy()
    small = space.put("b", shelf.pattern(8, 50)).numpy()
    FORKED["views"] = {"a": view, "b": small}
    FORKED["space"] = space
    with Peer("fork") as child:
        del view, small
        FORKED.clear()
        space.delete("a")
        space.delete("b")
        _churn(space)
        assert np.array_equal(child.call(_forked_view, "a"), shelf.pattern(7, BIG))
        assert np.array_equal(child.call(_forked_view, "b"), shelf.pattern(8, 50))
        assert shelf.problems(space) == shelf.SOUND
        assert shelf.free_bytes(space) < empty
        child.call(_forked_drop)
        assert shelf.problems(space) == shelf.SOUND
    deadline = time.monotonic() + 5  # on one host it is so at once
    while space.check()["bytes"]:
        assert time.monotonic() < deadline, "what the child held is still kept"
        time.sleep(0.05)


FORKED: State = {}


def _forked_view(state: State, name: str) -> object:
    return FORKED["views"][name].copy()


def _forked_drop(state: State) -> None:
    FORKED["views"].clear()
    FORKED["space"].describe()


def _forked_put(state: State, name: str) -> int:
    return int(FORKED["space"].put(name, shelf.pattern(9, BIG)).address)


def test_forked_child_uses_the_space_of_its_parent_on_its_own(space: Space) -> None:
    FORKED["space"] = space
    with Peer("fork") as child:
        FORKED.clear()
        address = child.call(_forked_put, "a")
        assert space["a"].address == address
        assert np.array_equal(space["a"].numpy(), shelf.pattern(9, BIG))
        assert len([member for member in space.describe()["members"] if member["alive"]]) == 2
        child.kill()
    assert [member["pid"] for member in space.describe()["members"]] == [os.getpid()]
    assert np.array_equal(space["a"].numpy(), shelf.pattern(9, BIG))
    assert shelf.problems(space) == shelf.SOUND


def test_killed_forked_childs_pins_go_with_it(space: Space) -> None:
    FORKED["views"] = {"a": space.put("a", shelf.pattern(7, BIG)).numpy()}
    with Peer("fork") as child:
        FORKED.clear()
        space.delete("a")
        gc.collect()
        assert shelf.free_bytes(space) == (64 << 20) - BIG
        child.kill()
    assert space.check()["bytes"] == 0


@pytest.mark.skipif(sanitizer() == "address", reason="ASan's allocator may be locked by another thread in the child")
def test_child_forked_by_a_thread_while_others_work_is_a_member(space: Space) -> None:
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            space.put(f"t{number}", np.full(20_000, number))
            space.delete(f"t{number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        FORKED["space"] = space
        for number in range(5):
            with Peer("fork") as child:
                address = child.call(_forked_put, f"child{number}")
                assert space[f"child{number}"].address == address
    finally:
        FORKED.clear()
        stop.set()
        for thread in threads:
            thread.join()
    assert shelf.problems(space) == shelf.SOUND


def _put_until_stopped(state: State, nbytes: int) -> int:
    stop, number = state["space"]["stop"].atomic(), 0
    while not stop.load():
        state["space"].put("shared", np.full(nbytes, number % 251, np.uint8))
        number += 1
    return number


def _read_often(state: State, looks: int) -> int:
    """Until it has looked that often, and returns at how many different arrays."""
    seen = set()
    while looks:
        array = state["space"].get("shared")
        if array is None:
            continue
        view = array.numpy()
        first = int(view[0])
        if not (view == first).all():
            raise AssertionError("a half-written array was visible")
        if not (view == first).all():
            raise AssertionError("an array changed while it was held")
        seen.add(first)
        looks -= 1
    return len(seen)


@pytest.mark.parametrize("nbytes", [200, 300_000])
def test_reader_never_sees_a_half_written_put(space: Space, nbytes: int) -> None:
    stop = space.zeros("stop", 1, "int32").atomic()
    space.zeros("looks", 1, "int32")
    with Peer() as writer, Peer() as other_writer, Peer() as reader:
        for peer in (writer, other_writer, reader):
            peer.call(shelf.open_space)
        for peer in (writer, other_writer):
            peer.start(_put_until_stopped, nbytes)
        seen = reader.call(_read_often, 3000)
        stop.store(1)
        assert writer.finish() + other_writer.finish() > 1
    assert seen > 1
    assert shelf.problems(space) == shelf.SOUND


def test_threads_of_one_process_put_read_and_delete_at_once(space: Space) -> None:
    errors: list[str] = []

    def work(number: int) -> None:
        for turn in range(300):
            space.put("shared", np.full(500, turn, np.int64))
            space.put(f"own{number}", np.full(30, turn))
            array = space.get("shared")
            view = None if array is None else array.numpy()
            if view is not None and not (view == view[0]).all():
                errors.append("torn")
            if space[f"own{number}"].numpy()[3] != turn:
                errors.append("lost")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert shelf.problems(space) == shelf.SOUND
