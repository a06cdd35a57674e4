"""Import and export: what is written is read back, by others too; what is no such file is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from openshelf import Space, Table
from openshelf.errors import BadInput, Mismatch, UnknownName
from openshelf.tables import Adam, Uniform, describe, export_table, import_table, tables

ENDINGS = (".npy", ".safetensors", ".pt")


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_exported_rows_are_imported_again(space: Space, tmp_path: Path, ending: str, dtype: str) -> None:
    optimizer = None if dtype == "int8" else Adam(0.1)
    table = Table.create(space, "a", rows=70, dim=12, dtype=dtype, init=Uniform(-1, 1, 3), optimizer=optimizer)
    if optimizer:
        table.update([1, 2, 2], np.ones((3, 12)))
    path = tmp_path / f"rows{ending}"
    export_table(table, path)
    assert list(tmp_path.iterdir()) == [path]
    other = import_table(space, "b", path, optimizer=optimizer)
    assert np.array_equal(other.lookup(range(70)), table.lookup(range(70)))
    assert other.dtype == ("float32" if dtype == "int8" or (ending, dtype) == (".npy", "bfloat16") else dtype)
    if optimizer and ending != ".npy":
        assert np.array_equal(other.states(range(70)), table.states(range(70)))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_table_that_grows_is_exported(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    table = Table.create(space, "a", rows=7, dim=2, init=Uniform(-1, 1, 3), optimizer=Adam(0.1))

    def rows(self: Table) -> int:
        self.grow(1)
        return int(self.stat()["rows"]) - 1

    with monkeypatch.context() as patch:
        patch.setattr(Table, "rows", property(rows))
        export_table(table, tmp_path / f"rows{ending}")
    other = import_table(space, "b", tmp_path / f"rows{ending}", optimizer=Adam(0.1))
    assert np.array_equal(other.lookup(range(7)), table.lookup(range(7)))


def test_files_are_those_of_others(space: Space, tmp_path: Path) -> None:
    rows = torch.randn(20, 6)
    save_file({"emb.weight": rows.bfloat16(), "bias": torch.zeros(3)}, tmp_path / "theirs.safetensors")
    table = import_table(space, "a", tmp_path / "theirs.safetensors")
    assert (table.dtype, table.rows, table.dim) == ("bfloat16", 20, 6)
    export_table(table, tmp_path / "ours.safetensors", key="emb.weight")
    assert torch.equal(load_file(tmp_path / "ours.safetensors")["emb.weight"], rows.bfloat16())
    torch.save({"x": rows, "y": rows + 1}, tmp_path / "theirs.pt")
    assert np.array_equal(import_table(space, "b", tmp_path / "theirs.pt", key="y").lookup([3])[0], (rows + 1)[3])
    np.save(tmp_path / "double.npy", rows.double().numpy())
    assert np.array_equal(import_table(space, "c", tmp_path / "double.npy").lookup([3])[0], rows[3])
    np.save(tmp_path / "big.npy", rows.numpy().astype(">f4"))
    assert np.array_equal(import_table(space, "e", tmp_path / "big.npy").lookup([3])[0], rows[3])
    assert import_table(space, "d", tmp_path / "double.npy", dtype="int8").dtype == "int8"


@pytest.mark.parametrize("fails", [False, True])
def test_others_find_an_imported_table_when_it_is_whole(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    np.save(tmp_path / "rows.npy", np.ones((5, 2), np.float32))
    seen: list[Any] = []
    write = Table.write

    def watched(table: Table, *args: Any, **more: Any) -> None:
        seen.append((tables(space), space.get("a")))
        if fails:
            raise KeyboardInterrupt
        write(table, *args, **more)

    monkeypatch.setattr(Table, "write", watched)
    if fails:
        with pytest.raises(KeyboardInterrupt):
            import_table(space, "a", tmp_path / "rows.npy")
        assert space._native.list("") == []
    else:
        import_table(space, "a", tmp_path / "rows.npy")
        assert tables(space) == ["a"]
    assert seen == [([], None)]


@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
def test_states_of_bfloat16_are_floats(space: Space, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"states{ending}"
    found = {"w": torch.ones(3, 2), "w.state": torch.rand(3, 4).bfloat16()}
    (save_file if ending == ".safetensors" else torch.save)(found, path)
    table = import_table(space, "a", path, optimizer=Adam(0.1))
    assert np.array_equal(table.states(range(3)), found["w.state"].float())
    found["w.state"] = torch.zeros(3, 4, dtype=torch.uint8)
    (save_file if ending == ".safetensors" else torch.save)(found, path)
    with pytest.raises(Mismatch, match="uint8 of the shape"):
        import_table(space, "b", path, optimizer=Adam(0.1))


@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
def test_a_table_from_a_file_goes_on_with_the_number_of_its_steps(space: Space, tmp_path: Path, ending: str) -> None:
    table = Table.create(space, "a", rows=4, dim=2, optimizer=Adam(0.1))
    for _ in range(3):
        table.update([1, 2], np.ones((2, 2)))
    export_table(table, tmp_path / f"rows{ending}")
    again = import_table(space, "b", tmp_path / f"rows{ending}", optimizer=Adam(0.1))
    assert again.stat()["steps"] == 3
    for one in (table, again):
        one.update([1, 3], np.full((2, 2), 0.5))
    assert np.array_equal(again.lookup(range(4)), table.lookup(range(4)))


@pytest.mark.parametrize(
    ("steps", "error", "says"),
    [(torch.tensor([1.0]), Mismatch, "expected one int64"), (torch.tensor([-1]), BadInput, "steps of 'w' .* are -1")],
)
def test_a_number_of_steps_that_is_none_is_refused(
    space: Space, tmp_path: Path, steps: torch.Tensor, error: type[Exception], says: str
) -> None:
    torch.save({"w": torch.ones(3, 2), "w.state": torch.ones(3, 4), "w.steps": steps}, tmp_path / "rows.pt")
    with pytest.raises(error, match=says):
        import_table(space, "a", tmp_path / "rows.pt", optimizer=Adam(0.1))
    assert tables(space) == []


def write_header(path: Path, header: bytes) -> None:
    path.with_suffix(".safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def save(path: Path, *tensors: torch.Tensor, **options: Any) -> Path:
    torch.save({str(number): one for number, one in enumerate(tensors)}, path.with_suffix(".pt"), **options)
    return path.with_suffix(".pt")


@pytest.mark.filterwarnings("ignore:torch.quantize|TypedStorage:UserWarning")
def test_only_the_tensor_that_is_wanted_matters(space: Space, tmp_path: Path) -> None:
    rows = torch.randn(3, 2)
    others = (torch.ones(2, 2, device="meta"), rows.to(torch.float8_e4m3fn), rows.cfloat().conj())
    path = save(tmp_path / "mixed", rows, *others, torch.quantize_per_tensor(rows, 0.1, 0, torch.qint8))
    assert np.array_equal(import_table(space, "a", path, key="0").lookup(range(3)), rows)
    path = save(tmp_path / "old", rows, _use_new_zipfile_serialization=False)
    assert np.array_equal(import_table(space, "b", path).lookup(range(3)), rows)


@pytest.mark.parametrize("ending", ENDINGS)
def test_where_no_file_can_be_is_said(space: Space, tmp_path: Path, ending: str) -> None:
    table = Table.create(space, "a", rows=2, dim=2)
    with pytest.raises(BadInput, match="there is no directory"):
        export_table(table, tmp_path / "none" / f"rows{ending}")
    (tmp_path / f"rows{ending}").mkdir()
    with pytest.raises(BadInput, match="it is a directory"):
        export_table(table, tmp_path / f"rows{ending}")
    with pytest.raises(BadInput, match="too long"):
        export_table(table, tmp_path / f"{'x' * 250}{ending}")
    assert list(tmp_path.iterdir()) == [tmp_path / f"rows{ending}"]


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda p: p.with_suffix(".npy").write_bytes(b"no"), BadInput, "is no .npy file"),
        (lambda p: p.with_suffix(".npy").touch(), BadInput, "is no .npy file"),
        (lambda p: p.with_suffix(".npy").write_bytes(b"\x93NUMPY\1\0\2\0(("), BadInput, "is no .npy file"),
        (lambda p: np.savez(p.with_suffix(".npy").open("wb"), np.ones((3, 2))), BadInput, "is no .npy file"),
        (lambda p: write_header(p, b"[]"), BadInput, "is no .safetensors file .* header is a list"),
        (lambda p: write_header(p, b"null"), BadInput, "is no .safetensors file"),
        (lambda p: write_header(p, b"[" * 100_000), BadInput, "is no .safetensors file"),
        (lambda p: write_header(p, b'{"a": 3}'), BadInput, "is no .safetensors file"),
        (lambda p: p.with_suffix(".pt").touch(), BadInput, "is no .pt file"),
        (lambda p: torch.save([1], p.with_suffix(".pt")), BadInput, "holds a list"),
        (lambda p: save(p, torch.ones(2, 2, device="meta")), BadInput, "no numbers"),
        (lambda p: save(p, torch.ones(2, 2).to(torch.float8_e4m3fn)), Mismatch, "float8"),
        (lambda p: save(p, torch.ones(2, 2, dtype=torch.complex64).conj()), Mismatch, "complex64"),
        (lambda p: p.with_suffix(".safetensors").write_bytes(b"\xff" * 40), BadInput, "is no .safetensors file"),
        (lambda p: p.with_suffix(".pt").write_bytes(b"no"), BadInput, "is no .pt file"),
        (lambda p: p.with_suffix(".csv").write_bytes(b"1,2"), BadInput, "ends with .npy, .safetensors"),
        (lambda p: np.save(p.with_suffix(".npy"), np.ones(3)), UnknownName, "of two dimensions"),
        (lambda p: np.save(p.with_suffix(".npy"), np.ones((3, 2), int)), Mismatch, "int64 of the shape"),
        (lambda p: torch.save(dict.fromkeys("ab", torch.ones(2, 2)), p.with_suffix(".pt")), UnknownName, "'a', 'b'"),
    ],
)  # fmt: skip
def test_what_is_no_such_file_is_refused(
    space: Space, tmp_path: Path, make: Any, error: type[Exception], says: str
) -> None:
    make(tmp_path / "file")
    with pytest.raises(error, match=says):
        import_table(space, "t", next(tmp_path.iterdir()))
    assert tables(space) == []


def test_a_file_with_a_missing_end_is_refused(space: Space, tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    save_file({"w": torch.randn(20, 6)}, path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(BadInput, match="part of the file is missing"):
        import_table(space, "t", path)
    with pytest.raises(UnknownName, match="no file"):
        import_table(space, "t", tmp_path / "nowhere.npy")


def test_tables_are_listed_and_described(space: Space) -> None:
    Table.create(space, "b", rows=3, dim=2, dtype="int4")
    Table.create(space, "a", rows=5, dim=4, optimizer=Adam(0.5, (0.5, 0.25), 1e-3)).grow(2)
    assert tables(space) == ["a", "b"]
    facts = describe(space, "a")
    assert (facts["table"], facts["rows"], facts["dtype"], facts["parts"]) == ("a", 7, "float32", 2)
    assert facts["optimizer"]["kind"] == "adam"
    assert facts["optimizer"]["betas"] == [0.5, 0.25]
    with pytest.raises(UnknownName, match="there is: 'a', 'b'"):
        describe(space, "c")
