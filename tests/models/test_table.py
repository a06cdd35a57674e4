"""The page of models, from outcomes that were made up."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.models.outcomes import Outcome
from tests.models.table import markdown, read, write

FOUND = {
    "net:b": {"inference": Outcome("equal"), "training": Outcome("refused", "at /a/site-packages/x.py:3: a | b")},
    "net:a": {"inference": Outcome("not built", "too\nlarge")},
}


def test_page_counts_what_can_be_compared_and_says_why(tmp_path: Path) -> None:
    page = markdown(FOUND, 3).splitlines()
    assert "Tried were 2 of 3 models." in page
    assert "| inference | 1 | 0 | 0 | 0 | 100.0% | 1 | 0 |" in page
    assert "| training | 0 | 1 | 0 | 0 | 0.0% | 0 | 0 |" in page
    assert page[-2:] == ["| net:a | not built |  | too large |", "| net:b | equal | refused | at x.py:3: a / b |"]


def test_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "table.json", FOUND)
    assert read(tmp_path / "table.json") == FOUND
