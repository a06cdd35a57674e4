"""An Array where people are used to numpy's: operators, functions, indexing, exchange."""

from __future__ import annotations

import gc
import operator
from typing import Any

import numpy as np
import pytest
import torch

from openshelf import Array, Space
from openshelf.errors import BadInput, Mismatch, NotPermitted, OpenshelfError, OutOfRange
from tests.processes import Peer
from tests.space import shelf


@pytest.fixture
def array(space: Space) -> Array:
    return space.put("a", np.arange(6, dtype=np.float64).reshape(2, 3))


BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow]
COMPARE = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("operate", BINARY + COMPARE, ids=lambda each: each.__name__)
def test_operators_give_what_numpy_gives(array: Array, operate: Any) -> None:
    array[0, 0] = 6  # nothing is divided by zero
    plain, other = array.numpy().copy(), np.array([1.0, 2.0, 3.0])
    for mine, theirs in [
        (operate(array, 2), operate(plain, 2)),
        (operate(3, array), operate(3, plain)),
        (operate(array, other), operate(plain, other)),
        (operate(other, array), operate(other, plain)),
        (operate(array, array), operate(plain, plain)),
    ]:
        assert type(mine) is np.ndarray
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
    assert array.numpy().tolist() == plain.tolist()


def test_products_negation_and_bits_are_numpys(space: Space, array: Array) -> None:
    plain = array.numpy()
    assert (array @ plain.T).tolist() == (plain @ plain.T).tolist()
    assert (plain.T @ array).tolist() == (plain.T @ plain).tolist()
    assert (-array).tolist() == (-plain).tolist()
    assert abs(-array).tolist() == plain.tolist()
    bits = space.put("bits", np.array([1, 2, 3], np.int64))
    assert (bits & 2).tolist() == [0, 2, 2]
    assert (~bits).tolist() == [-2, -3, -4]
    assert divmod(bits, 2)[1].tolist() == [1, 0, 1]


def test_operators_in_place_write_the_shared_array(space: Space, array: Array) -> None:
    same = array
    same += 1
    same *= 2
    assert same is array
    assert space["a"].numpy().tolist() == [[2, 4, 6], [8, 10, 12]]
    out: Any = array
    assert np.add(array, 1, out=out) is array
    outs: Any = (array, None)
    assert np.divmod(array, 2, out=outs)[0] is array


def test_functions_of_numpy_take_it(space: Space, array: Array) -> None:
    plain = array.numpy().copy()
    assert np.sum(array) == 15
    assert np.concatenate([array, plain, array]).shape == (6, 3)
    assert np.stack((array, array), axis=1).shape == (2, 2, 3)
    assert np.where(array > 2, array, 0).tolist() == [[0, 0, 0], [3, 4, 5]]
    assert np.allclose(array, plain)
    assert np.array_equal(array, plain)
    assert np.einsum("ij,ij->i", array, array).tolist() == [5, 50]
    assert np.linalg.norm(array) == np.linalg.norm(plain)
    assert np.add.reduce(array, axis=0).tolist() == [3, 5, 7]
    assert np.random.default_rng(0).permutation(array).shape == (2, 3)
    total: Any = space.zeros("total", 3, "float64")
    assert np.sum(array, axis=0, out=total) is total
    np.copyto(array, 7)  # type: ignore[arg-type]
    np.add.at(array, (0, 0), 1)
    assert array.numpy().tolist() == [[8, 7, 7], [7, 7, 7]]
    assert total.numpy().tolist() == [3, 5, 7]


def test_indexing_reads_what_numpy_reads(array: Array) -> None:
    plain = array.numpy()
    assert array[0, 1] == 1.0
    assert isinstance(array[0, 1], np.float64)
    indices: list[Any] = [
        (slice(None), 1),
        (0, slice(None, None, 2)),
        ...,
        None,
        (..., 0),
        [1, 0],
        slice(None, None, -1),
        slice(0, 2, 2),
        np.array([True, False]),
        plain > 2,
        True,
    ]
    for index in indices:
        np.testing.assert_array_equal(array[index], plain[index])
    assert array[array > 2].tolist() == [3, 4, 5]
    column = array[:, 1]
    column[:] = 9
    assert array.numpy()[:, 1].tolist() == [9, 9], "a view, not a copy"


def test_rows_and_slices_are_arrays_and_elements_are_numbers(space: Space, array: Array) -> None:
    assert isinstance(array[1], Array)
    assert isinstance(array[0:1], Array)
    assert array[1][2] == 5.0
    assert isinstance(array[1][2], np.float64)
    assert [type(row) for row in array] == [type(array[0])] * 2
    assert [float(x) for x in array[1]] == [3, 4, 5]
    assert list(space.put("names", np.array(["x", "yz"]))) == ["x", "yz"]
    pairs = space.put("pairs", np.array([(1, 2.0), (3, 4.0)], [("i", "i4"), ("x", "f8")]))
    assert pairs["x"].tolist() == [2.0, 4.0]
    assert pairs[1]["i"] == 3


def test_indexing_writes_the_shared_array(space: Space, array: Array, peer: Peer) -> None:
    array[0, 1] = 10
    array[1] = [1, 2, 3]
    array[array == 3] = -3
    array[:, 0] += 100
    array[1][1] = torch.tensor(20.0, requires_grad=True)
    peer.call(shelf.open_space)
    assert peer.call(shelf.read, "a").tolist() == [[100, 10, 2], [101, 20, -3]]
    array[...] = 0
    assert peer.call(shelf.read, "a").tolist() == [[0, 0, 0], [0, 0, 0]]
    array[...] = space.put("b", np.ones(3))
    assert array.numpy().sum() == 6


def test_wrong_indices_and_values_are_named(array: Array) -> None:
    for index in [(0, 3), (0, 0, 0), [2], "field", (0, "x")]:
        with pytest.raises(OutOfRange, match=r"an array of shape \(2, 3\) has no \["):
            array[index]
        with pytest.raises(OutOfRange, match="has no"):
            array[index] = 0
    with pytest.raises(IndexError):
        array[2]
    for value in ([1, 2], "text", object(), np.zeros((3, 3))):
        with pytest.raises(Mismatch, match="cannot be written into"):
            array[0] = value


def test_in_means_an_equal_element_and_a_handle_is_hashed_by_identity(space: Space, array: Array) -> None:
    assert 5 in array
    assert 7 not in array
    again = space["a"]
    assert len({array, again, array}) == 2
    assert {array: "kept"}[array] == "kept"
    assert (array == again).all()
    assert not (array != again).any()
    assert (array == None).tolist() == [[False] * 3] * 2  # noqa: E711


def test_one_number_converts_and_several_have_no_truth(space: Space, array: Array) -> None:
    one = space.put("one", 2.5)
    assert (float(one), int(one), bool(one)) == (2.5, 2, True)
    assert not space.zeros("none", 1)
    for ambiguous in (bool, int, float):
        with pytest.raises(BadInput, match=r"shape \(2, 3\) is no"):
            ambiguous(array)


CONVERSIONS = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "index": operator.index,
    "bytearray": bytearray,
    "format": lambda value: format(value, "08.3f"),
    "list item": lambda value: list("abcdefgh")[value],
}
VALUES = [
    np.int64(3),
    np.uint8(7),
    2.5,
    1 + 2j,
    np.arange(5),
    np.arange(3, dtype="uint8"),
    np.ones((2, 2)),
    np.array([2]),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_conversion_gives_what_numpys_gives_or_refuses(space: Space, convert: Any, value: Any) -> None:
    try:
        expected = convert(np.asarray(value))
    except Exception:
        expected = None
    try:
        got = convert(space.put("x", value))
    except (OpenshelfError, ValueError, np.exceptions.ComplexWarning):
        return
    assert expected is None or got == expected


def test_numbers_bytes_and_formats_are_the_views(space: Space, array: Array) -> None:
    assert complex(space.put("z", 1 + 2j)) == 1 + 2j
    assert "abc"[space.put("one", 1)] == "b"
    assert f"{space.put('pi', 3.14159):.2f}" == "3.14"
    assert f"{array}" == repr(array)
    assert bytes(array[1]) == array.numpy()[1].tobytes()
    assert bytes(space.put("ints", np.arange(3))) == np.arange(3).tobytes()
    assert bytes(space.full("half", 2, 1.0, "bfloat16")) == b"\x80?\x80?"
    with pytest.raises(BadInput, match=r"int64 \(3,\) is no index; bytes\(array\) gives its bytes"):
        bytearray(space["ints"])


def test_asarray_does_not_copy_unless_it_must(array: Array) -> None:
    assert np.shares_memory(np.asarray(array), array.numpy())
    assert np.shares_memory(np.array(array, copy=None), array.numpy())
    assert np.shares_memory(np.asarray(array, "float64"), array.numpy())
    assert not np.shares_memory(np.array(array), array.numpy())
    assert np.asarray(array, "int32").dtype == np.int32
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        assert np.shares_memory(np.asarray(array, copy=False), array.numpy())
        with pytest.raises(ValueError, match="without a copy"):
            np.asarray(array, "int32", copy=False)


@pytest.mark.parametrize("view", [np.asarray, np.from_dlpack, torch.as_tensor, torch.from_dlpack, lambda a: a[:, 1:]])
def test_views_of_every_kind_hold_the_array(space: Space, view: Any) -> None:
    kept = view(space.put("big", np.full((4, 1 << 18), 7, np.uint8)))
    space.delete("big")
    gc.collect()
    space.describe()
    space.put("other", np.zeros((4, 1 << 18), np.uint8))
    assert (np.asarray(kept) == 7).all()
    del kept
    assert shelf.problems(space) == shelf.SOUND


def test_torch_takes_it_without_a_copy(space: Space, array: Array) -> None:
    tensor = torch.as_tensor(array)
    assert tensor.data_ptr() == array.address
    tensor[0, 0] = 42
    assert array[0, 0] == 42
    assert torch.as_tensor(array[1]).data_ptr() == array[1].address
    assert torch.from_dlpack(array).data_ptr() == array.address
    assert torch.tensor(array).data_ptr() != array.address
    brain = space.zeros("bf", (2, 2), "bfloat16")
    assert torch.as_tensor(brain).data_ptr() == brain.address
    assert torch.as_tensor(brain).dtype == torch.bfloat16
    assert array.__dlpack_device__() == (1, 0)
    with pytest.raises(BadInput, match="memory of the CPU"):
        array.__dlpack__(dl_device=(2, 0))
    with pytest.raises(Mismatch, match="DLPack"):
        np.from_dlpack(space.put("when", np.array(["2026-01-01"], "M8[D]")))


def test_what_only_torch_has_says_so(space: Space) -> None:
    brain = space.zeros("bf", (2, 2), "bfloat16")
    calls: list[Any] = [
        lambda: brain + 1,
        lambda: brain == brain,
        lambda: brain[0, 0],
        lambda: brain[0][0],
        lambda: brain.__setitem__(0, 1),
        lambda: np.sum(brain),
        lambda: np.asarray(brain),
        lambda: list(brain[0]),
    ]
    for call in calls:
        with pytest.raises(Mismatch, match=r"numpy has no bfloat16; use \.torch\(\)"):
            call()
    assert brain[0].torch().tolist() == [0, 0]
    with pytest.raises(Mismatch, match=r"array\.torch\(\) computes with it"):
        space.zeros("x", 3) + torch.ones(3)
    with pytest.raises(Mismatch, match=r"array\.torch\(\) computes with it"):
        torch.ones(3, requires_grad=True) * space["x"]


def test_read_only_stays_read_only(array: Array) -> None:
    fixed: Any = array.read_only()
    assert (fixed + 1).flags.writeable
    assert fixed[0, 1] == 1
    views: list[Any] = [np.asarray(fixed), fixed[:, 0], fixed[...], fixed[0].numpy(), next(iter(fixed)).numpy()]
    assert not any(view.flags.writeable for view in views)
    writes: list[Any] = [
        lambda: fixed.__setitem__(..., 0),
        lambda: fixed.__iadd__(1),
        lambda: np.add(1, 2, out=fixed),
        lambda: torch.as_tensor(fixed),
        lambda: np.from_dlpack(fixed[0]),
    ]
    for write in writes:
        with pytest.raises(NotPermitted, match="read-only"):
            write()
    assert torch.from_dlpack(fixed, copy=True).tolist() == array.numpy().tolist()
    assert array.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_what_only_a_view_has_names_the_view(array: Array) -> None:
    assert (array.ndim, array.size) == (2, 6)
    with pytest.raises(AttributeError, match=r"its view has: \.numpy\(\)\.mean"):
        array.mean()
    with pytest.raises(AttributeError, match="'Array' has no attribute 'nonsense'"):
        array.nonsense  # noqa: B018
    assert "shape=(2, 3), dtype=float64" in repr(array)
