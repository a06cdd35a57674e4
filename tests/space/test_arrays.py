"""Arrays: what goes in comes out, under its name, in folders, by address; published whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import BadInput, NameTaken, OutOfRange, UnknownName
from tests.processes import Peer, State
from tests.space import shelf


def test_put_returns_what_getitem_finds(space: Space, peer: Peer) -> None:
    value = np.arange(12.0).reshape(3, 4)
    array = space.put("a", value)
    assert (array.name, array.shape, array.dtype, array.nbytes, len(array)) == ("a", (3, 4), "float64", 96, 3)
    assert array.tier == "dram"
    assert array.published
    peer.call(shelf.open_space)
    assert np.array_equal(peer.call(shelf.read, "a"), value)
    assert repr(array).startswith("Array('a', shape=(3, 4), dtype=float64, address=0x2")


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4, 5), (1,) * 32])
def test_shapes_of_any_rank_and_size_zero_are_kept(space: Space, shape: tuple[int, ...]) -> None:
    value = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    assert space.put("a", value).numpy().shape == shape
    assert np.array_equal(space["a"].numpy(), value)
    assert space.zeros("z", shape, "int32").numpy().shape == shape
    assert space["z"].torch().shape == shape
    assert shelf.problems(space) == shelf.SOUND


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 4095, 8192, 8193, 65536, 262143, 262144, 3 << 20])
def test_arrays_of_every_size_class_keep_their_bytes(space: Space, nbytes: int) -> None:
    wanted = [shelf.pattern(seed, nbytes) for seed in range(4)]
    for seed, value in enumerate(wanted):
        space.put(f"a{seed}", value)
    space.delete("a1")
    space.put("a1", wanted[1])
    for seed, value in enumerate(wanted):
        assert np.array_equal(space[f"a{seed}"].numpy(), value)
    assert shelf.problems(space) == shelf.SOUND


@pytest.mark.parametrize("kind", ["transposed", "strided", "reversed", "broadcast", "list", "scalar", "fortran"])
def test_input_that_is_not_contiguous_is_copied_in_order(space: Space, kind: str) -> None:
    base = np.arange(24).reshape(4, 6)
    value: Any = {
        "transposed": base.T,
        "strided": base[::2, ::3],
        "reversed": base[::-1, ::-1],
        "broadcast": np.broadcast_to(base[0], (5, 6)),
        "list": base.tolist(),
        "scalar": 17,
        "fortran": np.asfortranarray(base),
    }[kind]
    assert np.array_equal(space.put("a", value).numpy(), np.asarray(value))


def test_torch_tensors_that_are_not_contiguous_are_copied_in_order(space: Space) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(24).reshape(4, 6).t()
    assert torch.equal(space.put("a", tensor).torch(), tensor)


def test_put_replaces_unless_told_not_to(space: Space) -> None:
    space.put("a", np.zeros(3))
    space.put("a", np.ones(5))
    assert space["a"].numpy().tolist() == [1] * 5
    with pytest.raises(NameTaken):
        space.put("a", np.full(7, 2), replace=False)
    assert space["a"].numpy().tolist() == [1] * 5
    assert shelf.problems(space) == shelf.SOUND


def test_new_is_found_only_when_its_block_ends(space: Space, peer: Peer) -> None:
    peer.call(shelf.open_space)
    with space.new("a", 3, "int32") as draft:
        assert "a" not in space
        assert peer.call(shelf.names) == []
        assert not draft.published
        assert "draft" in repr(draft)
        draft.numpy()[:] = (1, 2, 3)
    assert peer.call(shelf.read, "a").tolist() == [1, 2, 3]


def test_block_that_raises_publishes_nothing_and_leaks_nothing(space: Space) -> None:
    before = shelf.free_bytes(space)
    with pytest.raises(RuntimeError, match="on purpose"):
        _fail_half_way(space)
    assert "a" not in space
    assert shelf.problems(space) == shelf.SOUND
    assert shelf.free_bytes(space) == before


def _fail_half_way(space: Space) -> None:
    with space.new("a", 1 << 20) as draft:
        draft.numpy()[:] = 1
        raise RuntimeError("on purpose")


def test_draft_whose_name_was_taken_meanwhile_is_refused(space: Space) -> None:
    draft = space.new("a", 3)
    space.put("a", np.ones(3))
    with pytest.raises(NameTaken):
        draft.publish()
    draft.publish(replace=True)
    assert space["a"].numpy().tolist() == [0, 0, 0]
    with pytest.raises(BadInput, match="published already"):
        draft.publish()


def test_full_and_zeros_hold_what_they_say(space: Space) -> None:
    assert (space.full("a", (10, 10), 7, "int16").numpy() == 7).all()
    assert space.full("b", 3, 2.5).dtype == "float64"
    assert space.full(None, 4, 1.5, "bfloat16").torch().tolist() == [1.5] * 4
    assert not space.zeros("c", 1000).numpy().any()


@pytest.mark.parametrize("nbytes", [64, 8192, 100_000, 5 << 20])
def test_recycled_memory_is_zero(space: Space, nbytes: int) -> None:
    for _ in range(5):
        for number in range(8):
            space.full(f"dirty{number}", nbytes, 255, "uint8")
        for number in range(8):
            space.delete(f"dirty{number}")
        with space.new("new", nbytes, "uint8") as draft:
            assert not draft.numpy().any()
        assert not space.zeros("zeros", nbytes, "uint8").numpy().any()
        assert not space.new(None, nbytes, "uint8").numpy().any()
        space.delete("new")
        space.delete("zeros")


def test_rename_moves_the_name_and_nothing_else(space: Space, peer: Peer) -> None:
    array = space.put("a", np.arange(5))
    peer.call(shelf.open_space)
    for number, name in enumerate(["b", "c/d", "e" * 1024, "f"]):
        space.rename(array.name or "", name)
        assert array.name == name
        assert peer.call(shelf.names) == [name]
        assert peer.call(shelf.address_of, name) == array.address, number
    assert shelf.problems(space) == shelf.SOUND


def test_rename_to_itself_changes_nothing_and_to_a_taken_name_is_refused(space: Space) -> None:
    space.put("a", np.zeros(2))
    space.put("b", np.ones(2))
    space.rename("a", "a")
    with pytest.raises(NameTaken, match="'b' exists already"):
        space.rename("a", "b")
    assert (space["a"].numpy().sum(), space["b"].numpy().sum()) == (0, 2)


def test_folder_sees_only_its_own_names(space: Space) -> None:
    layers = space.folder("model/layers")
    layers.put("0", np.zeros(2))
    layers.put("1", np.zeros(4))
    space.put("model/head", np.zeros(8))
    space.put("modelling", np.zeros(1))
    assert list(layers) == ["0", "1"]
    assert len(layers) == 2
    assert space.folder("model").folders() == ["layers"]
    assert space.folders() == ["model"]
    assert "0" in layers
    assert "head" not in layers
    assert layers["1"].name == "model/layers/1"
    layers.rename("1", "2")
    layers.delete("0")
    assert list(space) == ["model/head", "model/layers/2", "modelling"]
    assert space.folder("model").folder("layers").get("2") is not None
    with pytest.raises(UnknownName):
        layers.delete("head")


def test_listing_has_sizes_types_and_addresses(space: Space) -> None:
    wanted = {f"a{size:03}": size for size in range(200)}
    for name, size in wanted.items():
        space.zeros(name, size, "int16")
    entries = space.list()
    assert {entry.name: entry.nbytes for entry in entries} == {name: 2 * size for name, size in wanted.items()}
    assert [entry.name for entry in entries] == sorted(wanted)
    one = space.list("a17")[3]
    assert (one.name, one.shape, one.dtype, one.kind) == ("a173", (173,), "int16", "array")
    assert one.address == space["a173"].address


def test_names_are_any_text(space: Space) -> None:
    names = ["ключ", "名前", "a b", "a\tb", "🗄", "x" * 1024, "a/../b", "%s", "'\""]
    for number, name in enumerate(names):
        space.put(name, np.array([number]))
    assert sorted(names) == sorted(space)
    assert [int(space[name].numpy()[0]) for name in names] == list(range(len(names)))


def test_thousands_of_names_are_all_found(space: Space) -> None:
    for number in range(20_000):
        space.put(f"name/{number}", np.array([number]))
    assert len(space) == 20_000
    for number in range(0, 20_000, 7):
        assert space[f"name/{number}"].numpy()[0] == number
    for number in range(0, 20_000, 2):
        space.delete(f"name/{number}")
    assert len(space) == 10_000
    assert shelf.problems(space) == shelf.SOUND


def test_anonymous_array_lives_as_long_as_somebody_holds_it(space: Space, peer: Peer) -> None:
    before = shelf.free_bytes(space)
    array = space.put(None, shelf.pattern(1, 1 << 20))
    assert array.name is None
    assert len(space) == 0
    address = array.address
    peer.call(shelf.open_space)
    peer.call(_hold_at, address, 1 << 20)
    del array
    space.put("filler", np.ones(1 << 20, np.uint8))
    assert np.array_equal(peer.call(shelf.held, "at"), shelf.pattern(1, 1 << 20))
    peer.call(shelf.drop, "at")
    peer.call(shelf.check)
    space.delete("filler")
    assert shelf.problems(space) == shelf.SOUND
    assert shelf.free_bytes(space) == before


def _hold_at(state: State, address: int, nbytes: int) -> None:
    state.setdefault("views", {})["at"] = state["space"].at(address, nbytes, "uint8").numpy()


def test_at_reads_a_part_of_an_array_with_a_type_of_the_callers(space: Space) -> None:
    array = space.put("a", np.arange(100, dtype=np.int32))
    assert space.at(array.address + 40, (2, 5), "int32").numpy().tolist() == np.arange(10, 20).reshape(2, 5).tolist()
    assert space.at(array.address, 50, "int64").numpy()[0] == 1 << 32
    assert space.at(array.address + 4, (), "int32").numpy() == 1


def test_where_tells_what_an_address_means(space: Space) -> None:
    array = space.put("a", np.arange(100))
    data = int(space.describe()["data_address"])
    found = space.where(array.address + 8)
    assert (found.segment, found.offset, found.tier, found.array) == (
        0,
        array.address + 8 - data,
        "dram",
        "a",
    )
    assert found.owner
    space.delete("a")
    del array
    space.describe()
    assert space.where(found.offset + data).array is None


def test_parts_of_arrays_have_their_own_addresses(space: Space) -> None:
    array = space.put("a", np.arange(24, dtype=np.int16).reshape(4, 6))
    row = array[2]
    assert row.address == array.address + 24
    assert row.numpy().tolist() == list(range(12, 18))
    assert array[-1].numpy().tolist() == list(range(18, 24))
    rows = array[1:3]
    assert (rows.shape, rows.nbytes, rows.dtype) == ((2, 6), 24, "int16")
    assert rows[1][2:4].numpy().tolist() == [14, 15]
    assert array[3:1].shape == (0, 6)
    rows.numpy()[:] = 0
    assert array.numpy()[1:3].sum() == 0
    with pytest.raises(OutOfRange, match="row 4 is out of range for an array of 4 rows"):
        array[4]


def test_numpy_reinterprets_as_another_type(space: Space) -> None:
    array = space.put("a", np.array([1.0, 2.0], np.float32))
    assert array.numpy("uint32").tolist() == [0x3F800000, 0x40000000]
    assert array.numpy("uint8").shape == (8,)
    assert array[1:].numpy("uint32").tolist() == [0x40000000]


def test_get_returns_the_default_for_an_unknown_name(space: Space) -> None:
    array = space.put("a", np.zeros(1))
    assert space.get("b") is None
    assert space.get("b", array) is array
    assert space.get("a") is not None


def test_space_can_be_filled_emptied_and_filled_again(home: Path) -> None:
    with Space.create("shelf", "16MiB") as space:
        for _ in range(3):
            for number in range(16):
                space.full(f"a{number}", 1 << 20, number, "uint8")
            assert shelf.free_bytes(space) == 0
            for number in range(16):
                assert (space[f"a{number}"].numpy() == number).all()
                space.delete(f"a{number}")
            assert shelf.free_bytes(space) == 16 << 20
