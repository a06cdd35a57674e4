"""Documents keep to their form: lines that fit, links that lead somewhere, headings that differ."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, anchor, blocks, headings, links, name_of, tables

COLUMNS = 120
README_WORDS = 800


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_line_is_too_long(page: Path) -> None:
    lines = page.read_text().splitlines()
    long = {number: line for number, line in enumerate(lines, 1) if len(line) > COLUMNS and not line.startswith("|")}
    assert not long


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    lost = []
    for number, target in links(page.read_text()):
        if target.startswith(("https://", "http://")):
            continue
        path, _, at = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        found = there.is_relative_to(ROOT) and there.exists()
        if not found or (at and at not in {anchor(each) for each in headings(there.read_text())}):
            lost.append((number, target))
    assert not lost


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_heading_comes_twice(page: Path) -> None:
    assert [each for each, times in Counter(headings(page.read_text())).items() if times > 1] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "docs"], ids=name_of)
def test_guides_leave_figures_to_the_benchmarks(page: Path) -> None:
    if not page.name.startswith("benchmarks"):
        assert not {"Figures", "Measured", "Benchmarks"} & set(headings(page.read_text()))
        assert not [line for line in page.read_text().splitlines() if re.match(r"\|.*\| bar \|", line)]


def test_the_first_page_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    words = sum(len(line.split()) for line in text.splitlines() if not line.startswith("|"))
    assert words <= README_WORDS
    assert tables(text) <= 1


def test_a_page_is_taken_apart() -> None:
    text = "# a\n\n<!-- not run: why -->\n```sh\nls\n```\nwords\n"
    text += "<!-- before:\nx = 1\n-->\n```python\nx\n```\n```\nz\n```\n"
    first, second, third = blocks(text)
    assert (first.language, first.line, first.text, first.not_run) == ("sh", 5, "ls", "why")
    assert (second.text, second.before, second.not_run) == ("x", "x = 1", "")
    assert (third.language, third.not_run) == ("", "")
    assert headings(text) == ["a"]
    assert anchor("What is `kept`, and not") == "what-is-kept-and-not"
    assert links("[a](b.md#c) `[no](d)`\n```\n[no](e)\n```\n") == [(1, "b.md#c")]
    assert tables("| a |\n|---|\n| b |\n") == 1
