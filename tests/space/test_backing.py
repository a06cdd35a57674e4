"""What a space is made of: growing, large arrays, huge pages, a file on disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import BadInput, Closed, NameTaken, NoRoom, NotPermitted
from tests.conftest import needs_root
from tests.processes import Peer
from tests.space import shelf


def test_array_in_the_new_part_is_read_by_plain_loads_elsewhere(home: Path, peer: Peer) -> None:
    with Space.create("shelf", "16MiB") as space:
        peer.call(shelf.open_space)
        filler = space.full("filler", 16 << 20, 1, "uint8")
        with pytest.raises(NoRoom):
            space.put("more", np.zeros(1 << 20, np.uint8))
        space.grow("16MiB")
        array = space.put("more", shelf.pattern(1, 8 << 20))
        assert array.address >= filler.address + (16 << 20)
        assert peer.call(shelf.read_raw, array.address, 8 << 20) == shelf.pattern(1, 8 << 20).tobytes()
        assert space.describe()["bytes"] == 32 << 20
        theirs = peer.call(shelf.put, "theirs", shelf.pattern(2, 4 << 20))
        assert np.array_equal(space.at(theirs, 4 << 20, "uint8").numpy(), shelf.pattern(2, 4 << 20))
        assert shelf.problems(space) == shelf.SOUND


def test_space_grows_again_and_again_while_another_process_fills_it(home: Path, peer: Peer) -> None:
    with Space.create("shelf", "1MiB") as space:
        peer.call(shelf.open_space)
        for number in range(20):
            space.grow(1 << 20)
            peer.call(shelf.put, f"a{number}", shelf.pattern(number, 1 << 20))
        for number in range(20):
            assert np.array_equal(space[f"a{number}"].numpy(), shelf.pattern(number, 1 << 20))
        assert space.describe()["free"] == 1 << 20


def test_a_space_that_is_removed_while_it_grows_is_closed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = os.statvfs

    def removed_first(path: Path) -> os.statvfs_result:
        Space.remove("shelf")
        return ask(path)

    with Space.create("shelf", "8MiB") as space:
        monkeypatch.setattr(os, "statvfs", removed_first)
        with pytest.raises(Closed, match="removed"):
            space.grow("1MiB")


def test_space_does_not_grow_beyond_its_addresses(home: Path) -> None:
    with Space.create("shelf", "16MiB", reserve="32GiB") as space:
        with pytest.raises(NoRoom, match="reserved addresses"):
            space._native.grow(1 << 40)
        assert space.describe()["bytes"] == 16 << 20


@pytest.mark.soak
@pytest.mark.serial
def test_one_array_of_nearly_the_whole_space(home: Path, peer: Peer) -> None:
    free = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize
    if free < 5 << 29:
        pytest.skip(f"/dev/shm has only {free >> 20} MiB free, 2560 are needed")
    with Space.create("shelf", "2GiB") as space:
        count = int(1.9 * (1 << 30)) // 8
        with space.new("large", count, "int64") as draft:
            view = draft.numpy()
            view[:] = np.arange(count)
        peer.call(shelf.open_space)
        assert peer.call(shelf.read_at, draft.address + 8 * (count - 3), 3, "int64").tolist() == [
            count - 3,
            count - 2,
            count - 1,
        ]
        with pytest.raises(NoRoom, match="free"):
            space.zeros("second", count, "int64")
        assert int(view[count // 2]) == count // 2
        del draft, view
        space.delete("large")
        assert not space.zeros("again", count, "int64").numpy()[:: 4096 // 8].any()
    Space.remove("shelf")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A directory to mount on; what was mounted goes afterwards."""
    point = tmp_path / "mounted"
    point.mkdir()
    yield point, str(point)
    subprocess.run(["umount", "-l", str(point)], check=False, capture_output=True)


@needs_root
def test_huge_pages_are_used_where_the_mount_offers_them(home: Path, mounted: tuple[Path, str]) -> None:
    point, text = mounted
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "huge=advise,size=64m", "tmpfs", text],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"no tmpfs with huge=advise can be mounted here: {done.stderr.strip()}")
    with Space.create("shelf", "32MiB", backing=point) as space:
        array = space.put("a", shelf.pattern(1, 16 << 20))
        described = space.describe()
        assert described["backing"].startswith(text)
        assert described["huge_bytes"] >= 8 << 20
        assert np.array_equal(array.numpy(), shelf.pattern(1, 16 << 20))
        with Peer() as peer:
            peer.call(shelf.open_space)
            assert np.array_equal(peer.call(shelf.read, "a"), shelf.pattern(1, 16 << 20))
        del array
    Space.remove("shelf")
    assert list(point.iterdir()) == []


@pytest.fixture
def hugetlbfs(mounted: tuple[Path, str]) -> Iterator[Path]:
    """A mount that has eight huge pages to itself."""
    point, text = mounted
    pool = Path("/proc/sys/vm/nr_hugepages")
    before = int(pool.read_text())
    try:
        pool.write_text(str(before + 8))
        if (given := int(pool.read_text())) < before + 8:
            pytest.skip(f"the kernel gives {given - before} huge pages, 8 are needed")
        done = subprocess.run(
            ["mount", "-t", "hugetlbfs", "-o", "pagesize=2M,size=16M", "none", text],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(f"no hugetlbfs can be mounted here: {done.stderr.strip()}")
        yield point
    finally:
        pool.write_text(str(before))


@needs_root
@pytest.mark.serial  # the pool of huge pages is the machine's
def test_hugetlbfs_backs_a_space_until_its_pages_are_used_up(home: Path, hugetlbfs: Path, peer: Peer) -> None:
    with Space.create("shelf", "8MiB", backing=hugetlbfs) as space:
        assert space.describe()["file_system"] == "hugetlbfs"
        assert space.describe()["page_size"] == 2 << 20
        array = space.put("a", shelf.pattern(1, 5 << 20))
        assert space.describe()["huge_bytes"] == 6 << 20
        peer.call(shelf.open_space)
        assert np.array_equal(peer.call(shelf.read, "a"), shelf.pattern(1, 5 << 20))
        space.grow("4MiB")
        space.put("b", shelf.pattern(2, 5 << 20))
        assert np.array_equal(peer.call(shelf.read, "b"), shelf.pattern(2, 5 << 20))
        with pytest.raises(NoRoom, match="3 huge pages of 2 MiB free, the space wants 8 MiB"):
            Space.create("other", "8MiB", backing=hugetlbfs)
        with pytest.raises(BadInput, match="a flash tier moves pieces of 64 KiB"):
            Space.create("other", "32MiB", backing=hugetlbfs, flash=f"{home}/flash:64MiB")
        peer.kill()
        space.delete("b")
        assert not space.zeros("c", 5 << 20, "uint8").numpy().any()
        assert np.array_equal(array.numpy(), shelf.pattern(1, 5 << 20))
        assert shelf.problems(space) == shelf.SOUND
        del array
    Space.remove("shelf")
    assert list(hugetlbfs.iterdir()) == []


@needs_root
@pytest.mark.serial
def test_huge_pages_that_others_took_are_missed_with_an_error(home: Path, hugetlbfs: Path) -> None:
    with Space.create("one", "16MiB", backing=hugetlbfs) as one, Space.create("two", "16MiB", backing=hugetlbfs) as two:
        kept = one.put("a", shelf.pattern(1, 10 << 20))
        with pytest.raises(NoRoom, match="nr_hugepages"):
            two.put("a", shelf.pattern(2, 10 << 20))
        assert np.array_equal(kept.numpy(), shelf.pattern(1, 10 << 20))
        del kept
    Space.remove("one")
    with Space.open("two") as two:
        two.put("a", shelf.pattern(2, 10 << 20))
        assert np.array_equal(two["a"].numpy(), shelf.pattern(2, 10 << 20))
    Space.remove("two")


def test_dram_beyond_a_device_is_refused(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel says of a DAX device; what devices do themselves is tried in tests/machines."""
    (tmp_path / "null").mkdir()
    (tmp_path / "null/size").write_text(str(64 << 20))
    (tmp_path / "null/align").write_text(str(2 << 20))
    monkeypatch.setattr("openshelf.space.create.registry.DAX_DEVICES", tmp_path)
    for dram in ("64MiB", (62 << 20) + 1, "1GiB"):
        with pytest.raises(NoRoom, match=r"the device /dev/null has room for 62 MiB \(65011712 bytes"):
            Space.create("shelf", dram, backing="/dev/null")
    with pytest.raises(BadInput, match="a flash tier moves pieces of 64 KiB"):
        Space.create("shelf", "32MiB", backing="/dev/null", flash=f"{tmp_path}/flash:64MiB")
    with pytest.raises(NotPermitted, match="is a device"):  # it is none, and is not opened
        Space.create("shelf", "62MiB", backing="/dev/null")
    assert list(home.glob("[!.]*")) == []


def test_file_on_disk_backs_a_space(home: Path, tmp_path: Path, peer: Peer) -> None:
    file = tmp_path / "data"
    with Space.create("shelf", "16MiB", backing=file) as space:
        space.put("a", shelf.pattern(1, 5 << 20))
        peer.call(shelf.open_space)
        assert np.array_equal(peer.call(shelf.read, "a"), shelf.pattern(1, 5 << 20))
        assert space.describe()["backing"] == str(file)
        space.grow("16MiB")
        assert file.stat().st_size == 32 << 20
        space.put("b", shelf.pattern(2, 20 << 20))
        assert np.array_equal(peer.call(shelf.read, "b"), shelf.pattern(2, 20 << 20))
        assert shelf.pattern(2, 20 << 20).tobytes() in file.read_bytes()
        assert shelf.problems(space) == shelf.SOUND
    peer.stop()
    with pytest.raises(NameTaken, match="exists already"):
        Space.create("other", "16MiB", backing=file)
    assert file.exists()
    Space.remove("shelf")
    assert not file.exists()


def test_backing_directory_gets_a_file_per_space(home: Path, tmp_path: Path) -> None:
    with (
        Space.create("one", "16MiB", backing=tmp_path) as one,
        Space.create("two", "16MiB", backing=tmp_path) as two,
    ):
        one.put("a", np.zeros(5))
        two.put("a", np.ones(5))
        assert len(list(tmp_path.iterdir())) == 2
    Space.remove("one")
    with Space.open("two") as two:
        assert two["a"].numpy().sum() == 5
