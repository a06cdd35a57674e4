"""Serving by a user's own tables of operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from openshelf.errors import BadInput
from openshelf.twin.ops import OpTable, accelerator, kind_of, laws_for, write_table
from openshelf.twin.serve import Plan, Scenario, assumed_of, drawn, find_model, run_scenario, work_of

SCENARIO = Scenario("dgx-h100-ib", "llama-3.1-8b", replicas=1)


def products(slower: float, system: str = "h100", dtype: str = "bfloat16") -> OpTable:
    m, n, k = (each.ravel() for each in np.meshgrid([64.0, 4096], [1024.0, 2048, 8192], [1024.0, 4096]))
    kind, sizes = kind_of("gemm"), {"m": m, "n": n, "k": k}
    parts = kind.parts(sizes, {"dtype": dtype}, accelerator("h100"))
    seconds = 3e-6 + slower * parts["compute"] + parts["memory"]
    names = (system,) * len(m)
    return OpTable(kind, names, names, {"dtype": (dtype,) * len(m)}, sizes, seconds)


def test_slower_products_of_a_table_make_prompts_slower(tmp_path: Path) -> None:
    requests = drawn(20, 1.0, (3000, 4000), (2, 4))
    usual = run_scenario(SCENARIO, requests).plain()["ttft_s"]
    found = []
    for slower in (1.0, 4.0):
        write_table(products(slower), tmp_path / f"{slower}.csv")
        own = Scenario("dgx-h100-ib", "llama-3.1-8b", replicas=1, table=str(tmp_path / f"{slower}.csv"))
        found.append(run_scenario(own, requests).plain()["ttft_s"])
        assert any("gemm bfloat16 (12 rows)" in each for each in assumed_of(own))
    assert found[1] > 2 * found[0]
    assert found[0] == pytest.approx(usual, rel=0.2)


def test_laws_of_a_table_are_against_the_rates_of_the_fabric() -> None:
    device, model = accelerator("h100"), find_model("llama-3.1-8b")
    work = work_of(model, device, Plan(), laws_for([products(2.0)], device))
    assert work.linear_token_s == pytest.approx(2 * 2 * model.dense_parameters / device.peak("bfloat16"), rel=0.01)


def test_parts_of_a_table_in_several_files_count_together() -> None:
    table = products(2.0)
    halves = [table.take(range(6)), table.take(range(6, 12))]
    assert laws_for(halves, accelerator("h100"))["gemm"]["bfloat16"].rows == 12


def test_a_table_of_another_machine_is_refused(tmp_path: Path) -> None:
    write_table(products(1.0, system="l40s"), tmp_path / "gemm.csv")
    other = Scenario("dgx-h100-ib", "llama-3.1-8b", replicas=1, table=str(tmp_path))
    with pytest.raises(BadInput, match=r"no rows of h100_sxm; they have l40s"):
        run_scenario(other, drawn(5, 1.0, (100, 200), (2, 4)))
    with pytest.raises(BadInput, match="no table of operators at"):
        run_scenario(Scenario("dgx-h100-ib", "llama-3.1-8b", table=str(tmp_path / "no")), drawn(5, 1.0, (9, 9), (2, 2)))
