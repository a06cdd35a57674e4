"""Bars on measured rows that nothing was fitted to; more of them, row by row, in bench/twin_nccl.py."""

from __future__ import annotations

from statistics import median

import pytest

from openshelf.fabric import Wanted, compare, fit, fit_tokens, read_measured, read_tokens
from tests.data import DATA

ONE_NODE = DATA / "network" / "nccl_one_node.csv"
TOKENS = DATA / "network" / "gb200_moe_alltoall.csv"
LINKS = {"a100_sxm": Wanted(300e9), "h100_sxm": Wanted(450e9, reduces=True)}


@pytest.mark.skipif(not ONE_NODE.exists(), reason=f"{ONE_NODE} is not there")
def test_eight_ranks_are_predicted_from_two_and_four() -> None:
    every = read_measured(ONE_NODE)
    rows = []
    for machine, wanted in LINKS.items():
        own = [each for each in every if each.machine == machine]
        rows += [row for row in compare(own, fit(own, wanted, {8})) if row.use == "predicted"]
    assert {row.ranks for row in rows} == {8}
    small = [abs(row.error) for row in rows if 1 << 10 <= row.nbytes <= 64 << 20]
    large = [abs(row.error) for row in rows if row.nbytes > 64 << 20]
    assert median(small) <= 0.12
    assert median(large) <= 0.07


@pytest.mark.skipif(not TOKENS.exists(), reason=f"{TOKENS} is not there")
def test_tokens_among_sixteen_ranks_are_predicted_from_other_counts() -> None:
    rows = [row for row in read_tokens(TOKENS) if row.phase == "dispatch"]
    law = {each.name: each for each in fit_tokens([row for row in rows if row.units != 16], 900e9)}
    assert median(abs(law[row.name].seconds(row) / row.seconds - 1) for row in rows if row.units == 16) <= 0.15
