"""Weights of this process in a packed file: every byte, once, in order, under a name only when it is whole."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openshelf import _core
from openshelf.errors import BadInput, Corrupt, FlashFailed, Mismatch, NoRoom, UnknownName, WrongVersion
from openshelf.offload.move.homes import Homes
from openshelf.offload.move.shared import Shared
from openshelf.offload.weights import format as form
from openshelf.offload.weights import pack
from openshelf.offload.weights.files import Scratch
from openshelf.offload.weights.pack import pack_state
from openshelf.offload.weights.packed import Packed
from tests.conftest import needs_root
from tests.offload.weights.packing import content, read_through, weights


def test_every_byte_is_there_at_the_place_that_the_table_says(tmp_path: Path) -> None:
    state = weights()
    packed = pack_state(state, folder=tmp_path, name="w.packed")
    assert content(packed) == {name: value.tobytes() for name, value in state.items()}
    assert all(read_through(packed, name) == value.tobytes() for name, value in state.items())
    assert all(one.at % 4096 == 0 for one in packed.storages)
    assert stat.S_IMODE((tmp_path / "w.packed").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["w.packed"]


def test_storages_lie_in_the_order_of_their_use(tmp_path: Path) -> None:
    packed = pack_state(weights(), ["layer.2.weight", "layer.0.weight"], folder=tmp_path, name="w")
    assert [one.name for one in packed.storages] == [f"layer.{at}.weight" for at in (2, 0, 1, 3)]
    assert [one.at for one in packed.storages] == sorted(one.at for one in packed.storages)
    with pytest.raises(UnknownName, match=r"no weights 'layer\.9'"):
        pack_state(weights(), ["layer.9"], folder=tmp_path)
    with pytest.raises(UnknownName, match=r"has no tensor 'layer\.9'"):
        packed.storage_of("layer.9")


def test_what_shares_memory_is_stored_once(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    table = torch.arange(6000, dtype=torch.float32).view(60, 100)
    state = {"embed": table, "head": table, "rows": table[10:20], "turned": table.t(), "norm": torch.ones(7).bfloat16()}
    packed = pack_state(state, folder=tmp_path, name="w")
    assert [one.nbytes for one in packed.storages] == [24_000, 14]
    for name, value in state.items():
        entry = packed.tensors[name]
        storage = torch.frombuffer(bytearray(read_through(packed, name)), dtype=getattr(torch, entry.dtype))
        found = torch.as_strided(storage, entry.shape, entry.stride, entry.offset // value.element_size())
        assert torch.equal(found, value)
        assert found.stride() == value.stride()
    with pytest.raises(Mismatch, match=r"'w' is on meta"):
        pack_state({"w": torch.empty(3, device="meta")}, folder=tmp_path)


def test_the_same_state_finds_its_file_again_and_another_one_replaces_it(tmp_path: Path) -> None:
    first = pack_state(weights(1), folder=tmp_path, name="w")
    inode = (tmp_path / "w").stat().st_ino
    assert pack_state(weights(1), folder=tmp_path, name="w").generation == 1
    assert (tmp_path / "w").stat().st_ino == inode
    changed = weights(1)
    changed["layer.2.weight"][77] += 1
    second = pack_state(changed, folder=tmp_path, name="w")
    assert (second.generation, second.key == first.key) == (2, False)
    assert content(second)["layer.2.weight"] == changed["layer.2.weight"].tobytes()
    assert read_through(first, "layer.2.weight") == weights(1)["layer.2.weight"].tobytes()  # who has it keeps it
    assert pack_state(changed, ["layer.3.weight"], folder=tmp_path, name="w").generation == 3  # another order


def test_a_file_without_a_name_leaves_nothing(tmp_path: Path) -> None:
    packed = pack_state(weights(), folder=tmp_path)
    assert not list(tmp_path.iterdir())
    assert read_through(packed, "layer.3.weight") == weights()["layer.3.weight"].tobytes()
    assert not packed.named
    with pytest.raises(BadInput, match="has no name"):
        Shared(packed)


def test_a_file_system_without_nameless_files_is_used_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: Any, flags: int, *more: Any, **also: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return opened(path, flags, *more, **also)

    monkeypatch.setattr(os, "open", refuse)
    packed = pack_state(weights(), folder=tmp_path, name="w")
    assert [path.name for path in tmp_path.iterdir()] == ["w"]
    pack_state(weights(2), folder=tmp_path)
    homes = Homes(tmp_path)
    homes.room(0, "moments", 5000)
    assert [path.name for path in tmp_path.iterdir()] == ["w"]
    assert content(packed) == {name: value.tobytes() for name, value in weights().items()}


def test_an_altered_byte_is_refused_by_name(tmp_path: Path) -> None:
    packed = pack_state(weights(), folder=tmp_path, name="w")
    there = packed.storage_of("layer.3.weight")
    with open(packed.path, "r+b") as file:
        file.seek(there.at + 4097)
        byte = file.read(1)
        file.seek(there.at + 4097)
        file.write(bytes([byte[0] ^ 8]))
        os.fsync(file.fileno())
    again = Packed.open(packed.path)
    with pytest.raises(Corrupt, match=rf"'layer\.3\.weight'.*{packed.path}"):
        read_through(again, "layer.3.weight")
    assert read_through(again, "layer.2.weight") == weights()["layer.2.weight"].tobytes()
    homes = Homes(tmp_path, dram=2 << 20)
    homes.packed(0, again, "layer.3.weight", "dram")
    with pytest.raises(Corrupt, match=r"'layer\.3\.weight'"):
        homes.load()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_altered_byte_of_the_head_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("head")
    packed = pack_state(weights(), folder=folder, name="w")
    raw = bytearray(Path(packed.path).read_bytes())
    text_end = 4096 + form.decode_head(bytes(raw), "").table_bytes
    at = data.draw(st.one_of(st.integers(0, 111), st.integers(4096, text_end - 1)))
    raw[at] ^= data.draw(st.integers(1, 255))
    Path(packed.path).write_bytes(raw)
    with pytest.raises((Corrupt, WrongVersion), match="w"):
        Packed.open(packed.path)
    if at < 8:  # not a packed file any more
        with pytest.raises(Corrupt, match="not a packed file"):
            pack_state(weights(), folder=folder, name="w")
    else:
        again = pack_state(weights(), folder=folder, name="w")
        assert content(again) == {name: value.tobytes() for name, value in weights().items()}


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    packed = pack_state(weights(), folder=tmp_path, name="w")
    for left in (0, 100, 5000, packed.nbytes - 4096):
        os.truncate(packed.path, left)
        with pytest.raises(Corrupt, match="w"):
            Packed.open(packed.path)


def test_a_file_that_was_cut_is_saved_over_and_one_of_another_kind_is_not(tmp_path: Path) -> None:
    packed = pack_state(weights(), folder=tmp_path, name="w")
    os.truncate(packed.path, 5000)
    assert content(pack_state(weights(), folder=tmp_path, name="w")) == {
        name: value.tobytes() for name, value in weights().items()
    }
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(Corrupt, match="not a packed file"):
        pack_state(weights(), folder=tmp_path, name="notes")
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FlashFailed, match=r"making the folder .*file/below failed.*OPENSHELF_CACHE"):
        pack_state(weights(), folder=tmp_path / "file" / "below", name="w")
    with pytest.raises(FlashFailed, match="making the folder"):
        Scratch(tmp_path / "file")


def test_one_that_fails_in_the_middle_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack_state(weights(1), folder=tmp_path, name="w")

    def broken(address: int, keep: Any) -> Any:
        def fill(view: memoryview, at: int) -> None:
            raise KeyboardInterrupt

        return fill

    monkeypatch.setattr(pack, "_from_memory", broken)
    with pytest.raises(KeyboardInterrupt):
        pack_state(weights(2), folder=tmp_path, name="w")
    assert [path.name for path in tmp_path.iterdir()] == ["w"]
    assert content(Packed.open(tmp_path / "w"))["layer.1.weight"] == weights(1)["layer.1.weight"].tobytes()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip(f"mount: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@needs_root
def test_a_full_disk_says_how_much_is_needed_and_leaves_nothing(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = weights(sizes=(2_000_000,))
    with pytest.raises(NoRoom, match=r"packed file of 1 tensors needs 7\.\d+ MiB on flash, and .* has 4 MiB free"):
        pack_state(state, folder=small_disk, name="w")
    monkeypatch.setattr("openshelf.offload.weights.writer.need_room", lambda *_: None)  # filled up after it was asked
    with pytest.raises(NoRoom, match=f"no room for 8.* bytes in {small_disk}/w"):
        pack_state(state, folder=small_disk, name="w")
    assert not list(small_disk.iterdir())
    homes = Homes(small_disk)
    homes.room(0, "a", 3 << 20)
    with pytest.raises(NoRoom, match="'b' needs 3 MiB on flash"):
        homes.room(1, "b", 3 << 20)
    assert not list(small_disk.iterdir())


@settings(max_examples=10, deadline=None)
@given(size=st.integers(0, (1 << 20) + 9000), seed=st.integers(0, 99))
def test_the_checksum_is_what_the_format_says(size: int, seed: int) -> None:
    data = np.random.default_rng(seed).integers(0, 255, size, np.uint8)
    padded = np.zeros(-(-size // 4096) * 4096, np.uint8)
    padded[:size] = data
    expected = 0
    for piece, at in enumerate(range(0, len(padded), 1 << 20)):
        words = padded[at : at + (1 << 20)].view("<u8").reshape(-1, 8)
        sums = np.full(8, piece, np.uint64)
        keys = np.arange(1, 9, dtype=np.uint64) * np.uint64(0xD6E8FEB86659FD93)
        for number, row in enumerate(words, start=1):
            mixed = row ^ keys
            sums += row.reshape(-1, 2)[:, ::-1].ravel() + (mixed & np.uint64(0xFFFFFFFF)) * (mixed >> np.uint64(32))
            keys += np.uint64(0x9FB21C651E98DF25)
            if number % 16 == 0 or number == len(words):
                sums = (sums ^ (sums >> np.uint64(47)) ^ keys) * np.uint64(0x9E3779B1)
        expected += hash_bytes(sums.tobytes(), piece)
    assert _core.check_padded(data.ctypes.data, size) == expected % (1 << 64)


def hash_bytes(data: bytes, seed: int) -> int:
    """As native/base/base.cpp, of 64 bytes: four chains, then one."""

    def mix(state: int, word: int) -> int:
        state = (state ^ word) * 0x9FB21C651E98DF25 % (1 << 64)
        return state ^ state >> 32

    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, 64, 8)]
    state = seed ^ 64 * 0x9E3779B97F4A7C15 % (1 << 64)
    lanes = [mix(mix(state ^ lane, words[lane]), words[lane + 4]) for lane in range(4)]
    for lane in lanes:
        state = mix(state, lane)
    state = mix(state, 0x2545F4914F6CDD1D)
    return mix(state, state >> 29)
