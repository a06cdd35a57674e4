"""No folder has so many files that a newcomer cannot take them in, and no file is so long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREES = ("src", "native", "tests", "bench", "examples", "docs")
MOST_FILES, MOST_LINES = 25, 500
READ_BY_PEOPLE = {".py", ".cpp", ".hpp", ".c", ".md", ".yaml", ".sh"}
WRITTEN_BY_PROGRAMS = {"docs/models.md"}  # make models
FILES = [
    path
    for tree in TREES
    for path in sorted((ROOT / tree).rglob("*"))
    if path.is_file() and "__pycache__" not in path.parts
]


def crowded(files: Iterable[Path]) -> dict[str, int]:
    """Folders with too many files, and how many."""
    return {
        str(folder): count for folder, count in Counter(path.parent for path in files).items() if count > MOST_FILES
    }


def too_long(text: str) -> bool:
    return text.count("\n") > MOST_LINES


def test_no_folder_is_crowded() -> None:
    assert not crowded(path.relative_to(ROOT) for path in FILES)
    assert crowded(Path("a") / str(number) for number in range(26)) == {"a": 26}
    assert not crowded(Path("a") / str(number) for number in range(25))


def test_no_file_is_long() -> None:
    names = {str(path.relative_to(ROOT)): path for path in FILES if path.suffix in READ_BY_PEOPLE}
    assert set(names) >= WRITTEN_BY_PROGRAMS
    assert not [name for name in names.keys() - WRITTEN_BY_PROGRAMS if too_long(names[name].read_text())]
    assert too_long("line\n" * 501)
    assert not too_long("line\n" * 500)
