"""A durable space after all of it that was in memory is gone; power cuts at every write are tier_durable_test's."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import Closed, Corrupt
from tests.processes import Died, Peer, State
from tests.space.tiers.conftest import with_faults
from tests.space.tiers.shelves import FLASH, MIB, keeper, wait_until, words

SMALL = 24  # bytes: shares its unit with others, and never leaves memory
LARGE = 3 * MIB


def create(tmp_path: str) -> Space:
    return Space.create("shelf", "32MiB", flash=f"{tmp_path}/shelf.flash:{FLASH}", durable=True, exist_ok=True)


def open_again(state: State, tmp_path: str) -> int:
    state["space"] = create(tmp_path)
    return keeper(state["space"])


def put(state: State, version: int) -> None:
    """Writes everything anew in place, but for the counter, which goes on."""
    space = state["space"]
    for name, size in (("small", SMALL), ("large", LARGE)):
        value = words(len(name), version, size)
        array = space.get(name)
        if array is None:
            space.put(name, value)
        else:
            array.numpy()[:] = value
    space.counter("counter").add(1)


def count(state: State) -> None:
    state["space"].counter("counter").add(1)


def flush(state: State) -> None:
    assert state["space"].flush().wait(60)


def ask_to_flush(state: State) -> None:
    state["asked"] = state["space"].flush()


def flushed(state: State) -> str:
    try:
        return "flushed" if state["asked"].wait(60) else "not in a minute"
    except Closed:
        return "Closed"


def die(state: State) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def seen(state: State) -> tuple[int, int, int]:
    """The versions of small and large, each of which must be one, and the counter."""
    space = state["space"]
    versions = []
    for name, size in (("small", SMALL), ("large", LARGE)):
        found = space[name].numpy().copy()
        versions.append(int(found[0]) >> 32 & 0xFFFF)
        assert np.array_equal(found, words(len(name), versions[-1], size)), name
    return versions[0], versions[1], int(space.counter("counter").value)


def lose_memory(peers: list[Peer], keeper_pid: int, home: Path) -> None:
    for peer in peers:
        with pytest.raises(Died):
            peer.call(die)
    os.kill(keeper_pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{keeper_pid}").exists())
    shutil.rmtree(home / "shelf")


def test_each_flush_holds_what_was_written_before_it(mode: str, home: Path, tmp_path: Path) -> None:
    for rounds in range(1, 4):
        peer = Peer()
        pid = peer.call(open_again, str(tmp_path))
        for version in range(rounds):
            peer.call(put, 10 * rounds + version)
            peer.call(flush)
        lose_memory([peer], pid, home)
    peer = Peer()
    peer.call(open_again, str(tmp_path))
    assert peer.call(seen) == (32, 32, 1 + 2 + 3)
    peer.kill()


@with_faults
def test_flush_holds_what_a_process_without_faults_wrote(
    mode: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes unseen into what never leaves memory: before it attached that had been flushed, and was clean."""
    seeing = Peer()
    pid = seeing.call(open_again, str(tmp_path))
    seeing.call(put, 1)
    seeing.call(flush)
    monkeypatch.setenv("OPENSHELF_FAULTS", "off")
    blind = Peer()
    blind.call(open_again, str(tmp_path))
    blind.call(count)
    seeing.call(flush)
    blind.call(count)
    blind.call(put, 4)
    seeing.call(flush)
    blind.call(count)
    with pytest.raises(Died):
        blind.call(die)
    seeing.call(flush)
    lose_memory([seeing], pid, home)
    peer = Peer()
    peer.call(open_again, str(tmp_path))
    assert peer.call(seen) == (4, 4, 5)
    peer.kill()


def test_a_flush_of_a_removed_space_leaves_the_next_ones_journal_alone(home: Path, tmp_path: Path) -> None:
    with Peer() as peer:
        before = peer.call(open_again, str(tmp_path))
        peer.call(put, 1)
        peer.call(flush)
        peer.call(put, 2)
        os.kill(before, signal.SIGSTOP)
        try:
            peer.call(ask_to_flush)
            Space.remove("shelf")
            with Peer() as other:
                after = other.call(open_again, str(tmp_path))
                other.call(put, 7)
                other.call(flush)
                os.kill(before, signal.SIGCONT)
                assert peer.call(flushed) in ("flushed", "Closed")
                other.call(put, 8)
                other.call(flush)
                lose_memory([other], after, home)
        finally:
            os.kill(before, signal.SIGCONT)
    with Peer() as last:
        last.call(open_again, str(tmp_path))
        assert last.call(seen) == (8, 8, 2)
    wait_until(lambda: len({path.name.split(".")[2] for path in tmp_path.glob("shelf.flash.*.journal.*")}) == 1)


def test_a_journal_whose_flash_file_is_gone_is_not_mistaken_for_nothing(home: Path, tmp_path: Path) -> None:
    with Peer() as peer:
        pid = peer.call(open_again, str(tmp_path))
        peer.call(put, 1)
        peer.call(flush)
        lose_memory([peer], pid, home)
    (tmp_path / "shelf.flash").unlink()
    with pytest.raises(Corrupt, match=r"shelf\.flash is gone, but its journal"):
        create(str(tmp_path))
