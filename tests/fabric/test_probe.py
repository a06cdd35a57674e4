"""The probe measures positive figures and says what it could not. No time is compared with a limit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from openshelf import _core
from openshelf.cli import main
from openshelf.errors import BadInput
from openshelf.fabric import QUICK, Fabric, probe

MIB = 1 << 20
TINY = replace(
    QUICK,
    name="tiny",
    buffer_bytes=4 * MIB,
    passes=2,
    loads=10_000,
    chases=1,
    duties=(0.0, 1.0),
    disk_bytes=4 * MIB,
    disk_passes=1,
    disk_reads=10,
    gemm_side=64,
    gemm_repetitions=2,
    round_trips=20,
    stream_bytes=4 * MIB,
)


@pytest.mark.serial
def test_the_command_writes_a_file_that_loads_and_prints_the_same_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "machine.yaml"
    assert main(["probe", "--quick", "--json", "--output", str(path), "--disk-dir", str(tmp_path)]) == 0
    fabric = Fabric.load(path)
    printed = json.loads(capsys.readouterr().out)
    assert printed == fabric.plain()
    jsonschema.validate(printed, Fabric.schema())
    dram = fabric.place("dram")
    assert 1e8 < dram.read_bandwidth_bytes_per_s.value < 1e13
    assert 1e-9 < dram.latency_s.value < 1e-3
    assert fabric.cost(MIB, "dram", "dram").source == "measured"
    assert [path.name for path in tmp_path.iterdir()] == ["machine.yaml"]  # no temporary file is left


@pytest.mark.serial
def test_a_probe_says_what_it_does_and_how_far_it_is(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    fabric = probe(disk_dir=tmp_path, effort=TINY, progress=lambda what, share: told.append((what, share)))
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert {link.name for link in fabric.links} >= {"loopback"}
    assert fabric.compute[0].gemm[0].rate_flop_per_s.value > 0
    assert all(
        figure.source == "measured" for figure in vars(fabric.place("dram")).values() if hasattr(figure, "source")
    )


@pytest.mark.serial
def test_a_folder_in_memory_is_no_disk_and_is_left_out() -> None:
    fabric = probe(disk_dir="/dev/shm", effort=TINY)
    assert [place.name for place in fabric.places] == ["dram"]
    assert any(text.startswith("disk: /dev/shm is on tmpfs") for text in fabric.left_out)


def test_a_disk_folder_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInput, match="not a folder"):
        probe(disk_dir=tmp_path / "nowhere")
    assert main(["probe", "--disk-dir", str(tmp_path / "nowhere")]) == 1
    assert "not a folder" in capsys.readouterr().err


def test_the_schema_is_printed_without_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == Fabric.schema()


def test_kernels_work_on_memory_of_the_caller_and_do_not_change_it() -> None:
    array = np.random.default_rng(1).integers(0, 2**63, 100_000, dtype=np.uint64)
    before, address, nbytes = array.copy(), array.ctypes.data, array.nbytes
    assert _core.stream_read(address, nbytes) == int(array.sum())
    for dependent in (False, True):
        assert _core.random_loads(address, nbytes, 1000, 7, dependent) > 0
    assert all(seconds > 0 for seconds in _core.time_reads(address, nbytes, 2, 3))
    assert (array == before).all()


def test_kernels_refuse_what_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match="address 0"):
        _core.stream_read(0, 64)
    with pytest.raises(ValueError, match="page_bytes"):
        _core.Pages(4096, 12345)
    with pytest.raises(ValueError, match="two lines"):
        _core.chain_lines(_core.Pages(64).address, 64)
