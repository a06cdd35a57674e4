"""A space with a flash tier, once with touches that bring bytes back and once without."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from openshelf import Space
from openshelf.errors import OpenshelfError
from tests.space.tiers import shelves

# "user" is what an unprivileged user gets: test_modes.py runs the tests as one.
MODES = os.environ.get("OPENSHELF_TEST_FAULTS", "full,none").split(",")
FORCED = os.environ.get("OPENSHELF_FAULTS", "on")  # "6.1": as if the kernel were that old; found once in a process
FAULTING = [mode for mode in MODES if mode != "none"]

with_faults = pytest.mark.parametrize("mode", FAULTING, indirect=True)
without_faults = pytest.mark.parametrize("mode", [mode for mode in MODES if mode == "none"], indirect=True)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory, where nobody else's writes delay a test; test_kill.py and test_oracle.py use `disk`."""
    path = Path(tempfile.mkdtemp(prefix="openshelf-flash-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flash")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[str]:
    """How touches of this process, and of those that it starts, come to the keeper."""
    chosen = str(request.param)
    monkeypatch.setenv("OPENSHELF_FAULTS", "off" if chosen == "none" else FORCED)
    monkeypatch.setenv("OPENSHELF_LINGER", "1")
    yield chosen
    for path in home.glob("*/tiers"):  # its keeper ends with a space
        with contextlib.suppress(OpenshelfError, OSError):
            Space.remove(path.parent.name)


@pytest.fixture
def shelf(mode: str, tmp_path: Path) -> Iterator[Space]:
    """An open space with 32 MiB of dram and 256 MiB of flash."""
    with shelves.make(tmp_path) as space:
        how = shelves.tiers(space)["faults_how"]
        if how != mode:
            pytest.skip(f"userfaultfd gives {how!r} here, not {mode!r}")
        yield space
        assert not {kind: n for kind, n in space.check().items() if kind not in ("arrays", "bytes") and n}
