"""The contract of devices/base.py, asked of every implementation."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from openshelf.errors import BadInput, Closed, Mismatch, NoRoom, UnknownName
from openshelf.space import Device, Placement, Transfer, place
from openshelf.space.devices.block import Block
from openshelf.space.devices.device import ARENAS
from tests.conformance import cuda_stand_in

MIB = 1 << 20


@pytest.fixture(params=[*sorted(ARENAS), "cuda on a stand-in"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Device]:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here: devices/cuda.py is tested on a stand-in for torch.cuda only")
    if request.param == "cuda on a stand-in":
        cuda_stand_in.install(monkeypatch)
    return lambda budget: Device(request.param.split()[0], budget)


@pytest.fixture
def device(make: Callable[[Any], Device]) -> Iterator[Device]:
    with make("64MiB") as made:
        yield made


def noise(nbytes: int, seed: int = 1) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def content(block: Block) -> np.ndarray[Any, np.dtype[np.uint8]]:
    out = np.empty(block.nbytes, np.uint8)
    block.device.copy(out, block).wait()
    return out


def test_an_unknown_device_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="no device 'abacus'; known: cuda, host"):
        Device("abacus", "1MiB")


@pytest.mark.parametrize("nbytes", [0, 1, 511, 512, 4097, MIB, 9 * MIB + 3])
def test_bytes_go_in_within_and_out_unchanged(device: Device, nbytes: int) -> None:
    data = noise(nbytes)
    one, other = device.take(nbytes), device.take(nbytes)
    out = np.zeros(nbytes, np.uint8)
    device.copy(one, data)
    device.copy(other, one)
    last = device.copy(out, other)
    assert last.nbytes == nbytes
    assert last.wait(60)
    assert last.done
    assert np.array_equal(out, data)
    assert one.pointer % 512 == 0


def test_host_memory_may_be_anything_with_bytes(device: Device) -> None:
    block = device.take(8)
    device.copy(block, b"readonly").wait()
    out = bytearray(8)
    device.copy(memoryview(out), block).wait()
    assert out == b"readonly"
    tensor = torch.arange(4, dtype=torch.int16)
    device.copy(block, tensor).wait()
    back = torch.zeros(4, dtype=torch.int16)
    device.copy(back, block).wait()
    assert back.tolist() == [0, 1, 2, 3]


def test_copies_of_one_stream_run_in_order(device: Device) -> None:
    blocks = [device.take(MIB) for _ in range(8)]
    stream = device.stream()
    for round_ in range(4):
        data = noise(MIB, round_)
        stream.copy(blocks[0], data)
        for before, after in itertools.pairwise(blocks):
            stream.copy(after, before)
        event = stream.record()
        assert event.wait(60)
        assert np.array_equal(content(blocks[-1]), data)


def test_a_stream_waits_for_an_event_of_another(device: Device) -> None:
    blocks = [device.take(2 * MIB) for _ in range(5)]
    streams = [device.stream() for _ in range(4)]
    for round_ in range(10):
        data = noise(2 * MIB, round_)
        device.copy(blocks[0], data)
        event = device.record()
        for number, stream in enumerate(streams):
            stream.wait_for(event)
            stream.copy(blocks[number + 1], blocks[number])
            event = stream.record()
        out = np.empty_like(data)
        device.wait_for(event)
        device.copy(out, blocks[-1]).wait()
        assert np.array_equal(out, data)


def eventually(attempt: Callable[[], bool]) -> bool:
    """Whether something that a busy machine may hide is seen in one of many attempts."""
    return any(attempt() for _ in range(100))


def test_streams_do_not_hold_one_another_up(device: Device) -> None:
    big, small, data = device.take(32 * MIB), device.take(8), noise(32 * MIB)
    slow, quick = device.stream(), device.stream()

    def overtakes() -> bool:
        last = [slow.copy(big, data) for _ in range(10)][-1]
        quick.copy(small, b"overtake").wait()
        first = not last.done
        return last.wait() and first

    assert eventually(overtakes)


def test_a_copy_can_be_polled_awaited_and_waited_for_with_a_limit(device: Device) -> None:
    block, data = device.take(32 * MIB), noise(32 * MIB)

    async def all_of_them(transfers: list[Transfer]) -> None:
        await asyncio.gather(*transfers)

    def takes_its_time() -> bool:
        transfers = [device.copy(block, data) for _ in range(8)]
        early = not transfers[-1].wait(0) and not transfers[-1].wait(0.0001)
        asyncio.run(all_of_them(transfers))
        assert all(each.done for each in transfers)
        return early

    assert eventually(takes_its_time)
    assert device.describe()["waited_s"] > 0


def test_other_threads_run_while_one_waits_for_a_copy(device: Device) -> None:
    block, data = device.take(32 * MIB), noise(32 * MIB)
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    def counts_meanwhile() -> bool:
        last = [device.copy(block, data) for _ in range(20)][-1]
        before = counted[0]
        last.wait()
        return counted[0] > before + 1000

    thread = threading.Thread(target=count)
    thread.start()
    seen = eventually(counts_meanwhile)
    stop.set()
    thread.join()
    assert seen


def test_several_threads_copy_at_once(device: Device) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        stream = device if seed % 2 else device.stream()
        for round_ in range(30):
            data, out = noise(70_000, seed * 100 + round_), np.empty(70_000, np.uint8)
            with device.take(70_000) as block:
                stream.copy(block, data)
                stream.copy(out, block).wait()
            if not np.array_equal(out, data):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert device.describe()["used"] == 0


def test_host_memory_is_kept_until_the_copy_is_done(device: Device) -> None:
    block = device.take(16 * MIB)
    wanted = noise(16 * MIB, 7)
    busy = noise(16 * MIB)
    for _ in range(4):
        device.copy(block, busy)
    device.copy(block, wanted.copy())  # nobody has it but the copy
    gc.collect()
    np.ones(16 * MIB, np.uint8)  # would get its memory
    assert np.array_equal(content(block), wanted)


def test_dropping_a_device_waits_for_its_copies(make: Callable[[Any], Device]) -> None:
    device = make("16MiB")
    block, data = device.take(16 * MIB), noise(16 * MIB)
    out = np.zeros(16 * MIB, np.uint8)
    for _ in range(8):
        device.copy(block, data)
    last = device.copy(out, block)
    del block, device
    assert last.done
    assert np.array_equal(out, data)
    assert last.wait(0)


def test_closing_finishes_and_then_refuses(make: Callable[[Any], Device]) -> None:
    device = make("16MiB")
    stream, block, data = device.stream(), device.take(8 * MIB), noise(8 * MIB)
    transfers = [stream.copy(block, data) for _ in range(5)]
    device.close()
    device.close()
    assert all(each.done for each in transfers)
    for call in (
        lambda: device.take(1),
        lambda: device.copy(block, data),
        lambda: stream.record(),
        lambda: device.stream(),
        lambda: block.torch(),
    ):
        with pytest.raises(Closed, match="device was closed"):
            call()


def test_views_are_the_device_s_memory_and_hold_it(device: Device) -> None:
    block = device.take(4000)
    device.copy(block, np.arange(1000, dtype=np.float32)).wait()
    view = block.torch("float32", (10, 100))
    assert view.shape == (10, 100)
    view += 1
    out = np.empty(1000, np.float32)
    device.copy(out, block).wait()
    assert out[999] == 1000
    part = view[3]
    used = device.describe()["used"]
    block.release()
    del view, block
    assert device.describe()["used"] == used  # the part is still there
    del part
    gc.collect()
    assert device.describe()["used"] == 0


def test_the_budget_is_a_limit_and_says_so(device: Device) -> None:
    blocks = [device.take(16 * MIB) for _ in range(4)]
    blocks[0].release()
    blocks[2].release()
    with pytest.raises(NoRoom, match=r"20971520 bytes .*budget is 67108864, free are 33554432, .*run is 16777216"):
        device.take(20 * MIB)
    assert device.take(16 * MIB).nbytes == 16 * MIB


def test_a_block_released_under_a_copy_is_not_reused_before_its_end(device: Device) -> None:
    data, out = noise(64 * MIB), np.empty(64 * MIB, np.uint8)
    block = device.take(64 * MIB)
    device.copy(block, data)
    device.copy(out, block)
    block.release()
    other = device.take(64 * MIB)  # waits for the copies
    device.stream().copy(other, np.zeros(64 * MIB, np.uint8)).wait()
    assert np.array_equal(out, data)


def test_wrong_sizes_blocks_and_types_are_refused(device: Device, make: Callable[[Any], Device]) -> None:
    block, other = device.take(100), device.take(101)
    with pytest.raises(Mismatch, match="the block has 100 bytes, the buffer 99"):
        device.copy(block, bytes(99))
    with pytest.raises(Mismatch, match="the block has 101 bytes, the block 100"):
        device.copy(other, block)
    with pytest.raises(Mismatch, match="from or to a Block"):
        device.copy(bytearray(1), b"1")
    with pytest.raises(Mismatch, match="contiguous"):
        device.copy(block, np.zeros(200, np.uint8)[::2])
    with pytest.raises(Mismatch, match="needs 104 bytes, the block has 100"):
        block.torch("float32", 26)
    with pytest.raises(Mismatch, match="no whole number of float32"):
        other.torch("float32")
    with make("1MiB") as second:
        with pytest.raises(BadInput, match="another device"):
            second.copy(second.take(100), block)
        with pytest.raises(BadInput, match="nothing of this device"):
            second.wait_for(device.record())
    with pytest.raises(BadInput):
        make(100)
    with pytest.raises(BadInput):
        device.take(-1)


def test_a_block_is_released_once_and_not_used_afterwards(device: Device) -> None:
    block = device.take(100)
    block.release()
    with pytest.raises(Closed, match="released already"):
        block.release()
    for call in (
        lambda: block.torch(),
        lambda: block.pointer,
        lambda: device.copy(block, bytes(100)),
        lambda: device.copy(bytearray(100), block),
    ):
        with pytest.raises(Closed, match="was released; take another"):
            call()


def test_a_placement_gives_fixed_blocks(device: Device) -> None:
    placement = place([(3 * MIB, 0, 1), (MIB, 1, 2), (2 * MIB, 2, 3), (0, 0, 9), (100, 0, 3)], alignment=4096)
    first = device.take(700)  # so that the arrangement does not begin at 0
    blocks = device.arrange(placement)
    used = device.describe()["used"]
    assert [block.nbytes for block in blocks] == [3 * MIB, MIB, 2 * MIB, 0, 100]
    assert all((block.pointer - device.arena.pointer) % 4096 == 0 for block in blocks)
    datas = [noise(block.nbytes, number) for number, block in enumerate(blocks)]
    device.copy(blocks[4], datas[4])
    device.copy(blocks[0], datas[0])
    device.copy(blocks[1], datas[1])
    assert np.array_equal(content(blocks[0]), datas[0])
    device.copy(blocks[2], datas[2])  # where the first was
    for number in (1, 2, 4):
        assert np.array_equal(content(blocks[number]), datas[number])
    assert device.describe()["used"] == used  # nothing was allocated
    for block in blocks:
        block.release()
    first.release()
    del block
    assert device.describe()["used"] == 0
    with pytest.raises(NoRoom):
        device.arrange(place([(65 * MIB, 0, 0)]))
    with pytest.raises(BadInput, match="storage 1 of the placement"):
        device.arrange(Placement((512, 512), (0, 512), peak=1023, live_peak=1023, alignment=1))


def test_overlapping_blocks_of_a_placement_are_not_copied_onto_each_other(device: Device) -> None:
    one, other = device.arrange(place([(MIB, 0, 0), (MIB, 1, 1)]))
    with pytest.raises(BadInput, match="overlap"):
        device.copy(other, one)


def test_describe_counts(device: Device) -> None:
    block, other = device.take(1000), device.take(1000)
    device.copy(block, bytes(1000))
    device.copy(other, block)
    device.copy(bytearray(1000), other)
    device.stream().copy(block, bytes(1000)).wait()
    found = device.describe()
    assert (found["copies_in"], found["bytes_in"]) == (2, 2000)
    assert (found["copies_out"], found["bytes_out"]) == (1, 1000)
    assert (found["copies_within"], found["bytes_within"]) == (1, 1000)
    assert (found["budget"], found["used"], found["largest_free"]) == (64 * MIB, 2048, 64 * MIB - 2048)


def test_a_stream_that_is_dropped_is_used_again(device: Device) -> None:
    for _ in range(10):
        device.stream()
    assert device.describe()["streams"] == 2


def test_a_forked_child_is_told_that_it_has_no_device(device: Device) -> None:
    stream, block, data = device.stream(), device.take(16 * MIB), noise(16 * MIB)
    event = stream.copy(block, data)
    child = os.fork()
    if not child:
        refused = 0
        for call in (
            lambda: device.take(1),
            lambda: device.copy(block, data),
            lambda: stream.copy(block, data),
            lambda: block.torch(),
            lambda: device.record(),
        ):
            try:
                call()
            except Closed as error:
                refused += "forked" in str(error)
        if not event.done:
            try:
                event.wait()
            except Closed:
                refused += 1
        else:
            refused += 1
        device.close()
        del device, stream, block, event
        gc.collect()
        os._exit(0 if refused == 6 else refused + 10)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    event.wait()
    assert np.array_equal(content(block), data)
