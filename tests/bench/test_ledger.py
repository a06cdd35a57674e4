"""Rows that made constants do not judge them: the ledger of fits, and the folds of operators and steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.data import DATA

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    for name in [each for each in sys.modules if each.partition(".")[0] in ("work", "kit")]:
        monkeypatch.delitem(sys.modules, name)


def test_no_row_of_the_ledger_judges_the_constants_that_it_made(bench: None) -> None:
    from work.fit import ledger
    from work.steps import megatron

    if not (DATA / "megatron_training.json").exists():
        pytest.skip("there is no data of measured training steps here")
    judged = {each.hash for each in megatron(DATA)}
    assert judged
    assert not judged & ledger()["megatron"]


def test_the_ledger_has_the_rows_that_the_fit_looks_at(bench: None) -> None:
    from work.fit import ledger
    from work.steps import mlperf, vtrain
    from work.training import fitted_of

    if not (DATA / "training").is_dir():
        pytest.skip("there is no data of measured training steps here")
    steps = vtrain(DATA, "single_node") + vtrain(DATA, "multi_node")
    found = ledger()
    assert found["megatron"] <= {each.hash for each in steps}
    assert found["nemo"] <= {each.hash for each in mlperf(DATA)}
    assert {each.hash for each in fitted_of(steps)} & found["megatron"]


def test_hashes_name_single_rows(bench: None) -> None:
    from work.steps import megatron, mlperf, vtrain

    if not (DATA / "training").is_dir():
        pytest.skip("there is no data of measured training steps here")
    every = [*vtrain(DATA, "single_node"), *vtrain(DATA, "multi_node"), *megatron(DATA), *mlperf(DATA)]
    assert len({each.hash for each in every}) > 0.99 * len(every)


def test_runs_that_a_seed_draws_are_not_among_those_that_are_fitted(bench: None) -> None:
    from work.here import GRID, drawn, drawn_of, grid, ledger

    fitted = ledger()
    assert {each.kind for each in fitted} == {*GRID} - {"offload.run"}
    assert all(each in grid(each.kind) for each in fitted)
    known = {each.hash for each in fitted}
    for seed in range(50):
        judged = [*drawn(seed), *drawn_of("ttft", 6, seed)]
        assert len(judged) >= 26
        assert not {each.hash for each in judged} & known
    assert drawn(1) == drawn(1) != drawn(2)


def test_a_line_of_the_ledger_that_was_changed_is_refused(bench: None, monkeypatch: Any, tmp_path: Path) -> None:
    from work import here

    lines = here.LEDGER.read_text().splitlines()
    (tmp_path / "ledger.txt").write_text("\n".join([lines[0] + "0", *lines[1:]]))
    monkeypatch.setattr(here, "LEDGER", tmp_path / "ledger.txt")
    with pytest.raises(AssertionError, match="another hash"):
        here.ledger()
