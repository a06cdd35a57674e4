"""Laws: what shapes ask for, who is fastest, how tokens spread, and constants found again from rows that follow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openshelf.errors import BadInput
from openshelf.fabric import Law, Phase, Regime, Tokens, work
from openshelf.fabric.laws.tokens import fit_phase, reached, remote_copies


def test_halves_of_an_all_reduce_ask_for_half() -> None:
    whole, half = work("ring", "all_reduce", 8), work("ring", "all_gather", 8)
    assert whole
    assert half
    assert (whole.steps, whole.moved) == (14, 1.75) == (2 * half.steps, 2 * half.moved)
    assert work("ring", "all_to_all", 8) is None
    assert work("in_switch", "all_reduce", 2) is None


def test_the_fastest_regime_is_taken_by_bytes() -> None:
    small, large = Regime("LL", "ring", 1e-6, 1e-6, 1e-9), Regime("simple", "ring", 1e-5, 2e-6, 1e-11)
    law = Law((small, large))
    assert law.fastest("all_reduce", 8, 1024)[1].name == "LL"
    assert law.fastest("all_reduce", 8, 1 << 30)[1].name == "simple"
    assert Law((small, large), unused=("simple",)).fastest("all_reduce", 8, 1 << 30)[1].name == "LL"
    with pytest.raises(BadInput, match="no regime does all_to_all among 8 ranks"):
        law.seconds("all_to_all", 8, 1024)


@given(st.integers(1, 128), st.integers(1, 8), st.integers(0, 3))
def test_tokens_reach_no_more_units_than_there_are_or_experts_they_have(units: int, topk: int, more: int) -> None:
    experts = units * (1 + more) + 7
    found = reached(units, topk, experts)
    assert 1 - 1e-9 <= found <= min(units, topk) + 1e-9
    assert remote_copies(units, topk, experts) <= remote_copies(units, topk, experts, each_expert=True) + 1e-9


def test_a_phase_that_follows_the_law_is_found_again() -> None:
    true = Phase(12e-6, 0.8e-6, 50e-9, 1 / 450e9)
    loads = [
        Tokens(tokens, units, remote_copies(units, 8, 256) * 14336.0)
        for units in (2, 4, 16)
        for tokens in (1, 16, 128, 1024, 8192, 65536)
    ]
    found = fit_phase([(load, true.seconds(load)) for load in loads], Phase(1e-5, 1e-6, 4e-8, 1 / 800e9))
    for units in (8, 64):
        load = Tokens(4096, units, remote_copies(units, 8, 256) * 14336.0)
        assert found.seconds(load) == pytest.approx(true.seconds(load), rel=0.03)


def test_one_side_waits_for_every_peer_and_two_as_a_tree() -> None:
    phase = Phase(1e-5, 1e-6, 1e-9, 1e-12)
    assert phase.seconds(Tokens(1, 16, 0.0, True)) - phase.seconds(Tokens(1, 16, 0.0)) == pytest.approx(11e-6)
