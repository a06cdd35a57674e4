"""What offload keeps and opens by name: another user's files and links are neither read nor written, and refused."""

from __future__ import annotations

import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf.errors import NotPermitted
from openshelf.offload import cache as plan_cache
from openshelf.offload.cache import private_folder
from openshelf.offload.weights.files import Scratch
from openshelf.offload.weights.pack import pack_sources, pack_state
from openshelf.offload.weights.packed import Packed
from openshelf.offload.weights.writer import Source
from tests.offload.weights.packing import content, weights
from tests.security.attacker import TRAPS, Trap, another_user, dangling, needs_another_user, run_as_other

pytestmark = needs_another_user
ASKED: dict[str, Any] = {"program": "p", "budget": 1}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("OPENSHELF_CACHE", str(folder))
    return folder


def precious(folder: Path) -> Path:
    """A good packed file of the victim's, elsewhere."""
    pack_state(weights(), folder=folder, name="precious")
    return folder / "precious"


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_prepared_packed_file_is_refused_and_left_alone(tmp_path: Path, cache: Path, trap: Trap) -> None:
    victim = precious(tmp_path)
    before = victim.read_bytes()
    trap(cache / "model.packed", victim)
    prepared = (cache / "model.packed").lstat()
    with pytest.raises(NotPermitted):
        Packed.open(cache / "model.packed")
    if trap is dangling:  # there is no file: one is made in the place of the link, not where it leads
        pack_state(weights(1), folder=cache, name="model.packed")
        assert not (cache / "model.packed").is_symlink()
    else:
        with pytest.raises(NotPermitted):
            pack_state(weights(1), folder=cache, name="model.packed")
        with pytest.raises(NotPermitted):  # as a run is saved
            pack_sources([Source("a", 4, lambda *_: None)], {}, folder=cache, name="model.packed")
        now = (cache / "model.packed").lstat()
        assert (now.st_ino, now.st_mode, now.st_size) == (prepared.st_ino, prepared.st_mode, prepared.st_size)
    assert victim.read_bytes() == before
    assert not (tmp_path / "made-by-mistake").exists()


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_prepared_plan_is_not_used(tmp_path: Path, cache: Path, trap: Trap) -> None:
    plan_cache.save_plain(ASKED, {"steps": 3})
    (kept,) = (cache / "plans").iterdir()
    victim = tmp_path / "precious"
    victim.write_bytes(kept.read_bytes())
    victim.chmod(0o600)
    kept.unlink()
    trap(kept, victim)
    before = victim.read_bytes()
    with pytest.warns(UserWarning, match="cannot be used"):
        assert plan_cache.load_plain(ASKED, dict) is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan_cache.save_plain(ASKED, {"steps": 4})
    assert victim.read_bytes() == before
    if not kept.is_dir():
        assert plan_cache.load_plain(ASKED, dict) == {"steps": 4}


def test_cache_of_another_user_is_refused(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, another_user().pw_uid, another_user().pw_gid)
    link = tmp_path / "link"
    link.symlink_to(theirs)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for folder in (theirs, link, open_to_all):
        monkeypatch.setenv("OPENSHELF_CACHE", str(folder))
        uses: list[Any] = [private_folder, Scratch, lambda one: pack_state(weights(), folder=one, name="w.packed")]
        for use in uses:
            with pytest.raises(NotPermitted):
                use(folder)
        with pytest.warns(UserWarning, match="could not be kept"):
            plan_cache.save_plain(ASKED, {"steps": 3})
        assert not list(folder.iterdir())


def test_link_of_ones_own_to_another_disk_is_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("OPENSHELF_CACHE", str(tmp_path / "cache"))
    packed = pack_state(weights(), folder=tmp_path / "cache", name="w.packed")
    assert content(packed) == {name: value.tobytes() for name, value in weights().items()}
    assert (tmp_path / "disk" / "w.packed").exists()


def test_another_user_can_neither_read_nor_replace_what_is_kept(cache: Path) -> None:
    plan_cache.save_plain(ASKED, {"steps": 3})
    pack_state({"w": np.ones(3, np.float32)}, folder=cache, name="w.packed")
    for path in (cache / "w.packed", next((cache / "plans").iterdir())):
        for flags in (os.O_RDONLY, os.O_WRONLY):
            assert "PermissionError" in run_as_other(partial(os.open, path, flags))
        assert "PermissionError" in run_as_other(partial(os.rename, path, path.with_name("gone")))
