"""Every block of code in the documents runs, or says right before it why it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, RUNS, blocks, name_of

SHOWN_ONLY = ("yaml", "text")  # files and output


def running(page: Path) -> bool:
    return any(block.language in RUNS and not block.not_run for block in blocks(page.read_text()))


def slow(page: Path) -> bool:
    """Needs torch, which is long in coming: such pages share a process."""
    return any("import torch" in block.text for block in blocks(page.read_text()) if not block.not_run)


@pytest.fixture
def place(tmp_path: Path, home: Path) -> dict[str, str]:
    """An environment in which a page finds nothing of this user's: folders of its own, and the program on the path."""
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "OPENSHELF_DIR": str(home),
        "OPENSHELF_CACHE": str(tmp_path / "packed"),
        "OPENSHELF_LINGER": "0.5",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        **{key: value for key, value in os.environ.items() if key in ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS")},
    }


def run(pages: list[Path], tmp_path: Path, place: dict[str, str]) -> None:
    command = [sys.executable, str(Path(__file__).with_name("run_page.py")), *map(str, pages)]
    done = subprocess.run(command, cwd=tmp_path, env=place, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


def small(page: Path) -> bool:
    """One of many that take less than to start a process: such pages share one, too."""
    return page.parent.name == "migrate"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if running(page) and not slow(page) and not small(page)], ids=name_of
)
def test_the_page_runs(page: Path, tmp_path: Path, place: dict[str, str]) -> None:
    run([page], tmp_path, place)


def test_small_pages_run(tmp_path: Path, place: dict[str, str]) -> None:
    run([page for page in PAGES if running(page) and not slow(page) and small(page)], tmp_path, place)


def test_pages_with_models_run(tmp_path: Path, place: dict[str, str]) -> None:
    run([page for page in PAGES if running(page) and slow(page)], tmp_path, place)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_has_a_language_that_decides_whether_it_runs(page: Path) -> None:
    odd = {block.line: block.language for block in blocks(page.read_text()) if block.language not in RUNS + SHOWN_ONLY}
    assert not odd, "a block needs a language: one that runs, or one that is only shown"
