"""Making and removing spaces with a flash tier: files that appear and go, and input that is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space, spaces
from openshelf.errors import BadInput, NameTaken, NoRoom, NotPermitted, UnknownName
from openshelf.space.hosts import start_keeper
from tests.space.tiers.shelves import DRAM, FLASH, MIB, demoted, keeper, make, tiers, wait_until, words


def test_space_is_removed_with_its_flash_files_and_its_keeper(mode: str, tmp_path: Path) -> None:
    space = make(tmp_path)
    space.put("a", words(1, 1, MIB))
    pid = keeper(space)
    assert [path.stat().st_size >= FLASH for path in tmp_path.iterdir()] == [True]
    assert tmp_path.joinpath("shelf-0.flash").stat().st_mode & 0o077 == 0
    space.close()
    Space.remove("shelf")
    assert list(tmp_path.iterdir()) == []
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    make(tmp_path).close()


def test_space_that_is_removed_while_it_is_being_opened_is_unknown(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path).close()

    def too_late(path: Path) -> bool:
        Space.remove("shelf")
        return False

    monkeypatch.setattr(start_keeper, "answers", too_late)
    with pytest.raises(UnknownName, match="was removed while it was being opened"):
        Space.open("shelf")


def test_striped_files_share_the_bytes(mode: str, tmp_path: Path) -> None:
    with make(tmp_path, files=4) as space:
        arrays = [demoted(space.put(f"a{number}", words(number, 1, 4 * MIB))) for number in range(4)]
        assert len(tiers(space)["files"]) == 4
        for path in sorted(tmp_path.iterdir()):
            assert path.stat().st_size >= FLASH // 4
            written = np.fromfile(path, np.uint64)
            labels = set((written[512:] >> np.uint64(48)).tolist())
            assert {1, 2, 3, 4} <= labels, path
        for number, array in enumerate(arrays):
            assert np.array_equal(array.numpy(), words(number, 1, 4 * MIB))
    Space.remove("shelf")
    assert list(tmp_path.iterdir()) == []


def test_directory_gets_files_of_its_own_names(mode: str, tmp_path: Path) -> None:
    with Space.create("one", DRAM, flash=f"{tmp_path}:{FLASH}"), Space.create("two", DRAM, flash=f"{tmp_path}:{FLASH}"):
        assert len(list(tmp_path.glob("openshelf-*.flash"))) == 2


def test_file_that_is_not_the_spaces_is_not_removed(mode: str, tmp_path: Path) -> None:
    make(tmp_path).close()
    path = tmp_path / "shelf-0.flash"
    path.unlink()
    path.write_bytes(b"precious")
    Space.remove("shelf")
    assert path.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("flash", "message"),
    [
        ("{tmp}/f", "PATH:SIZE"),
        ("", "PATH:SIZE"),
        (":64MiB", "PATH:SIZE"),
        ("{tmp}/f:", "size"),
        ("{tmp}/f:much", "size"),
        ("{tmp}/f:-1", "size"),
        ("{tmp}/f:1MiB", "at least"),
        ("{tmp}/none/f:256MiB", "no directory"),
        ("{tmp}/f:48MiB", "more than the flash"),
        (["{tmp}/f:256MiB", "{tmp}/f:256MiB"], "different files"),
        (["{tmp}/f:128MiB", "{tmp}/g:256MiB"], "one size"),
        ([], "1 to 8"),
        (["{tmp}/f:64MiB"] * 9, "1 to 8"),
        ("{tmp}/" + "x" * 2000 + ":256MiB", "too long"),
    ],
)
def test_flash_that_cannot_be_is_refused(home: Path, tmp_path: Path, flash: Any, message: str) -> None:
    def filled(text: str) -> str:
        return text.replace("{tmp}", str(tmp_path))

    with pytest.raises(BadInput, match=message):
        Space.create("bad", "64MiB", flash=filled(flash) if isinstance(flash, str) else [filled(one) for one in flash])
    assert list(tmp_path.iterdir()) == []
    assert spaces() == []


def test_existing_file_is_not_written_over(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"precious")
    with pytest.raises(NameTaken, match="exists already"):
        Space.create("bad", "64MiB", flash=[f"{tmp_path}/e:128MiB", f"{path}:128MiB"])
    assert path.read_bytes() == b"precious"
    assert list(tmp_path.iterdir()) == [path]
    assert spaces() == []


def test_too_little_dram_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="at least"):
        Space.create("bad", "16MiB", flash=f"{tmp_path}/f:256MiB")


def test_more_flash_than_the_disk_has_is_refused(home: Path, tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    with pytest.raises(NoRoom, match=str(tmp_path)):
        Space.create("bad", "64MiB", flash=f"{tmp_path}/f:{2 * status.f_blocks * status.f_frsize}")
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_go_with_flash_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="flash"):
        Space.create("bad", "64MiB", durable=True)
    with pytest.raises(BadInput, match="one user's"):
        Space.create("bad", "64MiB", flash=f"{tmp_path}/f:256MiB", group="root")
    assert spaces() == []


def test_space_with_flash_does_not_grow(shelf: Space) -> None:
    with pytest.raises(NotPermitted, match="size of its flash"):
        shelf.grow("64MiB")


def test_space_without_flash_says_so(space: Space) -> None:
    array = space.put("a", np.arange(10))
    assert array.tier == "dram"
    assert array.prefetch().wait()
    with array.pin():
        pass
    with pytest.raises(BadInput, match="no flash tier"):
        array.demote()
    with pytest.raises(BadInput, match="no flash tier"):
        space.flush()


def test_more_than_flash_holds_is_refused_and_room_comes_back(shelf: Space) -> None:
    for number in range(FLASH // (32 * MIB) - 1):
        shelf.zeros(f"z{number}", 32 * MIB // 8, "uint64")
    with pytest.raises(NoRoom):
        shelf.zeros("more", 40 * MIB // 8, "uint64")
    shelf.delete("z0")
    shelf.zeros("more", 32 * MIB // 8, "uint64")


def test_unknown_choice_of_faults_is_refused(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENSHELF_FAULTS", "perhaps")
    with pytest.raises(BadInput, match=r"'on', 'off', '6\.1' or '6\.4'"):
        make(tmp_path)
    with pytest.raises(UnknownName):
        Space.open("shelf")  # nothing was made
    monkeypatch.setenv("OPENSHELF_FAULTS", "off")
    make(tmp_path).close()
    monkeypatch.setenv("OPENSHELF_FAULTS", "perhaps")
    with pytest.raises(BadInput, match="'on', 'off'"):
        Space.open("shelf")
    monkeypatch.setenv("OPENSHELF_FAULTS", "off")
    Space.remove("shelf")
