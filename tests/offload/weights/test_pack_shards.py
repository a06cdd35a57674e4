"""Safetensors shards in a packed file: the same bytes, streamed, and made anew when a shard has changed."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf.errors import BadInput, Corrupt, FlashFailed, Mismatch, UnknownName
from openshelf.offload.weights import safetensors
from openshelf.offload.weights.shards import pack_shards
from tests.offload.weights.packing import content, read_through, weights
from tests.processes import Peer, State

save_file: Any = pytest.importorskip("safetensors.numpy").save_file


def checkpoint(folder: Path, shards: int = 3) -> dict[str, Any]:
    """An index and its shards."""
    state = weights(5, sizes=(1, 700, 40_000, 2_500_000, 9))
    state["flags"] = np.array([[True, False], [False, True]])
    state["scalar"] = np.array(3.5)
    state["empty"] = np.zeros((0, 4), np.float16)
    where = {name: f"model-{at % shards}.safetensors" for at, name in enumerate(state)}
    for file in set(where.values()):
        save_file({name: value for name, value in state.items() if where[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return state


def test_all_tensors_of_all_shards_are_there(tmp_path: Path) -> None:
    state = checkpoint(tmp_path)
    for source in (tmp_path, tmp_path / "model.safetensors.index.json"):
        packed = pack_shards(source, ["scalar"], folder=tmp_path / "cache")
        assert content(packed) == {name: value.tobytes() for name, value in state.items()}
        for name, value in state.items():
            entry = packed.tensors[name]
            assert (entry.dtype, entry.shape) == (value.dtype.name, value.shape)
        assert packed.storages[0].name == "scalar"
        assert read_through(packed, "layer.3.weight") == state["layer.3.weight"].tobytes()
    assert packed.generation == 1
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    save_file(state := weights(), tmp_path / "model.safetensors")
    packed = pack_shards(tmp_path, tied={"head": "layer.2.weight"}, folder=tmp_path / "cache")
    assert packed.storage_of("head") == packed.storage_of("layer.2.weight")
    assert len(packed.storages) == len(state)
    assert read_through(packed, "head") == state["layer.2.weight"].tobytes()
    with pytest.raises(UnknownName, match="tied to 'nobody'"):
        pack_shards(tmp_path, tied={"head": "nobody"}, folder=tmp_path / "cache")


def test_a_changed_shard_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(weights(1), file)
    pack_shards(file, folder=tmp_path / "cache")
    save_file(weights(2), file)
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 10**9))
    packed = pack_shards(file, folder=tmp_path / "cache")
    assert packed.generation == 2
    assert content(packed) == {name: value.tobytes() for name, value in weights(2).items()}
    assert len(list((tmp_path / "cache").iterdir())) == 1


def pack(state: State, source: str, folder: str) -> int:
    packed = pack_shards(source, folder=folder)
    return packed.generation


def test_two_that_pack_at_once_make_one_file(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    with Peer() as one, Peer() as two:
        one.start(pack, str(tmp_path), str(tmp_path / "cache"))
        two.start(pack, str(tmp_path), str(tmp_path / "cache"))
        assert (one.finish(), two.finish()) == (1, 1)
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("text", ["{}", '{"weight_map": 3}', '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}'])
def test_an_index_without_its_map_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(Corrupt, match="weight_map"):
        pack_shards(tmp_path, folder=tmp_path)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"neither model\.safetensors nor"):
        pack_shards(tmp_path, folder=tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "gone.safetensors"}}))
    with pytest.raises(BadInput, match=r"names 1 files, and 1 of them are not beside it: gone\.safetensors"):
        pack_shards(index, folder=tmp_path)


def test_tensors_of_other_types_are_refused_before_they_are_packed(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "model.safetensors")
    forms = {"layer.0.weight": ("float32", (3,)), "layer.1.weight": ("bfloat16", (1024,))}
    with pytest.raises(Mismatch, match=r"'layer\.1\.weight' as float32 \(1024,\), .* bfloat16 .* 1 of 2 tensors"):
        pack_shards(tmp_path, ["layer.0.weight"], folder=tmp_path / "cache", forms=forms)
    forms["layer.1.weight"] = ("float32", (1024,))
    state = {**weights(), "layer.1.weight": np.zeros(1024, np.int8)}
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(Mismatch, match="quantised checkpoint has to be saved dequantised"):
        pack_shards(tmp_path, ["layer.0.weight"], folder=tmp_path / "cache", forms=forms)
    assert not (tmp_path / "cache").exists()


def test_a_shard_that_is_cut_or_goes_is_named(tmp_path: Path) -> None:
    state = checkpoint(tmp_path)
    shard = tmp_path / "model-0.safetensors"
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 8)
    with pytest.raises(Corrupt, match=r"model-0\.safetensors: .* the file was cut or altered"):
        pack_shards(tmp_path, list(state), folder=tmp_path / "cache")
    tensor = safetensors.ShardTensor(tmp_path / "gone.safetensors", 8, 4, "float32", (1,))
    with pytest.raises(FlashFailed, match=r"reading 'w' of .*gone\.safetensors failed"):
        safetensors.from_shard("w", tensor)(memoryview(bytearray(4)), 0)


def test_what_is_lacking_is_counted_and_near_names_are_told(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "model.safetensors")
    with pytest.raises(UnknownName) as error:
        pack_shards(tmp_path, ["layer.0.weight", "layer.1.wieght", "layer.9.bias"], folder=tmp_path / "cache")
    assert "it lacks 2 of the 3 tensors that are needed, 'layer.1.wieght', 'layer.9.bias'" in str(error.value)
    assert "it has 4, the nearest to the first are 'layer.1.weight'" in str(error.value)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "no safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "pointer of git-lfs"),
        (struct.pack("<Q", 10**9) + b"{}", "no safetensors file"),
        (struct.pack("<Q", 3) + b"{,}", "JSON"),
        (struct.pack("<Q", 2) + b"[]", "expected a JSON object"),
        ("w", "not understood"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}, "cut or altered"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, "cut or altered"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}, "not understood"),
        ({"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}, "not understood"),
    ],
)
def test_a_damaged_shard_is_refused(tmp_path: Path, raw: Any, said: str) -> None:
    if not isinstance(raw, bytes):
        header = json.dumps({"w": raw}).encode()
        raw = struct.pack("<Q", len(header)) + header + bytes(8)
    (tmp_path / "m.safetensors").write_bytes(raw)
    with pytest.raises(Corrupt, match=said):
        safetensors.shard_tensors(tmp_path / "m.safetensors")


def test_a_checkpoint_larger_than_memory_is_packed(tmp_path: Path) -> None:
    save_file({f"w{at}": np.full(4 << 20, at, np.float32) for at in range(6)}, tmp_path / "model.safetensors")
    code = f"""
import resource
import openshelf.offload.weights.shards as shards
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
shards.pack_shards({str(tmp_path)!r}, folder={str(tmp_path / "cache")!r})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 48 << 10  # of 96 MiB
