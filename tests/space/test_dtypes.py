"""Element types: every numpy one that means the same in another process, and those that only torch has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import Mismatch
from tests.processes import Peer, State
from tests.space import shelf

STRUCTURED = np.dtype([("id", "<i4"), ("point", "<f8", (3,)), ("name", "S6")])
ALIGNED = np.dtype([("flag", "?"), ("value", "<f8")], align=True)
DTYPES: list[Any] = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32",
    "float64", "longdouble", "complex64", "complex128", "clongdouble", "datetime64[ns]", "datetime64[D]",
    "timedelta64[us]", "timedelta64", "S5", "U7", "V3", ">i2", ">u4", ">i8", ">f4", ">f8", ">c16", ">U4",
    STRUCTURED, ALIGNED,
]  # fmt: skip


def _facts(state: State, name: str) -> tuple[Any, ...]:
    view = state["space"][name].numpy()  # not the view: numpy's pickle forgets byte order and padding
    return view.dtype.descr, view.shape, view.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_numpy_dtype_comes_back_bit_for_bit(space: Space, peer: Peer, dtype: Any) -> None:
    wanted = np.dtype(dtype)
    raw = shelf.pattern(3, 24 * wanted.itemsize)
    if wanted.kind == "U":
        value = np.array(["", "é", "zz", "名前"] * 6, wanted)
    elif wanted.kind == "b":
        value = raw.astype(bool)
    else:
        value = raw.view(wanted)
    value = value.reshape(2, 3, 4)
    array = space.put("a", value)
    peer.call(shelf.open_space)
    assert peer.call(_facts, "a") == (wanted.descr, (2, 3, 4), value.tobytes())
    for found in (array.numpy(), space["a"].numpy()):
        assert found.dtype == wanted
        assert found.shape == (2, 3, 4)
        assert found.tobytes() == value.tobytes()
    assert space["a"].nbytes == value.nbytes
    assert space["a"][1].numpy().tobytes() == value[1].tobytes()
    assert space.list()[0].dtype == array.dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zeros_of_every_dtype_are_numpys(space: Space, dtype: Any) -> None:
    array = space.zeros("a", 5, dtype)
    assert array.numpy().tobytes() == np.zeros(5, dtype).tobytes()
    assert space.at(array.address, 5, dtype).numpy().dtype == np.dtype(dtype)


def test_structured_arrays_are_written_field_by_field(space: Space, peer: Peer) -> None:
    with space.new("a", 3, STRUCTURED) as draft:
        draft.numpy()["id"] = (1, 2, 3)
        draft.numpy()["point"][2] = (0.5, 1.5, 2.5)
        draft.numpy()["name"][0] = b"shelf"
    peer.call(shelf.open_space)
    found = peer.call(shelf.read, "a")
    assert found["id"].tolist() == [1, 2, 3]
    assert found["point"][2].tolist() == [0.5, 1.5, 2.5]
    assert found["name"][0] == b"shelf"


TORCH = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


@pytest.mark.parametrize("name", TORCH)
def test_types_that_only_torch_has_come_back_bit_for_bit(space: Space, name: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    bits = torch.arange(256, dtype=torch.uint8)
    tensor = bits.view(dtype).reshape(4, -1)
    array = space.put("a", tensor)
    found = space["a"].torch()
    assert (found.dtype, found.shape, array.dtype) == (dtype, tensor.shape, name)
    assert torch.equal(found.view(torch.uint8).flatten(), bits)
    assert space["a"].numpy("uint8").tobytes() == bytes(range(256))
    with pytest.raises(Mismatch, match=r"use \.torch\(\)"):
        array.numpy()
    assert torch.equal(space["a"][1].torch().view(torch.uint8), tensor[1].view(torch.uint8))
    assert space.zeros("z", 3, name).torch().view(torch.uint8).sum() == 0
    assert space.zeros("y", 3, dtype).dtype == name


@pytest.mark.parametrize(
    "name", ["bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64"]
)
def test_torch_and_numpy_share_the_bytes(space: Space, name: str) -> None:
    torch = pytest.importorskip("torch")
    array = space.zeros("a", (2, 3), getattr(torch, name))
    tensor = array.torch()
    assert tensor.data_ptr() == array.address
    tensor[1, 2] = 1
    assert array.numpy()[1, 2] == 1
    assert array.numpy().dtype == np.dtype(name)


def test_torch_view_keeps_its_memory(space: Space) -> None:
    torch = pytest.importorskip("torch")
    tensor = space.put("a", torch.full((1 << 20,), 3, dtype=torch.uint8)).torch()
    space.delete("a")
    space.full("b", 1 << 20, 9, "uint8")
    assert bool((tensor == 3).all())


def test_types_without_a_meaning_elsewhere_are_refused(space: Space) -> None:
    with pytest.raises(Mismatch, match="Python objects"):
        space.put("a", np.array([object()]))
    with pytest.raises(Mismatch, match="no size"):
        space.zeros("a", 3, "S")
    with pytest.raises(Mismatch, match="not a dtype"):
        space.zeros("a", 3, "float7")
    with pytest.raises(Mismatch, match=r"use \.numpy\(\)"):
        space.put("a", np.zeros(3, "S5")).torch()
    with pytest.raises(Mismatch, match="use numbers or bytes"):
        space.put("b", {"a": 1})
