"""Every test has its own directory of spaces, so that tests run in parallel and leave nothing behind."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from openshelf import Space
from tests.processes import Peer


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private OPENSHELF_DIR in shared memory."""
    path = Path(tempfile.mkdtemp(prefix="openshelf-test-", dir="/dev/shm"))
    path.chmod(0o700)
    monkeypatch.setenv("OPENSHELF_DIR", str(path))
    yield path
    gc.collect()  # views that a failed test left in reference cycles
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def space(home: Path) -> Iterator[Space]:
    """An open space of 64 MiB named 'shelf', whole at the end of the test."""
    with Space.create("shelf", "64MiB") as made:
        yield made


@pytest.fixture
def peer(home: Path) -> Iterator[Peer]:
    """One other process, started by spawn."""
    with Peer() as process:
        yield process


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
