"""The mover: storages between the arena and their homes, as a plain model of memory says, and what it refuses."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openshelf._core import DeviceArena, Streamer
from openshelf.errors import BadAddress, BadInput, Closed, Corrupt, FlashFailed, Mismatch, NoRoom, UnknownName
from openshelf.offload.move.homes import Homes
from openshelf.offload.move.mover import Mover, Verify
from openshelf.offload.weights.pack import pack_state
from tests.offload.weights.packing import weights

SLOT = 1 << 20


def slot_of(arena: DeviceArena, slot: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(memoryview(arena.range(slot * SLOT, nbytes, None)), np.uint8)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_moves_are_what_plain_copies_would_be(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Storages wander through slots of the arena and are changed there; at home is what was stored last."""
    folder = tmp_path_factory.mktemp("moves")
    state = weights(sizes=(7, 1024, 250_000))
    packed = pack_state(state, folder=folder)
    homes = Homes(folder, dram=4 << 20)
    names = [*state, "made", "made in dram"]
    for storage, name in enumerate(state):
        homes.packed(storage, packed, name, data.draw(st.sampled_from(("flash", "dram"))))
        homes.room(storage, name, state[name].nbytes, data.draw(st.sampled_from(("flash", "dram"))))
    homes.room(3, "made", 123_457)
    homes.room(4, "made in dram", 5000, "dram")
    homes.put(3, np.full(123_457, 3, np.uint8))
    homes.put(4, None)
    model = [np.frombuffer(homes.value(storage), np.uint8).copy() for storage in range(5)]
    arena = DeviceArena(3 * SLOT)
    verify: Verify = data.draw(st.sampled_from(("first", "always", "never")))
    with Mover(homes, arena, verify=verify) as mover:
        for _ in range(data.draw(st.integers(1, 25))):
            storage, slot = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 2))
            mover.begin_read(storage, slot * SLOT)  # into what may still be leaving
            mover.wait(storage)
            there = slot_of(arena, slot, len(model[storage]))
            assert np.array_equal(there, model[storage]), names[storage]
            if data.draw(st.booleans()):
                there[...] = data.draw(st.integers(0, 255))
                mover.begin_write(storage, slot * SLOT)
                model[storage] = there.copy()
                if data.draw(st.booleans()):
                    mover.wait_written(storage)
    lanes = mover.lanes() if verify == "never" else None
    if lanes is not None:
        assert lanes["flash_read"].requests + lanes["dram_read"].requests == mover.reads
        assert lanes["flash_write"].requests + lanes["dram_write"].requests == mover.writes
    for storage in range(5):
        assert np.array_equal(homes.value(storage), model[storage])


def test_many_reads_are_under_way_at_a_time(tmp_path: Path) -> None:
    state = weights(sizes=(200_000,) * 12)
    packed = pack_state(state, folder=tmp_path)
    homes = Homes(tmp_path)
    for storage, name in enumerate(state):
        homes.packed(storage, packed, name)
    arena = DeviceArena(12 * SLOT)
    with Mover(homes, arena) as mover:
        for storage in range(12):
            mover.begin_read(storage, storage * SLOT)
        for storage, value in enumerate(state.values()):
            mover.wait(storage)
            assert slot_of(arena, storage, value.nbytes).tobytes() == value.tobytes()
        lane = mover.lanes()["flash_read"]
        assert (mover.reads, lane.requests, lane.nbytes) == (12, 12, 12 * 802_816)  # whole sectors
        assert 1 <= lane.most <= 6
        assert lane.busy_s > 0


def test_a_changed_weight_does_not_change_the_packed_file(tmp_path: Path) -> None:
    state = weights()
    packed = pack_state(state, folder=tmp_path, name="w")
    before = Path(packed.path).read_bytes()
    homes = Homes(tmp_path)
    homes.packed(0, packed, "layer.2.weight")
    arena = DeviceArena(SLOT)
    with Mover(homes, arena) as mover:
        mover.begin_read(0, 0)
        mover.wait(0)
        with pytest.raises(BadInput, match="no room of its own"):
            mover.begin_write(0, 0)
        homes.room(0, "layer.2.weight", 20_000)
        slot_of(arena, 0, 20_000)[:] = 9
        mover.begin_write(0, 0)
        mover.wait_written(0)
        slot_of(arena, 0, 20_000)[:] = 0
        mover.begin_read(0, 0)
        mover.wait(0)
        assert (slot_of(arena, 0, 20_000) == 9).all()
    assert Path(packed.path).read_bytes() == before
    assert (homes.value(0) == 9).all()


def test_an_altered_weight_is_refused_when_it_is_first_read(tmp_path: Path) -> None:
    packed = pack_state(weights(), folder=tmp_path, name="w")
    with open(packed.path, "r+b") as file:
        file.seek(packed.storage_of("layer.1.weight").at)
        file.write(b"other")
    homes = Homes(tmp_path)
    for storage, name in enumerate(weights()):
        homes.packed(storage, packed, name)
    arena = DeviceArena(2 * SLOT)
    with Mover(homes, arena) as mover:
        mover.begin_read(1, 0)
        mover.begin_read(2, SLOT)
        with pytest.raises(Corrupt, match=r"'layer\.1\.weight'.*/w,"):
            mover.wait(1)
        mover.wait(2)  # nobody else is held up
        mover.begin_read(1, 0)
        with pytest.raises(Corrupt):
            mover.wait(1)
    with Mover(homes, arena, verify="never") as mover:
        mover.begin_read(1, 0)
        mover.wait(1)
    with pytest.raises(Corrupt, match=r"layer\.1"):
        homes.value(1)


def test_what_has_no_bytes_moves_without_a_transfer(tmp_path: Path) -> None:
    packed = pack_state({"empty": np.zeros((0, 3), np.float32)}, folder=tmp_path)
    homes = Homes(tmp_path)
    homes.packed(0, packed, "empty")
    homes.room(0, "empty", 0)
    with Mover(homes, DeviceArena(SLOT)) as mover:
        mover.begin_read(0, 0)
        mover.wait(0)
        mover.begin_write(0, 0)
        mover.wait_written(0)
        assert (mover.reads, mover.writes) == (1, 1)
    assert homes.value(0).nbytes == 0


def test_a_storage_may_be_stored_again_and_again(tmp_path: Path) -> None:
    homes = Homes(tmp_path)
    homes.room(0, "moments", SLOT)
    arena = DeviceArena(2 * SLOT)
    with Mover(homes, arena) as mover:
        for turn in range(20):
            slot_of(arena, turn % 2, SLOT)[:] = turn
            mover.begin_write(0, turn % 2 * SLOT)
    assert (homes.value(0) == 19).all()


def test_a_truncated_file_is_told(tmp_path: Path) -> None:
    packed = pack_state(weights(), folder=tmp_path, name="w")
    homes = Homes(tmp_path)
    homes.packed(0, packed, "layer.3.weight")
    os.truncate(packed.path, packed.nbytes - (512 << 10))
    with Mover(homes, DeviceArena(2 * SLOT)) as mover:
        mover.begin_read(0, 0)
        with pytest.raises(FlashFailed, match=r"reading 'layer\.3\.weight', \d+ bytes at .*/w, ended after \d+"):
            mover.wait(0)


def test_misuse_is_said(tmp_path: Path) -> None:
    packed = pack_state(weights(), folder=tmp_path)
    homes = Homes(tmp_path, dram=8192)
    homes.packed(0, packed, "layer.0.weight")
    homes.room(1, "made", 100)
    with pytest.raises(BadInput, match="has a home already"):
        homes.packed(0, packed, "layer.0.weight")
    with pytest.raises(Mismatch, match="has 12 bytes at home, and 13 in the program"):
        homes.room(0, "layer.0.weight", 13)
    with pytest.raises(NoRoom, match=r"'large' needs 8\.789 KiB of dram, and 8 KiB of 8 KiB are left"):
        homes.room(2, "large", 9000, "dram")
    with pytest.raises(Mismatch, match="has 100 bytes, the value 3"):
        homes.put(1, b"abc")
    with pytest.raises(BadInput, match="verify is"):
        Mover(homes, DeviceArena(SLOT), verify="sometimes")  # type: ignore[arg-type]
    mover = Mover(homes, DeviceArena(SLOT))
    with pytest.raises(UnknownName, match="storage 7 has no home"):
        mover.begin_read(7, 0)
    with pytest.raises(BadInput, match="'made' is read before"):
        mover.begin_read(1, 0)
    with pytest.raises(BadInput, match="multiples of 4096"):
        mover.begin_read(0, 100)
    with pytest.raises(BadAddress, match="not in the arena"):
        mover.begin_read(0, SLOT)
    mover.wait(0)  # nothing of it is under way
    mover.wait_written(0)
    mover.close()
    with pytest.raises(Closed, match="was closed"):
        mover.begin_read(0, 0)


def test_a_forked_child_is_refused_and_ends(tmp_path: Path) -> None:
    packed = pack_state(weights(), folder=tmp_path)
    homes = Homes(tmp_path)
    homes.packed(0, packed, "layer.3.weight")
    mover = Mover(homes, DeviceArena(2 * SLOT))
    mover.begin_read(0, 0)
    child = os.fork()
    if not child:
        status = 1
        try:
            mover.begin_read(0, 0)
        except (Closed, BadInput):
            status = 0
        try:
            mover._streamer.read(packed.file, packed.begins, 0, 1)
            status = 1
        except Closed:
            pass
        mover.close()
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    mover.wait(0)
    mover.close()


def test_ctrl_c_is_heard_while_waiting() -> None:
    arena, memory = DeviceArena(64 * SLOT), np.ones(64 * SLOT, np.uint8)
    streamer = Streamer(arena, arena.address, arena.nbytes)
    tickets = [streamer.read(None, memory.ctypes.data, 0, memory.nbytes) for _ in range(100)]  # takes a second
    assert not tickets[-1].wait(0.001)
    timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        tickets[-1].wait()
    timer.join()
    assert tickets[-1].wait()
    streamer.close()
