"""Lock, Barrier and Counter between processes, also when one of them is killed."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import BadInput, BrokenBarrier, Mismatch
from tests.processes import Peer, State
from tests.space import shelf


def _take(state: State, name: str, timeout: float | None = None) -> tuple[bool, bool]:
    lock = state.setdefault(name, state["space"].lock(name))
    return lock.acquire(timeout), lock.previous_died


def _release(state: State, name: str) -> None:
    state[name].release()


def test_lock_is_held_by_one_process_at_a_time(space: Space, peer: Peer) -> None:
    peer.call(shelf.open_space)
    lock = space.lock("l")
    with lock:
        assert lock.held
        assert peer.call(_take, "l", 0.02) == (False, False)
    assert not lock.held
    assert peer.call(_take, "l", 60) == (True, False)
    assert not lock.acquire(0)
    peer.start(_release, "l")
    assert lock.acquire(60)
    peer.finish()
    assert not lock.previous_died
    lock.release()
    with pytest.raises(BadInput, match="does not hold"):
        lock.release()


def _count_with_lock(state: State, times: int) -> int:
    lock, view = state["space"].lock("l"), state["space"]["n"].numpy()
    for _ in range(times):
        with lock:
            view[0] = int(view[0]) + 1
    return times


def test_plain_additions_under_a_lock_are_all_counted(space: Space) -> None:
    view = space.zeros("n", 1, "int64").numpy()
    with Peer() as one, Peer() as two:
        for peer in (one, two):
            peer.call(shelf.open_space)
            peer.start(_count_with_lock, 5000)
        threads = [threading.Thread(target=_count_with_lock, args=({"space": space}, 1000)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for peer in (one, two):
            peer.finish()
    assert view[0] == 12_000


def test_next_owner_is_told_that_the_holder_was_killed(space: Space) -> None:
    lock = space.lock("l")
    with Peer() as peer:
        peer.call(shelf.open_space)
        assert peer.call(_take, "l")[0]
        peer.kill()
    assert lock.acquire(60)
    assert lock.previous_died
    lock.release()
    assert lock.acquire()
    assert not lock.previous_died


def test_sleeping_waiter_gets_the_lock_of_a_killed_holder(space: Space) -> None:
    space.lock("l")
    with Peer() as waiter, Peer() as holder:
        for peer in (waiter, holder):
            peer.call(shelf.open_space)
        assert holder.call(_take, "l")[0]
        waiter.start(_take, "l", 60)
        holder.kill()
        assert waiter.finish() == (True, True)


def test_lock_of_a_forked_parent_is_not_its_childs(space: Space) -> None:
    lock = space.lock("l")
    lock.acquire()
    with Peer("fork") as child:
        child.call(shelf.open_space)
        assert child.call(_take, "l", 0.02) == (False, False)
        lock.release()
        assert child.call(_take, "l", 60) == (True, False)
        assert not lock.held


def _wait(state: State, parties: int, timeout: float | None = None) -> int | str:
    try:
        return int(state["space"].barrier("b", parties).wait(timeout))
    except BrokenBarrier as error:
        return str(error)


def test_barrier_lets_all_go_when_all_are_there(space: Space) -> None:
    with Peer() as one, Peer() as two:
        for peer in (one, two):
            peer.call(shelf.open_space)
        for _ in range(50):
            for peer in (one, two):
                peer.start(_wait, 3, 60)
            places = [space.barrier("b", 3).wait(60), one.finish(), two.finish()]
            assert sorted(places) == [0, 1, 2]
    assert space.barrier("b", 3).parties == 3


def test_killed_waiter_breaks_the_barrier_for_the_others(space: Space) -> None:
    barrier = space.barrier("b", 3)
    with Peer() as victim, Peer() as other:
        for peer in (victim, other):
            peer.call(shelf.open_space)
        victim.start(_wait, 3)
        while space._native.find("b") is None or _arrived(space) < 1:
            pass
        victim.kill()
        other.start(_wait, 3, 60)
        assert "died" in other.finish()
        assert barrier.broken
        with pytest.raises(BrokenBarrier, match=r"reset\(\)"):
            barrier.wait()
        barrier.reset()
        assert not barrier.broken
        with Peer() as third:
            third.call(shelf.open_space)
            for peer in (other, third):
                peer.start(_wait, 3, 60)
            assert sorted([barrier.wait(60), other.finish(), third.finish()]) == [0, 1, 2]


def _arrived(space: Space) -> int:
    """The second 4-byte word after the lock: how many wait."""
    return int(shelf.memory_of(space, "b").view("uint32")[3])


def test_barrier_that_not_all_reach_in_time_is_broken(space: Space) -> None:
    barrier = space.barrier("b", 2)
    with pytest.raises(BrokenBarrier, match="not all 2 parties came in time"):
        barrier.wait(0.01)
    assert barrier.broken
    barrier.reset()
    assert not barrier.broken


def test_barrier_of_one_never_waits(space: Space) -> None:
    assert [space.barrier("b", 1).wait() for _ in range(3)] == [0, 0, 0]


def _count(state: State, times: int) -> None:
    counter = state["space"].counter("c")
    for _ in range(times):
        counter.add()


def test_counter_counts_for_all_processes(space: Space, peer: Peer) -> None:
    counter = space.counter("c")
    peer.call(shelf.open_space)
    peer.start(_count, 10_000)
    _count({"space": space}, 10_000)
    peer.finish()
    assert counter.value == 20_000
    assert counter.add(-5) == 19_995
    counter.value = 7
    assert space.counter("c").value == 7


def _make_all(state: State, turn: int) -> tuple[int, int]:
    space: Space = state["space"]
    return space.counter(f"c{turn}").add(), space.channel(f"ch{turn}", 4, 16).capacity


def test_processes_that_make_the_same_thing_at_once_get_one_thing(space: Space) -> None:
    with Peer() as one, Peer() as two:
        for peer in (one, two):
            peer.call(shelf.open_space)
        for turn in range(100):
            for peer in (one, two):
                peer.start(_make_all, turn)
            assert sorted([one.finish(), two.finish()]) == [(1, 4), (2, 4)]
    assert shelf.problems(space) == shelf.SOUND


def test_kinds_are_not_confused(space: Space) -> None:
    space.lock("l")
    space.put("a", np.zeros(3))
    with pytest.raises(Mismatch, match="is of kind lock, not counter"):
        space.counter("l")
    with pytest.raises(Mismatch, match="is of kind array, not lock"):
        space.lock("a")
    space.barrier("b", 3)
    with pytest.raises(Mismatch, match="3 parties, not 2"):
        space.barrier("b", 2)
    with pytest.raises(BadInput, match="1 to 1024"):
        space.barrier("z", 0)
    assert {entry.name: entry.kind for entry in space.list()} == {"a": "array", "b": "barrier", "l": "lock"}


@pytest.mark.parametrize(
    "wait", ['space.barrier("b", 2).wait()', "lock.acquire()", 'space.channel("c").receive()', "word.wait(0)"]
)
def test_ctrl_c_ends_waiting(space: Space, wait: str) -> None:
    with space.lock("taken"):
        program = f"""
import os, signal, threading
from openshelf import Space
space = Space.open({space.name!r})
lock = space.lock("taken")
word = space.zeros("word", 1, "int32").atomic()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    {wait}
except KeyboardInterrupt:
    print("heard")
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "heard\n", done.stderr
