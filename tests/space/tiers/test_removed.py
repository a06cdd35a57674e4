"""A space is removed, and made again under its name, while others have it open: nobody meets the other's keeper."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from openshelf import Array, Space, _core
from openshelf.errors import Closed, OpenshelfError
from openshelf.space.create import registry
from openshelf.space.hosts import start_keeper
from openshelf.space.locality import flash
from openshelf.space.transfer import Pinned
from tests.processes import PATIENCE, Peer, State
from tests.space.tiers import shelves
from tests.space.tiers.shelves import KIB, MIB, demoted, wait_until, words

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork with threads
HUNG = 20.0 * PATIENCE


def _open(state: State) -> None:
    state["space"] = Space.open("shelf")
    state["view"] = state["space"]["a"].numpy()


def _sum(state: State) -> int:
    return int(state["view"].sum())


def _ended(pid: int, seconds: float = HUNG) -> int:
    """How a child ended; one that hangs is killed, and that is how it ended."""
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -signal.SIGKILL
        time.sleep(0.01)


def _in_child(work: Callable[[], bool]) -> int:
    """The exit code of a forked process: 0 if the work there gave True."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return _ended(child)


def _alive(pid: int) -> bool:
    return shelves._alive(pid)


def _raises(work: Callable[[], object]) -> bool:
    try:
        work()
    except Closed:
        return True
    return False


def test_the_end_of_a_removed_spaces_keeper_leaves_the_new_ones_socket(mode: str, tmp_path: Path, peer: Peer) -> None:
    with shelves.make(tmp_path) as old:
        old.put("a", words(1, 1, MIB))
        before = shelves.keeper(old)
        peer.call(_open)
    Space.remove("shelf")
    with shelves.make(tmp_path) as new:
        new.put("a", words(2, 1, MIB))
        path = start_keeper.of_space(Path(new._native.directory)).socket
        assert peer.call(_sum) == int(words(1, 1, MIB).sum())
        peer.stop()  # and with it the last process of the old one
        wait_until(lambda: not _alive(before))
        assert start_keeper.answers(path)
        with Peer() as other:
            other.call(_open)
            assert other.call(_sum) == int(words(2, 1, MIB).sum())


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
def test_a_forked_process_keeps_its_views_of_a_removed_space(mode: str, tmp_path: Path, again: bool) -> None:
    old = shelves.make(tmp_path)
    expected = words(1, 1, 4 * MIB)
    array = old.put("a", expected)
    if mode != "none":
        demoted(array)  # to be brought back by the keeper of the removed space
    view = array.numpy()
    Space.remove("shelf")
    new = shelves.make(tmp_path) if again else None
    assert _in_child(lambda: bool((view == expected).all())) == 0
    assert (view == expected).all()
    old.close()
    if new is not None:
        new.close()


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
def test_requests_to_the_killed_keeper_of_a_removed_space_raise(mode: str, tmp_path: Path, again: bool) -> None:
    old = shelves.make(tmp_path)
    array = old.put("a", words(1, 1, 256 * KIB))
    before = shelves.keeper(old)
    Space.remove("shelf")
    new = shelves.make(tmp_path) if again else None
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: not _alive(before))
    assert _in_child(lambda: _raises(lambda: array.prefetch().wait())) == 0
    assert _raises(lambda: array.prefetch().wait(HUNG))
    if new is not None:
        assert np.array_equal(new.put("b", words(3, 1, MIB)).numpy(), words(3, 1, MIB))
        new.close()
    with pytest.raises(OpenshelfError):
        old.put("c", words(1, 1, MIB))
    old.close()


def test_a_request_that_the_keeper_of_a_removed_space_never_answered_raises(tmp_path: Path) -> None:
    old = shelves.make(tmp_path)
    array = old.put("a", words(1, 1, 256 * KIB))
    before = shelves.keeper(old)
    os.kill(before, signal.SIGSTOP)
    asked = array.prefetch()
    Space.remove("shelf")
    os.kill(before, signal.SIGKILL)
    with pytest.raises(Closed, match="was removed, and its keeper ended"):
        asked.wait(HUNG)
    old.close()


def test_a_remover_that_was_killed_half_way_is_finished_by_the_next_maker(home: Path, tmp_path: Path) -> None:
    old = shelves.make(tmp_path)
    (home / "shelf").rename(home / ".gone-1-shelf")  # so far it had come
    with shelves.make(tmp_path) as new:
        with pytest.raises(Closed):
            old.put("a", words(1, 1, MIB))
        assert new.put("a", words(1, 1, MIB)).tier == "dram"
    old.close()


def test_a_space_that_is_removed_while_it_is_being_opened_is_closed(home: Path, tmp_path: Path) -> None:
    shelves.make(tmp_path).close()
    core = _core.Core.open(str(home / "shelf"), False, registry.boot_id())
    Space.remove("shelf")
    with pytest.raises(Closed, match="removed while it was being opened"):
        flash.attach(core)


def test_a_keeper_says_nothing_when_nothing_is_wrong(home: Path, tmp_path: Path) -> None:
    with shelves.make(tmp_path) as space:
        shelves.keeper(space)
        assert (home / "shelf" / "keeper.log").read_text() == ""


def _pinned(array: Array) -> Pinned:
    held = array.pin("dram")
    held.wait()
    return held


def _child_that_waits(work: Callable[[], object]) -> int:
    """A forked process that holds what the work gives until it is killed; back when it holds it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        held = work()
        os.write(writing, b"x")
        signal.pause()
        os._exit(0 if held is None else 1)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    return child


@pytest.mark.parametrize("what", ["demote", "pin"])
def test_pins_of_a_process_that_died_refuse_nothing_though_its_end_was_not_heard(shelf: Space, what: str) -> None:
    array = shelf.put("a", words(1, 1, 20 * MIB))
    other = shelf.put("b", words(2, 1, 20 * MIB))
    child = _child_that_waits(lambda: _pinned(array))
    keeper = shelves.keeper(shelf)
    os.kill(keeper, signal.SIGSTOP)
    try:
        asked = array.demote() if what == "demote" else other.pin("dram")  # heard before the end of the child is
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert asked.wait(HUNG)
