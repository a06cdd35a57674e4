"""docs/inside.md names files that are there. The list is the page's own: a file that moves is renamed there."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "inside.md"
PATH = re.compile(r"`((?:src|native|tests|bench|docs)/[\w./-]*)`")


def named() -> list[str]:
    return sorted(set(PATH.findall(PAGE.read_text())))


def test_every_file_that_the_walks_name_is_there() -> None:
    assert [path for path in named() if not (ROOT / path).exists()] == []


def test_the_walks_name_files_of_both_halves() -> None:
    assert {path.split("/")[0] for path in named()} >= {"src", "native"}
    assert len(named()) > 50
