"""get and put by address on one host: plain copies behind the same interface as between hosts."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import numpy as np
import pytest

from openshelf import Space, Transfer
from openshelf.errors import BadAddress, BadInput, Mismatch, NotPermitted, UnknownName
from openshelf.space import transfer as transfer_module


def test_bytes_are_copied_out_and_in(space: Space) -> None:
    a = space.put("a", np.arange(16, dtype=np.uint8))
    out = bytearray(4)
    transfer = space.get(a.address + 4, out)
    assert isinstance(transfer, Transfer)
    assert transfer.done
    assert transfer.wait(0)
    assert bytes(out) == bytes([4, 5, 6, 7])
    space.put(a.address, b"\xff\xfe").wait()
    assert a.numpy()[:3].tolist() == [255, 254, 2]
    whole = np.empty(16, np.uint8)
    space.get(a, whole).wait()
    assert (whole == a.numpy()).all()
    space.get(a[4:8], memoryview(out)).wait()
    space.get(a, out, nbytes=2).wait()
    assert bytes(out) == bytes([255, 254, 6, 7])


def test_rows_are_gathered_and_scattered(space: Space) -> None:
    a = space.put("a", np.arange(12, dtype=np.int32).reshape(3, 4))
    out = np.zeros((2, 4), np.int32)
    space.get([a[2].address, a[0]], out).wait()
    assert out.tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]
    space.put(np.array([a[1].address, a[2].address], np.uint64), out).wait()
    assert a.numpy()[1:].tolist() == out.tolist()
    space.get([], np.zeros((0, 4))).wait()


def test_tensors_are_buffers_too(space: Space) -> None:
    torch = pytest.importorskip("torch")
    a = space.put("a", torch.arange(4, dtype=torch.bfloat16))
    out = torch.zeros(4, dtype=torch.bfloat16)
    space.get(a, out).wait()
    assert out.tolist() == [0, 1, 2, 3]
    with pytest.raises(Mismatch, match="contiguous"):
        space.get(a, torch.zeros(8, dtype=torch.bfloat16)[::2])


def test_transfers_can_be_awaited(space: Space) -> None:
    a = space.put("a", np.arange(16, dtype=np.uint8))

    async def both() -> list[bytes]:
        first, second = bytearray(2), bytearray(2)
        await asyncio.gather(space.get(a.address, first), space.get(a.address + 2, second))
        return [bytes(first), bytes(second)]

    assert asyncio.run(both()) == [b"\0\1", b"\2\3"]


def test_a_transfer_under_way_can_be_awaited_and_timed_out() -> None:
    class Slow:
        asked = 0
        done = False

        def wait(self, timeout_s: float) -> bool:
            self.asked += 1
            self.done = timeout_s < 0
            return self.done

    part = Slow()
    transfer = transfer_module.Transfer("get", 1, [part])
    assert not transfer.wait(0.01)
    assert not transfer.done

    async def one() -> Transfer:
        return await transfer

    assert asyncio.run(one()) is transfer
    assert transfer.done
    assert transfer.wait(0)


def test_wrong_buffers_are_named(space: Space) -> None:
    a = space.put("a", np.arange(16, dtype=np.uint8))
    wrong: list[tuple[Any, type[Exception]]] = [
        (b"1234", NotPermitted),
        (np.zeros((4, 4), np.uint8)[:, 1], Mismatch),
        (np.zeros(4, object), Mismatch),
        ("text", Mismatch),
        (None, Mismatch),
        ([1, 2], Mismatch),
    ]
    for buffer, error in wrong:
        with pytest.raises(error):
            space.get(a.address, buffer)
    with pytest.raises(Mismatch, match="the array has 16 bytes, the buffer 4"):
        space.get(a, bytearray(4))
    with pytest.raises(Mismatch, match="nbytes=5"):
        space.get(a, bytearray(4), nbytes=5)
    with pytest.raises(Mismatch, match="2 addresses need a buffer of 2 rows"):
        space.get([a.address] * 2, bytearray(4))
    with pytest.raises(BadInput, match="nbytes="):
        space.get([a.address], bytearray(1), nbytes=1)
    with pytest.raises(BadInput, match="home="):
        space.put(a, bytearray(16), home=0)  # type: ignore[call-overload]


def test_wrong_addresses_change_nothing(space: Space) -> None:
    a = space.put("a", np.zeros(16, np.uint8))
    for where in (a.address + 12, 0, a.address - (1 << 40), -1, 1 << 64):
        with pytest.raises(BadAddress):
            space.get(where, bytearray(8))
    with pytest.raises(BadAddress):
        space.put([a.address, a.address + 12], np.ones((2, 8), np.uint8))
    with pytest.raises(BadAddress):
        space.put([a[8:], a[12:]], np.ones((2, 8), np.uint8))
    assert not a.numpy().any()


def test_a_read_only_space_is_not_put_into(space: Space) -> None:
    address = space.put("a", np.zeros(16, np.uint8)).address
    space.close()
    with Space.open("shelf", "r") as reader:
        with pytest.raises(NotPermitted, match="read-only"):
            reader.put(address, b"x")
        out = bytearray(b"xx")
        reader.get(address, out).wait()
        assert out == b"\0\0"


def test_everything_is_at_home_on_one_host(space: Space) -> None:
    a = space.zeros("a", (4, 4), home=0)
    here = socket.gethostname()
    assert (a.home, a.owner, a.state) == (here, here, "home")
    assert a[1].home == here
    assert a.prefetch(write=True).wait()
    assert space.put("b", np.zeros(3), home=here).home == here
    with pytest.raises(UnknownName, match="this space is on one host"):
        space.new("c", 3, home="10.0.0.1:7400")
    (one,) = space.hosts()
    assert one["own"]
    assert one["up"]
    assert one["bytes"] == 64 << 20
    where = space.where(a.address)
    assert (where.host, where.owner, where.array) == (here, here, "a")


def test_read_only_views_cannot_be_written(space: Space) -> None:
    a = space.put("a", np.arange(6, dtype=np.float32).reshape(2, 3))
    fixed = a.read_only()
    assert fixed.name == "a"
    assert fixed.address == a.address
    assert fixed.shape == (2, 3)
    for view in (fixed.numpy(), fixed[1].numpy(), fixed[0:1].numpy("uint32"), fixed.read_only().numpy()):
        with pytest.raises(ValueError, match="read-only"):
            view[...] = 0
        with pytest.raises(ValueError):
            view.flags.writeable = True
    with pytest.raises(NotPermitted):
        space.zeros("w", 4, "int32").read_only().atomic()
    with pytest.raises(BadInput):
        fixed.publish("b")
    a.numpy()[0, 0] = 9
    assert fixed.numpy()[0, 0] == 9
