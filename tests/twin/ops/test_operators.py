"""Operator times: what was measured, what near shapes say, what is held, and the roofline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from openshelf.errors import BadInput, UnknownName
from openshelf.twin.ops import (
    KINDS,
    Operators,
    OpTable,
    accelerator,
    fit_law,
    kind_of,
    law_of,
    laws_of,
    read_tables,
    write_table,
)

SIZES = [128, 256, 512, 1024, 2048, 4096, 8192]


def gemms(system: str = "h100_sxm", share: float = 0.5) -> OpTable:
    """Products that take 5 us and twice as long as the accelerator's rates as sold would need."""
    kind, device = KINDS["gemm"], accelerator("h100_sxm")
    m, n, k = (np.array(x, float).ravel() for x in np.meshgrid([16, 128, 1024, 8192], SIZES, SIZES))
    sizes = {"m": m, "n": n, "k": k}
    parts = kind.parts(sizes, {"dtype": "bfloat16"}, device)
    seconds = 5e-6 + parts["compute"] / share + parts["memory"] / share
    count = len(m)
    return OpTable(kind, (system,) * count, ("1",) * count, {"dtype": ("bfloat16",) * count}, sizes, seconds)


def test_a_measured_shape_is_exact() -> None:
    table = gemms()
    found = Operators([table]).time("gemm", "h100_sxm", m=128, n=256, k=512)
    at = np.flatnonzero((table.sizes["m"] == 128) & (table.sizes["n"] == 256) & (table.sizes["k"] == 512))[0]
    assert (found.how, found.seconds, found.error) == ("exact", table.seconds[at], 0.0)


def test_a_near_shape_is_borrowed_from() -> None:
    table = gemms()
    kept = np.flatnonzero((table.sizes["n"] != 1024) | (table.sizes["k"] != 1024))
    left = np.flatnonzero((table.sizes["n"] == 1024) & (table.sizes["k"] == 1024))
    found = Operators([table.take(kept)]).times("gemm", "h100_sxm", m=table.sizes["m"][left], n=1024, k=1024)
    assert set(found.how) == {1}
    assert found.seconds == pytest.approx(table.seconds[left], rel=0.06)


def test_beyond_the_range_utilisation_is_held() -> None:
    operators = Operators([gemms()])
    edge = operators.time("gemm", "h100_sxm", m=8192, n=8192, k=8192)
    beyond = operators.time("gemm", "h100_sxm", m=65536, n=8192, k=8192)
    assert beyond.how == "held"
    assert beyond.seconds == pytest.approx(8 * edge.seconds, rel=0.05)
    assert beyond.error > edge.error


def test_without_a_table_it_is_the_roofline_with_its_error() -> None:
    found = Operators().time("gemm", "mi300x", m=4096, n=4096, k=4096)
    assert found.how == "roofline"
    assert found.error > 0
    assert found.seconds > 2 * 4096**3 / accelerator("mi300x").peak("bfloat16")


def test_accelerators_that_only_a_table_knows_are_answered() -> None:
    operators = Operators([gemms("tomorrow")])
    assert operators.time("gemm", "tomorrow", m=128, n=300, k=512).how == "borrowed"
    with pytest.raises(UnknownName, match="no accelerator 'tomorow'"):
        operators.time("gemm", "tomorow", m=128, n=300, k=512)


def test_what_is_asked_wrongly_is_said() -> None:
    with pytest.raises(UnknownName, match=r"no operator 'gem'.*gemm"):
        Operators().time("gem", "h100", m=1, n=1, k=1)
    with pytest.raises(BadInput, match="gemm has the sizes and words m, n, k, dtype; m, n came"):
        Operators().time("gemm", "h100", m=1, n=1)
    with pytest.raises(BadInput, match="above 0"):
        Operators().time("gemm", "h100", m=0, n=1, k=1)


def test_a_law_is_found_again() -> None:
    table = gemms(share=0.5)
    law = fit_law(table.kind, table.sizes, table.seconds, accelerator("h100_sxm"), {"dtype": "bfloat16"})
    assert law.slower == pytest.approx({"launch": 5, "compute": 2, "memory": 2}, rel=0.01)
    assert law.error < 1e-3


def test_tables_are_written_and_read_again(tmp_path: Path) -> None:
    table = gemms()
    write_table(table, tmp_path / "gemm.csv")
    (again,) = read_tables(tmp_path / "gemm.csv")
    assert again.kind.name == "gemm"
    assert again.seconds == pytest.approx(table.seconds)
    assert again.hashes() == table.hashes()


def test_columns_of_aiconfigurator_are_read_in_their_units(tmp_path: Path) -> None:
    moe = tmp_path / "moe_perf.txt"
    moe.write_text(
        "framework,version,device,op_name,kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,"
        "moe_tp_size,moe_ep_size,distribution,latency\nVLLM,1,h100_sxm,moe,x,fp8_block,16,7168,2048,8,256,1,8,balanced,0.5\n"
    )
    attention = tmp_path / "generation_attention_perf.txt"
    attention.write_text(
        "framework,version,device,op_name,kernel_source,batch_size,isl,num_heads,num_key_value_heads,head_dim,"
        "attn_dtype,kv_cache_dtype,step,latency\nVLLM,1,h100_sxm,x,x,4,1,32,8,128,bfloat16,bfloat16,1023,0.25\n"
    )
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    operators = Operators.open(tmp_path)
    found = operators.time("decode", "h100_sxm", heads=32, kv_heads=8, batch=4, context_tokens=1024)
    assert (found.how, found.seconds) == ("exact", 0.25e-3)
    shape = {"hidden": 7168, "inter": 2048, "topk": 8, "experts": 256, "tp": 1, "ep": 8, "tokens": 16}
    assert operators.time("moe", "h100_sxm", dtype="fp8_block", **shape).seconds == 0.5e-3


def test_two_files_of_one_kind_and_machine_are_both_read(tmp_path: Path) -> None:
    table = gemms()
    half = len(table) // 2
    write_table(table.take(range(half)), tmp_path / "a.csv")
    write_table(table.take(range(half, len(table))), tmp_path / "b.csv")
    operators = Operators.open(tmp_path)
    assert sum(operators.measured().values()) == len(table)
    for row in (0, len(table) - 1):
        shape = {name: table.sizes[name][row] for name in table.kind.sizes}
        assert operators.time("gemm", table.system[row], **shape).how == "exact"


def test_dtypes_that_only_a_table_knows_are_answered() -> None:
    table = gemms("tomorrow")
    strange = replace(table, words={"dtype": ("int3_wo",) * len(table)})
    found = Operators([strange]).time("gemm", "tomorrow", m=128, n=300, k=512, dtype="int3_wo")
    assert found.how == "borrowed"
    with pytest.raises(UnknownName, match="no dtype 'int3_wo'"):
        Operators().time("gemm", "h100", m=1, n=1, k=1, dtype="int3_wo")


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(BadInput, match="no operator's"):
        read_tables(path)
    path.write_text("system,dtype,m,n,k,us\nh100_sxm,bfloat16,1,2,3\n")
    with pytest.raises(BadInput, match="line 2: expected 6 values; 5 came"):
        read_tables(path)
    path.write_text("system,dtype,m,n,k,us\nh100_sxm,bfloat16,1,2,3,0\n")
    with pytest.raises(BadInput, match="above 0"):
        read_tables(path)


def test_an_accelerator_without_a_law_has_the_median_of_others_with_its_dtype() -> None:
    kind = kind_of("gemm")
    others = [of["bfloat16"].slower["compute"] for of in laws_of()["gemm"].values()]
    assert law_of(kind, "nobody_measured", {"dtype": "bfloat16"}).slower["compute"] == median(others)
    every = [law.slower["compute"] for of in laws_of()["gemm"].values() for law in of.values()]
    assert law_of(kind, "nobody_measured", {"dtype": "int8"}).slower["compute"] == median(every)


@pytest.mark.parametrize(
    ("row", "says"),
    [("0,128,128,3", "m is 0 in line 3"), ("16,inf,128,3", "n is inf in line 3"), ("16,128,128,nan", "1 are not")],
)
def test_rows_that_no_operator_has_are_refused(tmp_path: Path, row: str, says: str) -> None:
    path = tmp_path / "gemm.csv"
    path.write_text(f"system,dtype,m,n,k,us\nmine,bfloat16,16,128,128,3\nmine,bfloat16,{row}\n")
    with pytest.raises(BadInput, match=says):
        read_tables(path)
