"""Bad surroundings: directories of others, files that are cut, memory that runs out, processes that were killed."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from openshelf import Space, _core
from openshelf._files import mount_of
from openshelf.errors import (
    AddressOccupied,
    BadInput,
    Corrupt,
    NoRoom,
    NotPermitted,
    OpenshelfError,
    WrongVersion,
)
from openshelf.space import new_hosts_file, spaces
from openshelf.space.create import registry
from tests.conftest import needs_root
from tests.processes import Died, Failed, Peer, State, in_fresh_process
from tests.space import shelf


def test_space_of_another_version_is_refused(home: Path) -> None:
    Space.create("shelf", "16MiB").close()
    with (home / "shelf" / "control").open("r+b") as file:
        file.seek(16)
        (version,) = struct.unpack("<I", file.read(4))
        assert version == _core.VERSION
        file.seek(16)
        file.write(struct.pack("<I", version + 1))
    with pytest.raises(WrongVersion, match=f"layout version {version + 1}, this Openshelf reads {version}"):
        Space.open("shelf")
    Space.remove("shelf")


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_directory_that_others_can_write_is_refused(home: Path, mode: int) -> None:
    Space.create("shelf", "16MiB").close()
    home.chmod(mode)
    for call in (
        lambda: Space.open("shelf"),
        lambda: Space.create("new", "16MiB"),
        lambda: Space.remove("shelf"),
    ):
        with pytest.raises(NotPermitted, match=f"mode {mode:o}.*set OPENSHELF_DIR"):
            call()
    home.chmod(0o700)
    Space.open("shelf").close()


@pytest.mark.parametrize("flash", [True, False])
def test_touches_that_nobody_is_told_of_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flash: bool
) -> None:
    if (kind := mount_of(tmp_path)[0]) in ("tmpfs", "unknown"):
        pytest.skip(f"{tmp_path} is on {kind}")
    monkeypatch.setenv("OPENSHELF_DIR", str(tmp_path / "spaces"))
    monkeypatch.delenv("OPENSHELF_FAULTS", raising=False)
    tmp_path.joinpath("spaces").mkdir(mode=0o700)
    url = f"openshelf://{one_host(tmp_path / 'hosts.yaml')}/shelf"
    with pytest.raises(BadInput, match=f"OPENSHELF_DIR=.* is on {kind}: .*on tmpfs and hugetlbfs only"):
        _ = (
            Space.create("shelf", "32MiB", flash=f"{tmp_path}/flash:64MiB")
            if flash
            else Space.open(url, hosts=tmp_path / "hosts.yaml")
        )
    assert spaces() == []
    Space.create("plain", "16MiB").close()  # without touches to be told of, any directory will do


def one_host(path: Path) -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
    new_hosts_file(path, [host])
    return host


@needs_root
def test_directory_of_another_user_is_refused(home: Path) -> None:
    os.chown(home, 12345, -1)
    with pytest.raises(NotPermitted, match="belongs to user 12345, expected 0"):
        Space.create("shelf", "16MiB")
    os.chown(home, 0, -1)


def test_directory_that_is_a_link_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "real").mkdir(mode=0o700)
    (home / "link").symlink_to(home / "real")
    monkeypatch.setenv("OPENSHELF_DIR", str(home / "link"))
    with pytest.raises(NotPermitted):
        Space.create("shelf", "16MiB")


@needs_root
def test_other_user_may_not_open_a_private_space(space: Space) -> None:
    path = str(registry.find("shelf"))
    with Peer() as peer, pytest.raises(Failed, match="NotPermitted: user 12345 may not"):
        peer.call(_open_as, 12345, path)


def _open_as(state: State, user: int, path: str) -> None:
    os.setuid(user)
    Space.open(path)


def test_occupied_base_address_names_what_is_there(space: Space) -> None:
    base = int(space.describe()["base"])
    with Peer() as peer:
        peer.call(_occupy, base + (1 << 30))
        with pytest.raises(
            Failed, match=r"AddressOccupied: cannot map the space 'shelf'.*anonymous memory is mapped at"
        ):
            peer.call(shelf.open_space)
        with pytest.raises(Failed, match="AddressOccupied"):
            peer.call(_create_at, base)
    assert issubclass(AddressOccupied, OpenshelfError)


def test_new_space_avoids_addresses_that_are_occupied(home: Path) -> None:
    with Peer() as peer:
        peer.call(_occupy, registry.FIRST_BASE)
        assert peer.call(_create_at, None) >= registry.FIRST_BASE + registry.GRAIN


def _occupy(state: State, address: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    private_anonymous_fixed_noreplace = 0x02 | 0x20 | 0x100000
    got = libc.mmap(ctypes.c_void_p(address), 4096, 0, private_anonymous_fixed_noreplace, -1, 0)
    assert got == address


def _create_at(state: State, base: int | None) -> int:
    with Space.create("another", "16MiB", base=base) as space:
        return int(space.describe()["base"])


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tmpfs of 24 MiB as the directory of all spaces, as in a container with a small /dev/shm."""
    point = tmp_path / "small"
    point.mkdir(mode=0o700)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs", str(point)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    monkeypatch.setenv("OPENSHELF_DIR", str(point))
    yield point
    subprocess.run(["umount", "-l", str(point)], check=False)


@needs_root
def test_more_memory_than_the_file_system_has_is_refused_at_creation(small: Path) -> None:
    with pytest.raises(NoRoom, match=r"free, the space wants 64 MiB.*--shm-size"):
        Space.create("shelf", "60MiB")
    assert [path.name for path in small.iterdir()] == [".lock"]
    with Space.create("shelf", "8MiB") as space, pytest.raises(NoRoom, match="--ipc=host"):
        space.grow("1GiB")


@needs_root
@pytest.mark.parametrize("nbytes", [100, 8000, 100_000, 3 << 20])
def test_file_system_that_fills_up_later_is_an_error_and_not_a_crash(small: Path, nbytes: int) -> None:
    Space.create("shelf", "16MiB").close()
    room = os.statvfs(small)
    (small / "ballast").write_bytes(bytes(room.f_bavail * room.f_frsize - (5 << 20)))
    count = in_fresh_process(_fill_until_refused, nbytes)
    assert count * nbytes < 6 << 20
    (small / "ballast").unlink()
    with Space.open("shelf") as space:
        assert len(space) == count
        assert shelf.problems(space) == shelf.SOUND
        space.put("now", np.zeros(nbytes, np.uint8))


def _fill_until_refused(nbytes: int) -> int:
    with Space.open("shelf") as space:
        for number in range(1 << 20):
            try:
                space.put(f"n{number}", np.ones(nbytes, np.uint8))
            except NoRoom as error:
                if "bytes are free" not in str(error):
                    raise
                for done in range(number):
                    assert space[f"n{done}"].numpy().all()
                return number
    raise AssertionError("never full")


@needs_root
def test_a_full_file_system_is_said_and_not_a_full_space(small: Path) -> None:
    with Space.create("shelf", "16MiB") as space:
        (small / "ballast").write_bytes(bytes(os.statvfs(small).f_bavail * os.statvfs(small).f_frsize))
        for nbytes in (100, 8 << 20):
            with pytest.raises(NoRoom, match=r"the file system.*; in the space itself 16777216 of") as error:
                space.zeros("a", nbytes, "uint8")
            assert "delete arrays" not in str(error.value)
        (small / "ballast").unlink()
        space.zeros("a", 8 << 20, "uint8")
        with pytest.raises(NoRoom, match=r"bytes are free, the longest run has \d+; delete arrays"):
            space.zeros("b", 9 << 20, "uint8")


def test_files_that_are_missing_or_cut_are_errors(home: Path) -> None:
    Space.create("shelf", "16MiB").close()
    for name in ("control", "members", "data"):
        shutil.move(home / "shelf" / name, home / "aside")
        with pytest.raises(OpenshelfError):
            Space.open("shelf")
        size = (home / "aside").stat().st_size
        for wanted in (0, 100, size - 4096):
            with (home / "shelf" / name).open("wb") as file:
                file.truncate(wanted)
            with pytest.raises(Corrupt, match=f"{name}|control|truncated|bytes"):
                Space.open("shelf")
        shutil.move(home / "aside", home / "shelf" / name)
        Space.open("shelf").close()


def test_header_that_was_changed_fails_its_checksum(home: Path) -> None:
    Space.create("shelf", "16MiB").close()
    with (home / "shelf" / "control").open("r+b") as file:
        file.seek(40)
        byte = file.read(1)[0]
        file.seek(40)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(Corrupt, match="header fails its checksum"):
        Space.open("shelf")


def test_space_of_an_earlier_boot_is_refused(home: Path) -> None:
    with Space.create("pattern", "16MiB") as space:
        base, reserve = space.describe()["base"] + (256 << 30), space.describe()["reserve"]
    (home / "shelf").mkdir(mode=0o700)
    _core.Core.create(str(home / "shelf"), "shelf", "an-earlier-boot", "", 16 << 20, base, reserve, 4096, 0o600)
    with pytest.raises(Corrupt, match=r"earlier boot of this machine.*an-earlier-boot.*remove it"):
        Space.open("shelf")
    Space.remove("shelf")


def _work_until_killed(state: State, number: int) -> None:
    space: Space = state["space"]
    for turn in range(1 << 30):
        space.put(f"{number}/{turn % 50}", np.full(2000 * (turn % 5 + 1), turn))
        space.put(None, np.zeros(100_000))
        if turn % 3 == 0:
            space.rename(f"{number}/{turn % 50}", f"{number}/moved")
            space.delete(f"{number}/moved")


@pytest.mark.parametrize("turn", range(3))
def test_space_whose_processes_were_all_killed_is_repaired(home: Path, turn: int) -> None:
    with Space.create("shelf", "64MiB") as space:
        for number in range(100):
            space.put(f"kept/{number}", shelf.pattern(number, 100 * number + 1))
        space.rename("kept/7", "kept/seven")
    del space
    peers = [Peer() for _ in range(2)]
    for number, peer in enumerate(peers):
        peer.call(shelf.open_space)
        peer.call(shelf.hold, "kept/50")
        peer.start(_work_until_killed, number)
    with pytest.raises(Exception, match="no answer"):
        peers[0].finish(0.3 + 0.1 * turn)
    for peer in peers:
        peer.kill()
    for mode in ("r", "rw"):
        with Peer() as reader:
            reader.call(shelf.open_space, "shelf", mode)
            assert len([name for name in reader.call(shelf.names) if name.startswith("kept/")]) == 100
    with Space.open("shelf") as again:
        for number in range(100):
            name = "kept/seven" if number == 7 else f"kept/{number}"
            assert np.array_equal(again[name].numpy(), shelf.pattern(number, 100 * number + 1))
        for entry in again.list():
            if not entry.name.startswith("kept/"):
                view = again[entry.name].numpy()
                assert (view == view[0]).all()
        assert shelf.problems(again) == shelf.SOUND


def test_maker_that_was_killed_leaves_nothing_in_the_way(home: Path) -> None:
    (home / ".new-1-shelf").mkdir()
    (home / ".new-1-shelf" / "control").write_bytes(b"half")
    (home / ".gone-1-shelf").mkdir()
    with Space.create("shelf", "16MiB"):
        assert sorted(path.name for path in home.iterdir()) == [".lock", "shelf"]


def test_process_that_dies_in_a_test_is_noticed(peer: Peer) -> None:
    peer.start(_die)
    with pytest.raises(Died) as death:
        peer.finish()
    assert death.value.code == 7


def _die(state: State) -> None:
    os._exit(7)


def test_a_process_without_standard_streams_prints_into_no_file_of_a_space(home: Path, tmp_path: Path) -> None:
    program = f"""
import os
import numpy as np
import openshelf as osf
from openshelf._files import write_own
for number in range(3):
    os.close(number)
space = osf.Space.create("closed", dram="4MiB")
space.put("kept", np.zeros(1 << 16, np.uint8))
write_own({str(tmp_path / "ours")!r}, b"ours")
ours = [number for number in range(3) if os.path.exists(f"/proc/self/fd/{{number}}")
        and os.readlink(f"/proc/self/fd/{{number}}").endswith(("control", "members", "data", "ours"))]
for number in range(3):
    try:
        os.write(number, b"printed " * 100)
    except OSError:
        pass
os._exit(len(ours))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
    with Space.open("closed") as space:
        assert not space["kept"].numpy().any()
        space.check()
