"""A file of the victim's, and a directory that anybody can put things into, both where spaces are."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.attacker import SECRET


@pytest.fixture
def precious() -> Iterator[Path]:
    """On the file system of spaces: a hard link leads to no other."""
    folder = Path(tempfile.mkdtemp(prefix="openshelf-victim-", dir="/dev/shm"))
    file = folder / "precious"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    yield file
    shutil.rmtree(folder)


@pytest.fixture
def sticky(home: Path) -> Iterator[Path]:
    """A directory as /tmp is: anybody can put things there."""
    path = home.with_name(home.name + "-tmp")
    path.mkdir()
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)
