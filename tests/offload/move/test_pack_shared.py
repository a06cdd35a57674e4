"""Replicas: processes that run one model hold its weights once, and who comes later has them at once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import spaces
from openshelf._core import DeviceArena
from openshelf.errors import Corrupt
from openshelf.offload.move.homes import Homes
from openshelf.offload.move.mover import Mover
from openshelf.offload.move.shared import Shared
from openshelf.offload.weights.pack import pack_state
from openshelf.offload.weights.packed import Packed
from tests.offload.weights.packing import weights
from tests.processes import Peer, State

MIB = 1 << 20


def view_of(shared: Shared, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of the storage that the tensor of this name is in, without a copy."""
    there = shared.packed.storage_of(name)
    first = there.at - shared.packed.begins
    return shared.bytes[first : first + there.nbytes]


def pss() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no Pss")


def attach(state: State, path: str) -> int:
    """Opens the weights and touches every page; says what they sum up to."""
    state["shared"] = Shared(Packed.open(path))
    return int(state["shared"].bytes[::4096].sum())


def used(state: State) -> int:
    return pss()


def leave(state: State) -> None:
    state.pop("shared").close()


def test_four_processes_hold_the_weights_once(home: Path, tmp_path: Path) -> None:
    packed = pack_state({"w": np.ones(32 * MIB, np.uint8)}, folder=tmp_path, name="w")
    with Peer() as a, Peer() as b, Peer() as c, Peer() as d:
        peers = (a, b, c, d)
        for peer in peers:
            peer.call(used)  # all have their libraries now, which they share too
        before = sum(peer.call(used) for peer in peers)
        sums = {peer.call(attach, packed.path) for peer in peers}
        assert sums == {32 * MIB // 4096}
        together = sum(peer.call(used) for peer in peers) - before
        assert 31 * MIB < together < 48 * MIB
        assert len(spaces()) == 1
        for peer in peers:
            assert spaces()
            peer.call(leave)
    assert not spaces()


def test_who_was_killed_leaves_the_others_what_they_have(home: Path, tmp_path: Path) -> None:
    state = weights()
    packed = pack_state(state, folder=tmp_path, name="w")
    with Peer() as first:
        first.call(attach, packed.path)
        shared = Shared(packed)
        first.kill()
    assert view_of(shared, "layer.3.weight").tobytes() == state["layer.3.weight"].tobytes()
    view = view_of(shared, "layer.2.weight")
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    shared.close()
    assert not spaces()
    assert view.tobytes() == state["layer.2.weight"].tobytes()


def test_what_killed_processes_left_is_taken_away_by_the_next(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Peer() as first:
        first.call(attach, pack_state(weights(1), folder=tmp_path, name="a").path)
        first.kill()
    assert len(spaces()) == 1
    monkeypatch.setattr("openshelf.offload.move.shared._DEBRIS_S", 0.0)
    time.sleep(0.01)
    shared = Shared(pack_state(weights(2), folder=tmp_path, name="b"))
    assert [there["name"] for there in spaces()] == [shared.name]
    shared.close()


def test_shared_weights_are_homes(home: Path, tmp_path: Path) -> None:
    state = weights()
    shared = Shared(pack_state(state, folder=tmp_path, name="w"))
    homes = Homes(tmp_path)
    for storage, name in enumerate(state):
        homes.shared(storage, shared, name)
    arena = DeviceArena(4 * MIB)
    with Mover(homes, arena) as mover:
        for storage, value in enumerate(state.values()):
            mover.begin_read(storage, 0)
            mover.wait(storage)
            assert bytes(memoryview(arena.range(0, value.nbytes, None))) == value.tobytes()
        assert mover.lanes()["dram_read"].requests == len(state)
    shared.close()


def test_an_altered_file_is_not_shared(home: Path, tmp_path: Path) -> None:
    packed = pack_state(weights(), folder=tmp_path, name="w")
    with open(packed.path, "r+b") as file:
        file.seek(packed.storage_of("layer.1.weight").at)
        file.write(b"other")
    with pytest.raises(Corrupt, match=r"layer\.1\.weight"):
        Shared(packed)
    assert not spaces()
