"""docs/environment.md lists the environment variables that the code reads, all of them and no others."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import PAGES, ROOT

PAGE = ROOT / "docs" / "environment.md"
CODE = ("src", "native", "tests", "bench", "examples")
ENDINGS = {".py", ".pyi", ".cpp", ".hpp", ".c", ".txt", ".toml"}
VARIABLE = re.compile(r"\bOPENSHELF_[A-Z][A-Z_0-9]*\b")


def sources() -> list[Path]:
    below = [path for folder in CODE for path in (ROOT / folder).rglob("*") if path.suffix in ENDINGS]
    return [*below, ROOT / "Makefile", ROOT / "CMakeLists.txt", ROOT / "pyproject.toml"]


def listed() -> set[str]:
    return set(re.findall(r"^\| `(OPENSHELF_[A-Z_0-9]+)` \|", PAGE.read_text(), re.MULTILINE))


def test_every_variable_is_listed() -> None:
    assert {name for path in sources() for name in VARIABLE.findall(path.read_text())} == listed()


def test_no_other_page_names_an_unknown_one() -> None:
    assert {name for page in PAGES for name in VARIABLE.findall(page.read_text())} <= listed()
