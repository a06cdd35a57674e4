"""Transfers between tiers and pins: waited for, polled, awaited, hurried, cancelled, released."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Array, Space
from openshelf.errors import BadAddress, BadInput, Cancelled, Mismatch, NoRoom, NotPermitted
from tests.processes import Peer, State, stop_process
from tests.space.tiers.conftest import with_faults
from tests.space.tiers.shelves import (
    DRAM,
    MIB,
    UNIT,
    demoted,
    keeper,
    kill_keeper,
    make,
    push,
    tiers,
    wait_until,
    words,
)


@contextlib.contextmanager
def stopped_keeper(space: Space) -> Iterator[None]:
    """What is asked meanwhile is all there when the keeper goes on."""
    pid = keeper(space)
    stop_process(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def flash_array(space: Space, name: str, nbytes: int) -> Array:
    return demoted(space.put(name, words(len(name), 1, nbytes)))


def test_handle_is_waited_for_and_polled(shelf: Space) -> None:
    array = flash_array(shelf, "a", 4 * MIB)
    with stopped_keeper(shelf):
        handle = array.prefetch()
        assert not handle.wait(0.05)
        assert not handle.wait(0)
        assert not handle.done
        assert "under way" in repr(handle)
    wait_until(lambda: handle.done)
    assert handle.wait(0)
    assert handle.wait()
    assert (array.tier, handle.nbytes) == ("dram", 4 * MIB)


def test_handles_are_awaited_together(shelf: Space) -> None:
    arrays = [flash_array(shelf, name * 3, 2 * MIB) for name in "abc"]

    async def fetch() -> None:
        await asyncio.gather(*(one.prefetch() for one in arrays))

    asyncio.run(fetch())
    assert [one.tier for one in arrays] == ["dram"] * 3


def test_dropped_handle_is_done_all_the_same(shelf: Space) -> None:
    array = flash_array(shelf, "a", 4 * MIB)
    array.prefetch()
    wait_until(lambda: array.tier == "dram")


@pytest.fixture
def roomy(mode: str, tmp_path: Path) -> Iterator[Space]:
    """With so much dram that a prefetch of most of it is not begun all at once."""
    with make(tmp_path, "roomy", dram=128 * MIB) as space:
        yield space


def test_prefetches_of_different_priority_all_come(shelf: Space) -> None:
    """Which one comes first is tested where the disk can be held: native/tests/tiers/engine_test.cpp."""
    first, slow, urgent = (flash_array(shelf, *what) for what in (("f", 8 * MIB), ("ss", 14 * MIB), ("uuu", MIB)))
    with stopped_keeper(shelf):
        handles = [first.prefetch(), slow.prefetch(), urgent.prefetch(priority=10)]
        handles[1].prioritise(20)
    assert all(handle.wait(60) for handle in handles)
    assert {array.tier for array in (first, slow, urgent)} == {"dram"}


def test_cancelled_prefetch_leaves_the_rest_where_it_is(roomy: Space) -> None:
    array = flash_array(roomy, "a", 96 * MIB)
    with stopped_keeper(roomy):
        handle = array.prefetch()
        handle.cancel()
    with pytest.raises(Cancelled):
        handle.wait(60)
    with pytest.raises(Cancelled):
        handle.wait()
    assert handle.done
    assert array[-UNIT // 8 :].tier == "flash"
    assert array.prefetch().wait(60)
    handle.cancel()
    assert array.tier == "dram"


def test_cancelled_pin_holds_nothing(shelf: Space) -> None:
    array = flash_array(shelf, "a", 2 * MIB)
    with stopped_keeper(shelf):
        pin = array.pin()
        pin.cancel()
    try:
        pin.wait(60)  # it was there before it was cancelled: then it is held
        with pytest.raises(NotPermitted, match="pinned"):
            array.demote().wait()
        pin.release()
    except Cancelled:
        pass
    demoted(array)
    assert tiers(shelf)["pinned_bytes"] == 0
    assert array.pin().wait(60)


def test_cancel_of_what_is_done_changes_nothing(shelf: Space) -> None:
    array = flash_array(shelf, "a", MIB)
    pin = array.pin()
    assert pin.wait(60)
    pin.cancel()
    assert pin.wait()
    with pytest.raises(NotPermitted, match="pinned"):
        array.demote().wait()


def test_pinned_bytes_stay_under_pressure(shelf: Space) -> None:
    array = flash_array(shelf, "a", 8 * MIB)
    with array.pin():
        push(shelf, 3 * DRAM)
        assert array.tier == "dram"
        with pytest.raises(NotPermitted, match="pinned"):
            array.demote().wait()
        assert tiers(shelf)["pinned_bytes"] >= 8 * MIB
    assert np.array_equal(shelf["a"].numpy(), words(1, 1, 8 * MIB))
    demoted(array)


def test_part_of_an_array_is_pinned_and_the_rest_moves(shelf: Space) -> None:
    array = shelf.put("a", words(1, 1, 4 * MIB))
    with array[: MIB // 8].pin():
        with pytest.raises(NotPermitted, match="pinned"):
            array.demote().wait()
        assert array[: MIB // 8].tier == "dram"
        assert array[2 * MIB // 8 :].tier == "flash"  # what is not pinned went


def test_pins_end_with_their_handles(shelf: Space) -> None:
    array = shelf.put("a", words(1, 1, MIB))
    one, two = array.pin(), array.pin()
    one.wait()
    two.wait()
    one.release()
    one.release()
    with pytest.raises(NotPermitted):
        array.demote().wait()
    del two
    gc.collect()
    demoted(array)
    with array.pin():
        pass
    demoted(array)


def _pin(state: State) -> None:
    state["space"] = Space.open("shelf")
    state["pin"] = state["space"]["a"].pin()
    state["pin"].wait()


@pytest.mark.parametrize("end", ["in order", "killed"])
def test_pins_end_with_their_process(shelf: Space, end: str) -> None:
    array = shelf.put("a", words(1, 1, MIB))
    with Peer() as process:
        process.call(_pin)
        with pytest.raises(NotPermitted):
            array.demote().wait()
        if end == "killed":
            process.kill()
    wait_until(lambda: tiers(shelf)["pinned_bytes"] == 0)
    demoted(array)


def _handle_last(state: State) -> None:
    space = Space.open("shelf")
    handle = space["a"].prefetch()
    handle.wait()
    space.close()
    pin = Space.open("shelf")["a"].pin()
    del space, handle
    pin.release()
    del pin


def test_handle_is_the_last_to_go(shelf: Space, peer: Peer) -> None:
    shelf.put("a", words(1, 1, MIB))
    for _ in range(20):
        peer.call(_handle_last)


def test_pins_outlive_the_keeper(shelf: Space) -> None:
    array = flash_array(shelf, "a", 4 * MIB)
    with array.pin():
        kill_keeper(shelf)
        keeper(shelf)
        push(shelf, 2 * DRAM)
        assert array.tier == "dram"
        with pytest.raises(NotPermitted, match="pinned"):
            array.demote().wait()
    demoted(array)


def test_next_keeper_hears_of_very_many_pins(shelf: Space) -> None:
    array = shelf.zeros("a", (2000, 1024), "uint8")
    pins = [array[row].pin() for row in range(len(array))]
    assert all(pin.wait(60) for pin in pins)
    pinned = tiers(shelf)["pinned_bytes"]
    kill_keeper(shelf)
    wait_until(lambda: tiers(shelf)["pinned_bytes"] == pinned)
    with pytest.raises(NotPermitted, match="pinned"):
        array.demote().wait()
    for pin in pins:
        pin.release()
    demoted(array)


def test_more_than_memory_cannot_be_pinned_or_prefetched(shelf: Space) -> None:
    big = shelf.zeros("big", 2 * DRAM // 8, "uint64")
    with pytest.raises(NoRoom, match="dram"):
        big.prefetch().wait()
    with pytest.raises(NoRoom, match="dram"):
        big.pin().wait()
    with pytest.raises(NoRoom), big.pin():
        pass
    assert tiers(shelf)["pinned_bytes"] == 0
    parts = [big[at : at + MIB] for at in range(0, 4 * MIB, MIB)]
    held = [part.pin() for part in parts[:2]]
    assert all(pin.wait(60) for pin in held)
    pins = [part.pin() for part in parts[2:]]
    with pytest.raises(NoRoom, match="release pins"):
        [pin.wait(60) for pin in pins]
    held[0].release()
    del pins
    assert parts[3].pin().wait(60)


@with_faults
def test_pin_makes_bytes_fit_for_system_calls(shelf: Space, mode: str) -> None:
    """Where faults are for user mode only, a system call into bytes that are not there fails."""
    array = shelf.put("a", words(1, 1, MIB))
    view: Any = array.numpy()
    demoted(array)
    data = words(2, 2, UNIT).tobytes()
    reading, writing = os.pipe()
    os.write(writing, data[:4096])
    with open(reading, "rb", buffering=0) as file:
        if mode == "user":
            with pytest.raises(OSError, match="Bad address"):
                file.readinto(view[:512])
        with array.pin():
            assert file.readinto(view[:512]) == 4096
    os.close(writing)
    demoted(array)
    assert view[:512].tobytes() == data[:4096]


@with_faults
def test_file_is_read_into_bytes_that_are_on_flash(shelf: Space, mode: str) -> None:
    if mode == "user":
        pytest.skip("system calls do not wait for user-mode faults: see the test of pin")
    array = shelf.put("a", words(1, 1, MIB))
    view: Any = array.numpy()
    demoted(array)
    with open("/dev/zero", "rb", buffering=0) as file:
        assert file.readinto(view[: UNIT // 8]) == UNIT
    demoted(array)
    assert not view[: UNIT // 8].any()
    assert np.array_equal(view[UNIT // 8 :], words(1, 1, MIB)[UNIT // 8 :])


def test_wrong_tiers_and_priorities_are_refused(shelf: Space) -> None:
    array = shelf.put("a", words(1, 1, MIB))
    for tier in ("dram", "", "cxl"):
        with pytest.raises(BadInput, match="flash"):
            array.demote(tier)
    with pytest.raises(BadInput, match="dram"):
        array.pin("flash")
    with pytest.raises(BadInput, match="priority"):
        array.prefetch(priority=1 << 40)
    nothing = array[3:3]
    assert nothing.prefetch().wait()
    assert nothing.demote().wait()
    with nothing.pin():
        pass


def test_many_ranges_are_prefetched_by_one_request(roomy: Space) -> None:
    array = flash_array(roomy, "a", 16 * MIB)
    wanted = [array[start : start + UNIT // 8] for start in range(0, len(array), 3 * UNIT // 8)]
    handle = roomy.prefetch(wanted)
    assert handle.nbytes == sum(part.nbytes for part in wanted)
    assert handle.wait(60)
    assert all(part.tier == "dram" for part in wanted)
    assert array.tier == "mixed"
    assert np.array_equal(array.numpy(), words(1, 1, 16 * MIB))


def test_many_addresses_are_prefetched_and_may_overlap(roomy: Space) -> None:
    array = flash_array(roomy, "a", 8 * MIB)
    addresses = array.address + np.array([5, 5, 5 + UNIT // 2, 3 * MIB, 8 * MIB - 100])
    assert roomy.prefetch(addresses, 100).wait(60)
    assert roomy.prefetch(addresses.tolist(), 100).wait(60)
    assert array[:1].tier == "dram"
    assert array[-1:].tier == "dram"
    assert array[MIB // 8 : MIB // 8 + 1].tier == "flash"
    assert roomy.prefetch([], 100).wait(0)
    assert roomy.prefetch([]).wait(0)


def test_more_ranges_than_one_note_carries(roomy: Space) -> None:
    array = flash_array(roomy, "a", 2 * MIB)
    assert roomy.prefetch(np.tile(np.arange(0, 2 * MIB, UNIT) + array.address, 300), 8).wait(60)
    assert array.tier == "dram"


def test_many_ranges_outlive_the_keeper(roomy: Space) -> None:
    array = flash_array(roomy, "a", 8 * MIB)
    with stopped_keeper(roomy):
        handle = roomy.prefetch([array[:1000], array[MIB // 2 :]])
        os.kill(keeper(roomy), signal.SIGKILL)
    assert handle.wait(60)
    assert array[MIB // 2 :].tier == "dram"


def test_cancelled_ranges_leave_the_rest_where_it_is(roomy: Space) -> None:
    first, array = flash_array(roomy, "a", 8 * MIB), flash_array(roomy, "b", 8 * MIB)
    with stopped_keeper(roomy):
        first.prefetch()
        handle = roomy.prefetch([array[at : at + UNIT // 8] for at in range(0, len(array), UNIT // 8)], priority=-1)
        handle.cancel()
    with pytest.raises(Cancelled):
        handle.wait(60)
    assert array.tier == "flash"


def test_wrong_ranges_are_refused(shelf: Space) -> None:
    array = shelf.put("a", words(1, 1, MIB))
    with pytest.raises(BadAddress, match="range 1 is outside"):
        shelf.prefetch([array.address, 64], 8)
    with pytest.raises(Mismatch, match="nbytes= says how much"):
        shelf.prefetch([array.address])
    with pytest.raises(Mismatch, match="a list of arrays or of addresses"):
        shelf.prefetch("a")  # type: ignore[arg-type]
    with pytest.raises(Mismatch, match="integers in one dimension"):
        shelf.prefetch(np.array([1.5]), 8)
    with pytest.raises(BadAddress):
        shelf.prefetch(np.array([-8]), 8)
    with pytest.raises(BadInput, match="0 or more"):
        shelf.prefetch([array.address], -1)
    with pytest.raises(NoRoom, match="at once"):
        shelf.prefetch([shelf.zeros(f"b{number}", 4 * MIB, "uint8") for number in range(DRAM // MIB // 4)]).wait(60)
