"""Files of weights that somebody prepared: refused with a reason that names the file, and nothing else happens."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from openshelf._core import SECTOR
from openshelf.errors import BadInput, Corrupt
from openshelf.offload.weights import format as form
from openshelf.offload.weights.packed import Packed
from openshelf.offload.weights.safetensors import shard_files, shard_tensors

GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def written(path: Path, header: str | bytes, data: bytes = bytes(8)) -> Path:
    text = header.encode() if isinstance(header, str) else header
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(**changes: Any) -> str:
    return json.dumps({"w": {**GOOD, **changes}})


HEADERS: dict[str, str | bytes] = {
    "lists in lists": "[" * 200_000 + "]" * 200_000,
    "objects in objects": '{"a":' * 200_000 + "1" + "}" * 200_000,
    "an entry of lists": '{"w":' + "[" * 200_000 + "]" * 200_000 + "}",
    "Infinity": '{"w": {"dtype": "F32", "shape": [Infinity], "data_offsets": [0, 8]}}',
    "minus Infinity": '{"w": {"dtype": "F32", "shape": [2], "data_offsets": [-Infinity, 8]}}',
    "NaN": '{"w": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 8]}}',
    "a number of many digits": '{"w": {"dtype": "F32", "shape": [' + "9" * 5000 + '], "data_offsets": [0, 8]}}',
    "a name twice": f'{{"w": {json.dumps(GOOD)}, "w": {json.dumps(GOOD)}}}',
    "a key twice": '{"w": {"dtype": "F32", "dtype": "F16", "shape": [2], "data_offsets": [0, 8]}}',
    "negative lengths": entry(shape=[-2]),
    "two negative lengths": entry(shape=[-1, -2]),
    "a float as length": entry(shape=[2.0]),
    "a bool as length": entry(shape=[True, 2]),
    "a float as place": entry(data_offsets=[0.0, 8.0]),
    "a string as place": entry(data_offsets=["0", "8"]),
    "negative places": entry(data_offsets=[-8, 0]),
    "one place": entry(data_offsets=[8]),
    "three places": entry(data_offsets=[0, 4, 8]),
    "places the wrong way": entry(data_offsets=[8, 0]),
    "lengths that overflow": entry(shape=[1 << 62, 4]),
    "lengths beyond 63 bits": entry(shape=[1 << 64]),
    "a shape that is a number": entry(shape=2),
    "a shape that is a string": entry(shape="22"),
    "a dtype that is a list": entry(dtype=["F32"]),
    "an unknown dtype": entry(dtype="F\x1b[31m"),
    "no dtype": '{"w": {"shape": [2], "data_offsets": [0, 8]}}',
    "an entry that is null": '{"w": null}',
    "a list": "[]",
    "nothing": "",
    "no UTF-8": b'{"\xff\xfe": 1}',
    "UTF-16": json.dumps({"w": GOOD}).encode("utf-16"),
    "metadata of numbers": f'{{"__metadata__": {{"a": 1}}, "w": {json.dumps(GOOD)}}}',
    "metadata that is a list": f'{{"__metadata__": [], "w": {json.dumps(GOOD)}}}',
    "beyond the end": entry(shape=[4], data_offsets=[0, 16]),
    "an overlap": json.dumps({"a": GOOD, "b": {**GOOD, "shape": [1], "data_offsets": [4, 8]}}),
    "the same bytes twice": json.dumps({"a": GOOD, "b": GOOD}),
    "a hole": json.dumps({"a": {**GOOD, "shape": [1], "data_offsets": [4, 8]}}),
    "bytes of nobody": json.dumps({"a": {**GOOD, "shape": [1], "data_offsets": [0, 4]}}),
    "no tensors, but bytes": "{}",
}


@pytest.mark.parametrize("kind", HEADERS)
def test_header_that_was_prepared_is_refused_by_the_files_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(Corrupt, match=r"bad\.safetensors"):
        shard_tensors(written(tmp_path / "bad.safetensors", HEADERS[kind]))


@pytest.mark.parametrize("length", [0xFFFFFFFFFFFFFFFF, 1 << 63, 200_000_000, 3])
def test_header_that_is_said_to_be_longer_than_the_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(Corrupt, match=r"bad\.safetensors is no safetensors file"):
        shard_tensors(path)
    with path.open("r+b") as file:
        file.truncate(300_000_000)  # a hole: no disk is used
    if length == 200_000_000:
        with pytest.raises(Corrupt, match=r"bad\.safetensors is no safetensors file"):
            shard_tensors(path)


def test_files_as_the_library_writes_them_are_read(tmp_path: Path) -> None:
    empty = {"dtype": "F16", "shape": [0, 1 << 40], "data_offsets": [8, 8]}
    header: dict[str, Any] = {
        "__metadata__": {"format": "pt"},
        "w": GOOD,
        "empty": empty,
        "scalar": {**GOOD, "shape": []},
    }
    header["scalar"]["data_offsets"] = [8, 12]
    found = shard_tensors(written(tmp_path / "good.safetensors", json.dumps(header) + "   ", bytes(12)))
    assert [(name, one.nbytes, one.shape) for name, one in found.items()] == [
        ("w", 8, (2,)), ("empty", 0, (0, 1 << 40)), ("scalar", 4, ()),
    ]  # fmt: skip


INDEXES = {
    "a path upwards": {"weight_map": {"w": "../secret.safetensors"}},
    "a path within": {"weight_map": {"w": "sub/../../secret.safetensors"}},
    "an absolute path": {"weight_map": {"w": "/etc/passwd"}},
    "the folder": {"weight_map": {"w": "."}},
    "the folder above": {"weight_map": {"w": ".."}},
    "no name": {"weight_map": {"w": ""}},
    "a NUL": {"weight_map": {"w": "a\0b.safetensors"}},
}


@pytest.mark.parametrize("kind", INDEXES)
def test_index_that_leads_elsewhere_is_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    written(tmp_path / "secret.safetensors", json.dumps({"w": GOOD}))
    (folder / "model.safetensors.index.json").write_text(json.dumps(INDEXES[kind]))
    with pytest.raises(Corrupt, match=r"index\.json names the file .* in the folder of their index"):
        shard_files(folder)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"weight_map": {"w": "a", "w": "b"}}', '{"weight_map": Infinity}', "\0"]
)
def test_index_that_is_no_plain_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(Corrupt, match=r"index\.json: its JSON"):
        shard_files(tmp_path)


def test_index_that_names_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"w": "a.safetensors"}}')
    with pytest.raises(BadInput, match=r"not beside it: a\.safetensors"):
        shard_files(tmp_path)


def packed(path: Path, table: bytes, data: int = SECTOR, **head: int) -> Path:
    """A packed file with a right checksum, whatever its table says."""
    begins = head.get("begins", SECTOR + -(-len(table) // SECTOR) * SECTOR)
    said = head.get("table_bytes", len(table))
    fields = (form.MAGIC, form.VERSION, SECTOR, 1, said, begins, head.get("nbytes", begins + data), bytes(32))
    total = hashlib.sha256(form._HEAD.pack(*fields, bytes(32)) + table).digest()
    raw = form._HEAD.pack(*fields, total).ljust(SECTOR, b"\0") + table
    path.write_bytes(raw.ljust(max(begins, len(raw)) + data, b"\0"))
    path.chmod(0o600)
    return path


def table(storage: Any = ("w", 0, 8, "0" * 16), tensor: Any = (0, "float32", [2], [1], 0)) -> bytes:
    return json.dumps({"storages": [storage], "tensors": {"w": tensor}}).encode()


TABLES = {
    "no JSON": b"\xff",
    "lists in lists": b"[" * 200_000,
    "a list": b"[]",
    "nothing in it": b"{}",
    "tensors that are a list": b'{"storages": [], "tensors": []}',
    "Infinity": table().replace(b"8", b"Infinity"),
    "a storage that is a number": table(storage=3),
    "a storage before the data": table(("w", -4096, 8, "0" * 16)),
    "a storage beyond the end": table(("w", 1 << 40, 8, "0" * 16)),
    "a storage that is too long": table(("w", 0, 1 << 40, "0" * 16)),
    "a storage between sectors": table(("w", 8, 8, "0" * 16)),
    "a float": table(("w", 0.0, 8, "0" * 16)),
    "a checksum that is none": table(("w", 0, 8, "x" * 16)),
    "a tensor of no storage": table(tensor=(1, "float32", [2], [1], 0)),
    "a tensor of storage -1": table(tensor=(-1, "float32", [2], [1], 0)),
    "a tensor that is too long": table(tensor=(0, "float32", [3], [1], 0)),
    "strides that lead out": table(tensor=(0, "float32", [2], [2], 0)),
    "negative strides": table(tensor=(0, "float32", [2], [-1], 4)),
    "an offset that leads out": table(tensor=(0, "float32", [2], [1], 4)),
    "another count of strides": table(tensor=(0, "float32", [2], [1, 1], 0)),
    "a dtype that is none": table(tensor=(0, "Tensor", [2], [1], 0)),
    "a dtype with a path": table(tensor=(0, "float32.__class__", [2], [1], 0)),
}


@pytest.mark.parametrize("kind", TABLES)
def test_packed_file_that_was_prepared_is_refused_by_its_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(Corrupt, match=r"bad\.packed"):
        Packed.open(packed(tmp_path / "bad.packed", TABLES[kind]))


def test_packed_file_with_sizes_that_lie_is_refused(tmp_path: Path) -> None:
    assert Packed.open(packed(tmp_path / "good.packed", table())).tensors["w"].shape == (2,)
    lies: list[dict[str, int]] = [
        {"begins": 0}, {"begins": 1 << 62}, {"nbytes": 1 << 62}, {"nbytes": 0}, {"table_bytes": 1 << 62},
        {"table_bytes": 0},
    ]  # fmt: skip
    for number, lie in enumerate(lies):
        path = tmp_path / f"bad{number}.packed"
        packed(path, table())
        raw = bytearray(path.read_bytes())
        at = {"table_bytes": 24, "begins": 32, "nbytes": 40}
        for name, value in lie.items():
            raw[at[name] : at[name] + 8] = struct.pack("<Q", value)
        path.write_bytes(raw)
        with pytest.raises(Corrupt, match=rf"bad{number}\.packed"):
            Packed.open(path)
