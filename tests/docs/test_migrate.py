"""Tables of the migration pages: each new line is in a block of its page, which runs or says why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, name_of

PAGES = sorted(path for path in (ROOT / "docs" / "migrate").glob("*.md") if path.name != "README.md")
FROM = {"shared_memory", "ray", "redis", "accelerate", "deepspeed", "lmcache", "mooncake"}


def rows(page: Path) -> list[tuple[str, str]]:
    """Old and new, as the table has them."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert all(len(each) == 2 for each in cells), page
    return [(old, new) for old, new in cells[1:]]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_new_line_is_in_a_block(page: Path) -> None:
    shown = "\n".join(block.text for block in blocks(page.read_text()))
    missing = [line for _, new in rows(page) for line in code(new) if line not in shown and not line.startswith("--")]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_has_both_lines_what_differs_and_when_to_stay(page: Path) -> None:
    text = page.read_text()
    assert len(rows(page)) >= 8
    assert all(code(old) and code(new) for old, new in rows(page))
    assert "\nWhat differs:\n" in text
    assert re.search(r"^Stay with ", text, re.MULTILINE)


def test_there_is_a_page_for_each() -> None:
    assert {page.stem for page in PAGES} == FROM
    index = (ROOT / "docs" / "migrate" / "README.md").read_text()
    assert all(f"({page.name})" in index for page in PAGES)
