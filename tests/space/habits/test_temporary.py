"""Temporary spaces go with their last user, however that ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from openshelf import KVPool, Layout, Space, spaces
from openshelf.errors import BadInput, Closed, Mismatch, NameTaken, UnknownName
from openshelf.space import stale_spaces
from tests.processes import WATCHDOG, Peer
from tests.space import shelf


def files(home: Path) -> list[str]:
    return sorted(path.name for path in home.iterdir() if path.name != ".lock")


def run(how: str) -> str:
    command = [sys.executable, "-m", "tests.space.habits.temporary_worker", how]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=WATCHDOG)
    return done.stdout.strip()


def test_it_goes_at_the_end_of_the_block_and_views_stay(home: Path) -> None:
    with Space.temporary("16MiB") as space:
        space["a"] = np.arange(3)
        view = space["a"].numpy()
        assert spaces()[0]["temporary"]
        assert files(home) == [space.name]
    assert files(home) == []
    assert view.tolist() == [0, 1, 2]
    with pytest.raises(Closed):
        space["a"]


def test_a_backing_goes_with_it(home: Path, tmp_path: Path) -> None:
    with Space.temporary("16MiB", backing=tmp_path):
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_last_handle_of_a_process_counts(home: Path) -> None:
    space = Space.temporary("16MiB")
    name = space.name
    again, folder, array = Space.open(name), space.folder("f"), space.put("a", np.zeros(3))
    space.close()
    again.close()
    folder["b"] = np.ones(2)
    assert files(home) == [name]
    del folder
    assert files(home) == []
    assert array.numpy().tolist() == [0, 0, 0]
    pool = KVPool(Space.temporary("16MiB"), Layout("m", layers=1, heads=1, head_dim=4), 4, capacity="1MiB")
    gc.collect()
    assert pool.present([1, 2, 3, 4]) == 0, "the pool keeps its space"
    pool.close()
    del pool
    gc.collect()
    assert files(home) == []


def test_another_process_keeps_it_and_the_next_space_finds_it_dead(home: Path, peer: Peer) -> None:
    with Space.create("job", "16MiB", temporary=True) as space:
        space["a"] = np.arange(3)
        peer.call(shelf.open_space, "job")
    assert files(home) == ["job"]
    assert stale_spaces() == []
    assert peer.call(shelf.read, "a").tolist() == [0, 1, 2]
    with Space.create("job", "16MiB", temporary=True, exist_ok=True) as space:
        assert "a" in space
    peer.kill()
    assert [there["name"] for there in stale_spaces()] == ["job"]
    with pytest.raises(UnknownName, match="it was temporary, and its last user has gone"):
        Space.open("job")
    with Space.create("job", "16MiB", temporary=True, exist_ok=True) as space:
        assert len(space) == 0
    assert files(home) == []


@pytest.mark.parametrize("how", ["ends", "raises", "fork", "spawn", "daemon"])
def test_it_goes_with_a_program_that_ends_in_order(home: Path, how: str) -> None:
    assert run(how).startswith("tmp-")
    assert files(home) == []


@pytest.mark.parametrize("how", ["killed", "forked"])
def test_it_goes_when_the_next_space_is_made_after_a_kill(home: Path, how: str) -> None:
    name = run(how)
    if how == "killed":
        assert files(home) == [name]
    end = time.monotonic() + WATCHDOG
    while name in files(home) and time.monotonic() < end and how == "forked":
        time.sleep(0.02)  # the child ends in order, some time after its parent
    Space.create("other", "1MiB").close()
    assert files(home) == ["other"]


def test_a_space_in_use_is_not_swept(home: Path) -> None:
    command = [sys.executable, "-m", "tests.space.habits.temporary_worker", "stays"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        name = other.stdout.readline().strip()
        Space.create("other", "1MiB").close()
        assert files(home) == sorted(["other", name])
        with Space.open(name) as space:
            assert list(space) == ["a"]
        assert files(home) == sorted(["other", name])
        other.communicate("", timeout=WATCHDOG)
    assert files(home) == ["other"]


def test_what_cannot_be_temporary_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="neither flash= nor group="):
        Space.create("t", "32MiB", temporary=True, flash=f"{tmp_path}/f:64MiB")
    with pytest.raises(BadInput, match="neither flash= nor group="):
        Space.create("t", "32MiB", temporary=True, group="root")
    with Space.create("plain", "1MiB"):
        with pytest.raises(Mismatch, match="temporary is False, not True"):
            Space.create("plain", "1MiB", temporary=True, exist_ok=True)
        with pytest.raises(NameTaken):
            Space.create("plain", "1MiB", temporary=True)
    assert files(home) == ["plain"], "others stay when they are closed"
