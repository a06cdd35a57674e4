"""A field by search: where an SLO is kept no longer, or at last."""

from __future__ import annotations

from pathlib import Path

import pytest

from openshelf.errors import BadInput
from openshelf.twin.serve import Requests, Scenario, drawn, grid, keeps, search, sweep

FIRST = Scenario("dgx-h100-ib", "llama-3.1-8b", replicas=1)


def requests(count: int = 60, rate: float = 0.0) -> Requests:
    return drawn(count, rate, (400, 500), (40, 50))


def test_the_most_clients_that_keep_an_slo_are_those_of_a_whole_grid() -> None:
    slo = 1.0, 0.008
    kept = [keeps(each, slo) for each in sweep(grid(FIRST, {"clients": range(1, 33)}), requests(), slo=slo)]
    most = kept.index(False)
    assert 1 < most < 32
    assert not any(kept[most:])
    found = search(FIRST, "clients", 1, 32, requests(), slo)
    assert found.best is not None
    assert found.best.scenario.clients == most
    assert len(found.tried) <= 7


def test_the_fewest_replicas_that_keep_an_slo_are_found_at_the_other_end() -> None:
    found = search(FIRST, "replicas", 1, 16, requests(rate=200.0), (0.1, 0.008))
    assert found.best is not None
    fewest = found.best.scenario.replicas
    assert 1 < fewest < 16
    assert [keeps(each, (0.1, 0.008)) for each in found.tried] == [
        each.scenario.replicas >= fewest for each in found.tried
    ]


def test_where_nothing_keeps_an_slo_or_all_does_only_the_ends_are_tried() -> None:
    nothing = search(FIRST, "clients", 1, 64, requests(), (1e-6, 1e-6))
    assert (nothing.best, len(nothing.tried)) == (None, 2)
    everything = search(FIRST, "clients", 1, 8, requests(), (100.0, 100.0))
    assert everything.best is not None
    assert (everything.best.scenario.clients, len(everything.tried)) == (8, 2)


def test_a_search_takes_what_is_done(tmp_path: Path) -> None:
    done = tmp_path / "done.jsonl"
    first = search(FIRST, "clients", 1, 32, requests(), (1.0, 0.008), done)
    lines = done.read_text()
    assert search(FIRST, "clients", 1, 32, requests(), (1.0, 0.008), done) == first
    assert done.read_text() == lines


@pytest.mark.parametrize(
    ("name", "low", "high", "says"),
    [
        ("model", 1, 2, "'model' cannot be searched; there is clients"),
        ("cliens", 1, 2, "no field"),
        ("clients", 4, 4, "the smaller one first"),
    ],
)
def test_what_cannot_be_searched_is_said(name: str, low: int, high: int, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        search(FIRST, name, low, high, requests(), (1.0, 0.01))
