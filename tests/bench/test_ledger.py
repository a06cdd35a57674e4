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


def test_measured_serving_that_made_the_law_is_in_the_ledger_and_no_split_or_log_is(bench: None) -> None:
    from work.fit import hash_of, ledger, served

    if not (DATA / "serving" / "e2e_silicon.csv").exists():
        pytest.skip("there is no data of measured serving here")
    settings = served(DATA)
    fitted = ledger()["serving"]
    assert fitted <= {hash_of(each) for each in settings}
    assert not fitted & {hash_of(each) for each in settings if each.decode_plan is not None}
    assert {each.device.name for each in settings if hash_of(each) in fitted} == {"h100_sxm", "h200_sxm", "b200_sxm"}


def test_the_ledger_of_operators_has_the_rows_and_errors_of_the_laws_that_ship(bench: None) -> None:
    from openshelf.twin.ops import fold_of, laws_of
    from work.operators_ledger import entries, entries_of, tables_of

    found = entries()
    laws = {
        (kind, device, words): law
        for kind, devices in laws_of().items()
        for device, of in devices.items()
        for words, law in of.items()
    }
    assert {(each.kind, each.device, each.words): each.rows for each in found} == {
        key: law.rows for key, law in laws.items()
    }
    if not (DATA / "ops").is_dir():
        pytest.skip("there is no data of measured operators here")
    tables = list(tables_of(DATA, ("attention_context.csv", "moe.csv")))  # the others take longer
    assert list(entries_of(tables)) == [each for each in found if each.kind in ("attention", "moe")]
    for table in tables:  # a fold judges what the others made
        hashes, folds = table.hashes(), fold_of(table)
        assert len(set(zip(hashes, folds.tolist(), strict=True))) == len(set(hashes))
