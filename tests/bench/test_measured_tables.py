"""Benchmarks of measured collectives take machines, rank counts and libraries that nobody has seen before."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIZES = [1 << n for n in range(12, 30, 4)]
STEPS = {"all_reduce": 2, "all_gather": 1, "alltoall": 1, "broadcast": 1, "reduce": 1}


def rows(machine: str, library: str, op: str, ranks: int, sizes: list[int] = SIZES) -> list[str]:
    def us(nbytes: int) -> float:
        return 9 + STEPS[op] * (ranks - 1) * (1 + nbytes / ranks / 200e3)

    return [f"{machine},{library},{op},{ranks},{nbytes},{us(nbytes):.3f},1" for nbytes in sizes]


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables in the shared formats: machines known by their makers' figures and not, odd counts, too few rows."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    made = ["system,nccl,op,gpus,bytes,us,samples"]
    for ranks in (3, 6):
        made += rows("zx900", "3.1", "all_reduce", ranks) + rows("zx900", "3.1", "alltoall", ranks)
    made += rows("b300_sxm", "3.1", "all_gather", 2) + rows("b300_sxm", "3.1", "all_gather", 5)
    made += rows("h20", "3.0", "broadcast", 16) + rows("h20", "3.0", "reduce", 2) + rows("h20", "3.0", "all_gather", 16)
    made += rows("l4", "3.0", "all_reduce", 8) + rows("l4", "3.0", "all_reduce", 2, SIZES[:1])
    many = ["source,what,op,gpus,nvlink_domain,bytes,us,busbw_GBps,in_place_us"]
    many += [
        'x,"B300, 3 nodes",all_gather,15,5,1073741824,9000,1,',
        'x,"B300, 3 nodes",all_reduce,15,5,1073741824,9,1,',
    ]
    many += ['x,"unheard of",all_reduce,15,5,1073741824,9000,1,']
    (tmp_path / "network").mkdir()
    (tmp_path / "network" / "nccl_one_node.csv").write_text("\n".join(made) + "\n", encoding="utf-8")
    (tmp_path / "network" / "nccl_tests_scale.csv").write_text("\n".join(many) + "\n", encoding="utf-8")
    return tmp_path


def printed(name: str, tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", [name, "--data", str(tables)])
    __import__(name).main()
    return capsys.readouterr().out


def test_every_row_is_predicted_or_said_to_be_left_out(
    tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed("twin_nccl", tables, monkeypatch, capsys)
    assert "left out: reduce, of which the law says nothing" in text
    assert "left out: h20 nccl 3.0, of which there are no rows of up to 4 ranks" in text
    assert "left out: l4 all_reduce of 8" in text  # from one row
    assert "no public figures of zx900" in text
    few, rest = text.split("\neach rank count left out:\n")
    out, unseen = rest.split("\neach machine left out:\n")
    for series in ("zx900 all_reduce of 6", "zx900 all_to_all of 6", "b300_sxm all_gather of 5"):
        assert few.count(f"predicted {series}") == len(SIZES)
    for series in ("zx900 all_reduce of 3", "zx900 all_to_all of 6", "b300_sxm all_gather of 2"):
        assert out.count(f"predicted {series}") == len(SIZES)
    for series in ("b300_sxm all_gather of 2", "h20 broadcast of 16", "l4 all_reduce of 8"):
        assert f"predicted {series}" in unseen or f"left out: {series}" in few


def test_many_ranks_are_predicted_or_said_to_be_left_out(
    tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed("twin_collectives", tables, monkeypatch, capsys)
    assert "predicted B300, 3 nodes all_gather of 15" in text
    assert "left out: B300, 3 nodes all_reduce of 15" in text
    assert "left out: unheard of all_reduce of 15" in text
