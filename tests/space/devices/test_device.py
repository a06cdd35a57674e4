"""Replicas of arrays on a device: what is changed there reaches the array before anybody of this process reads it."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openshelf import Array, Space
from openshelf.errors import BadInput, Closed, Mismatch, MissingExtra, NoRoom, NotPermitted, UnknownName
from openshelf.space import Device
from openshelf.space.devices import dirty
from openshelf.space.devices.room import Room
from tests.processes import Peer, State
from tests.space import shelf

MIB = 1 << 20


@pytest.fixture
def device(space: Space) -> Iterator[Device]:
    with Device("host", "32MiB") as made:
        yield made
    assert not dirty.dirty


def test_a_replica_is_loaded_changed_and_stored(space: Space, device: Device) -> None:
    array = space.put("a", np.arange(12.0).reshape(3, 4))
    replica = array.on(device)
    assert replica.load().wait(10)
    assert np.array_equal(replica.numpy(), array.numpy())
    assert replica.torch().shape == (3, 4)
    assert replica.pointer not in range(array.address, array.address + array.nbytes)
    view = array.numpy()
    with replica.writing() as there:
        there *= 2
    assert (replica.state, array.tier) == ("dirty", "dram")
    assert view[2, 3] == 11
    assert replica.store().wait(10)
    assert replica.state == "clean"
    assert view[2, 3] == 22
    assert replica.store().done  # nothing to do
    del there
    replica.release()
    assert device.describe()["used"] == 0


TOUCHES: dict[str, Callable[[Space, Array], Any]] = {
    "numpy": lambda space, array: array.numpy()[5],
    "numpy of another type": lambda space, array: array.numpy("int64").view("float64")[5],
    "torch": lambda space, array: array.torch()[5].item(),
    "a part": lambda space, array: array[4:8].numpy()[1],
    "read_only": lambda space, array: array.read_only().numpy()[5],
    "asarray": lambda space, array: np.asarray(array)[5],
    "at": lambda space, array: space.at(array.address + 40, (), "float64").numpy()[()],
    "put of it under another name": lambda space, array: space.put("copy", array).numpy()[5],
}


@pytest.mark.parametrize("how", sorted(TOUCHES))
def test_a_touch_of_a_dirty_replica_writes_it_back_first(space: Space, device: Device, how: str) -> None:
    array = space.put("a", np.arange(12.0))
    replica = array.on(device)
    replica.load().wait()
    with replica.writing() as there:
        there[5] = 55
    assert TOUCHES[how](space, array) == 55
    assert replica.state == "clean"


def test_get_put_and_prefetch_by_address_write_back_first(space: Space, device: Device) -> None:
    array, out = space.put("a", np.arange(4.0)), np.zeros(1)
    replica = array.on(device)

    def change(value: float) -> None:
        replica.load().wait()
        with replica.writing() as there:
            there[:] = value

    change(7)
    space.get(array.address + 8, out).wait()
    assert out[0] == 7
    change(8)
    space.put(array.address, np.array([1.0])).wait()
    assert array.numpy().tolist() == [1, 8, 8, 8]  # the put came last
    view = array.numpy()
    change(9)
    array.prefetch().wait()
    assert view.tolist() == [9] * 4
    change(10)
    space.get([array.address, array.address + 8], np.zeros((2, 1))).wait()
    assert replica.state == "clean"


def test_only_what_is_touched_is_written_back(space: Space, device: Device) -> None:
    array = space.put("a", np.zeros(1000))
    replicas = [part.on(device) for part in (array[:500], array[500:])]
    for replica in replicas:
        replica.load().wait()
        with replica.writing() as there:
            there[:] = 1
    array[:500].numpy()
    assert [replica.state for replica in replicas] == ["clean", "dirty"]
    assert space["a"].numpy().sum() == 1000


def test_publication_of_a_draft_includes_what_is_on_the_device(space: Space, device: Device) -> None:
    draft = space.new("a", 4, "int64")
    replica = draft.on(device)
    with replica.writing() as there:
        there[:] = 3
    view = draft._bytes()
    draft.publish()
    assert view[0] == 3


def test_an_array_written_later_is_loaded_again_by_hand(space: Space, device: Device) -> None:
    array = space.put("a", np.zeros(4))
    replica = array.on(device)
    replica.load().wait()
    array.numpy()[:] = 5
    assert replica.numpy()[0] == 0  # nothing is promised
    replica.load().wait()
    assert replica.numpy()[0] == 5


def test_loading_over_changes_is_an_error_unless_they_are_discarded(space: Space, device: Device) -> None:
    array = space.put("a", np.ones(4))
    replica = array.on(device)
    with replica.writing() as there:
        there[:] = 2
    with pytest.raises(BadInput, match=r"store\(\) first, or load\(discard=True\)"):
        replica.load()
    replica.load(discard=True).wait()
    assert replica.numpy()[0] == array.numpy()[0] == 1


def test_a_change_during_a_store_is_not_taken_for_stored(space: Space, device: Device) -> None:
    array = space.zeros("a", 16 * MIB, "uint8")
    replica = array.on(device)
    replica.load().wait()
    replica.mark_dirty()
    first = replica.store()
    assert replica.store() is first or first.done
    replica.numpy()[0] = 1
    replica.mark_dirty()
    first.wait()
    assert replica.state == "dirty"
    assert array.numpy()[0] == 1


def test_copies_of_a_replica_keep_their_order_over_streams(space: Space, device: Device) -> None:
    array = space.zeros("a", 4 * MIB, "uint8")
    replica = array.on(device)
    streams = [device.stream(), device.stream()]
    raw = array._bytes()
    for value in range(1, 30):
        raw[:] = value
        replica.load(streams[value % 2], discard=True)
        replica.mark_dirty()
        replica.store(streams[1 - value % 2]).wait()
        assert raw[0] == raw[-1] == value


def test_release_and_dropping_write_back(space: Space, device: Device) -> None:
    array = space.zeros("a", 4)
    view = array.numpy()
    replica = array.on(device)
    with replica.writing() as there:
        there[:] = 1
    del there
    replica.release()
    assert view[0] == 1
    with pytest.raises(Closed, match="was released"):
        replica.numpy()
    with pytest.raises(Closed, match="was released"):
        replica.release()
    other = array.on(device)
    with other.writing() as there:
        there[:] = 2
    del other, there
    gc.collect()
    assert view[0] == 2
    assert device.describe()["used"] == 0


def test_a_view_of_a_replica_that_was_dropped_keeps_its_memory(space: Space, device: Device) -> None:
    replica = space.put("a", np.full(MIB, 7, np.uint8)).on(device)
    replica.load().wait()
    view = replica.numpy()[5:]
    del replica
    for _ in range(20):
        with device.take(MIB) as block:
            block.numpy()[:] = 1
    assert (view == 7).all()


def test_closing_the_device_writes_back(space: Space) -> None:
    array = space.zeros("a", 4)
    view = array.numpy()
    with Device("host", "1MiB") as device:
        replica = array.on(device)
        with replica.writing() as there:
            there[:] = 1
    assert view[0] == 1
    assert array.numpy() is not None
    with pytest.raises(Closed, match="closed"):
        replica.load()
    del replica


def test_the_end_of_the_program_writes_back(space: Space) -> None:
    program = """
import openshelf as osf
from openshelf.space import Device
device = Device("host", "1MiB")
replica = osf.Space.open("shelf")["a"].on(device)
with replica.writing() as there:
    there[:] = 1
"""
    array = space.zeros("a", 4)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert array.numpy()[0] == 1


def test_a_killed_process_leaves_the_array_as_it_was(space: Space) -> None:
    program = """
import os, signal
import openshelf as osf
from openshelf.space import Device
device = Device("host", "64MiB")
array = osf.Space.open("shelf")["a"]
replica = array.on(device)
with replica.writing() as there:
    there[:] = 1
device.copy(device.take(16 << 20), bytes(16 << 20))
os.kill(os.getpid(), signal.SIGKILL)
"""
    array = space.zeros("a", 4)
    done = subprocess.run([sys.executable, "-c", program], timeout=60)
    assert done.returncode == -9
    assert array.numpy()[0] == 0
    assert shelf.problems(space) == shelf.SOUND


def test_a_child_leaves_the_parent_s_replicas_to_it(space: Space, device: Device) -> None:
    array = space.zeros("a", 4)
    replica = array.on(device)
    with replica.writing() as there:
        there[:] = 1
    child = os.fork()
    if not child:
        try:
            good = array.numpy()[0] == 0  # as for any other process
            with pytest.raises(Closed, match="forked"):
                replica.store()
            with pytest.raises(Closed, match="forked"):
                replica.load(discard=True)
            del replica
            gc.collect()
            with Device("host", "1MiB") as own:  # a device of its own works
                there = array.on(own)
                there.load().wait()
                good = good and there.numpy()[0] == 0
            os._exit(0 if good else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert array.numpy()[0] == 1


def test_a_child_that_touches_an_inherited_view_ends(device: Device) -> None:
    view = device.take(100).numpy()
    child = os.fork()
    if not child:
        faulthandler.disable()
        view[0] = 1
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
    view[0] = 2


def test_two_devices_pass_an_array_on(space: Space, device: Device) -> None:
    array = space.zeros("a", 1000)
    with Device("host", "1MiB") as second:
        here, there = array.on(device), array.on(second)
        for value in range(1, 5):
            for one in (here, there):
                one.load().wait()
                with one.writing() as view:
                    view += value
        assert array.numpy()[0] == 2 * (1 + 2 + 3 + 4)


def test_an_array_goes_into_a_block_of_a_placement(space: Space, device: Device) -> None:
    array = space.put("a", np.arange(100))
    block = device.take(800)
    replica = array.on(block)
    replica.load().wait()
    assert replica.pointer == block.pointer
    replica.release()
    assert not block.released
    with pytest.raises(Mismatch, match="the array has 800 bytes, the block 799"):
        array.on(device.take(799))
    with pytest.raises(Mismatch, match="Device"):
        array.on("host")  # type: ignore[arg-type]


def test_types_that_only_torch_has(space: Space, device: Device) -> None:
    replica = space.zeros("a", (4, 8), "bfloat16").on(device)
    replica.load().wait()
    with replica.writing() as there:
        there[1] = 1.5
    assert replica.torch().dtype == torch.bfloat16
    with pytest.raises(Mismatch, match="bfloat16"):
        replica.numpy()
    assert space["a"].torch()[1].sum() == 12


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_arrays_without_bytes_or_dimensions_have_replicas_too(
    space: Space, device: Device, shape: tuple[int, ...]
) -> None:
    replica = space.zeros("a", shape, "float32").on(device)
    replica.load().wait()
    with replica.writing() as there:
        there[...] = 1
    assert replica.numpy().shape == shape
    assert tuple(replica.torch().shape) == shape
    replica.store().wait()
    assert space["a"].numpy().sum() == replica.numpy().size


def test_arrays_of_a_space_over_hosts_have_replicas_too(url: str) -> None:
    with Space.open(url, contribute="16MiB") as space, Device("host", "1MiB") as device:
        array = space.put("a", np.arange(1000))
        replica = array.on(device)
        replica.load().wait()
        with replica.writing() as there:
            there += 1
        out = np.zeros(1000, np.int64)
        space.get(array, out).wait()
        assert np.array_equal(out, np.arange(1, 1001))
        assert replica.state == "clean"


def only_reads(array: Array) -> bool:
    with Device("host", "1MiB") as device:
        replica = array.on(device)
        replica.load().wait()
        with pytest.raises(NotPermitted, match="cannot be written"):
            replica.mark_dirty()
        return bool(replica.numpy()[3] == 3) and replica.state == "clean"


def opened_to_read(state: State) -> bool:
    with Space.open("shelf", mode="r") as space:
        return only_reads(space["a"])


def test_what_cannot_be_written_has_replicas_to_read(space: Space, peer: Peer) -> None:
    assert only_reads(space.put("a", np.arange(4)).read_only())
    assert peer.call(opened_to_read)


def test_a_replica_larger_than_the_device_finds_no_room(space: Space, device: Device) -> None:
    array = space.zeros("a", 33 * MIB, "uint8")
    with pytest.raises(NoRoom, match="budget is 33554432"):
        array.on(device)
    gc.collect()
    assert device.describe()["used"] == 0


def test_threads_may_touch_while_others_change(space: Space, device: Device) -> None:
    array = space.zeros("a", 1000, "int64")
    replica = array.on(device)
    replica.load().wait()
    stop, seen = threading.Event(), []

    def touch() -> None:
        while not stop.is_set():
            seen.append(int(array.numpy()[0]))

    thread = threading.Thread(target=touch)
    thread.start()
    for value in range(1, 300):
        with replica.writing() as there:
            there[:] = value
    assert array.numpy()[0] == 299
    stop.set()
    thread.join()
    assert seen == sorted(seen)  # nothing newer was overwritten by something older


def test_a_missing_cuda_device_and_a_missing_torch_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(UnknownName, match="no CUDA device"):
            Device("cuda", "1MiB")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"openshelf\[torch\]"):
        Device("cuda", "1MiB")


def test_a_host_device_is_one_and_fits_the_machine() -> None:
    with pytest.raises(BadInput, match="the host is one device"):
        Device("host:1", "1MiB")
    with pytest.raises(NoRoom, match="this machine has"):
        Device("host", "1PiB")


def test_the_arena_s_pages_are_there_from_the_start() -> None:
    before = _resident()
    with Device("host", "32MiB") as device:
        assert _resident() - before > 30 * MIB
        block = device.take("16MiB")
        then = _resident()
        block.numpy()[:] = 1
        assert _resident() - then < MIB


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_free_runs_are_joined_and_the_shortest_that_fits_is_used() -> None:
    room = Room(8192)
    offsets = [room.take(1024) for _ in range(8)]
    assert offsets == [1024 * number for number in range(8)]
    assert room.take(1) is None
    for number in (1, 2, 5):
        room.give(1024 * number, 1024)
    assert (room.free, room.largest) == (3072, 2048)
    assert room.take(1024) == 5120  # not the longer run
    room.give(5120, 1024)
    room.give(3072, 1024)
    room.give(4096, 1024)
    assert (room.free, room.largest) == (5120, 5120)
    assert room.take(1024, 4096) == 4096
    assert (room.free, room.largest) == (4096, 3072)
    for number in (0, 4, 6, 7):
        room.give(1024 * number, 1024)
    assert (room.free, room.largest) == (8192, 8192)
