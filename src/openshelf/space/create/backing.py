"""What the bytes of a space are kept in: a new file in a directory, or a DAX device; its pages and its room."""

from __future__ import annotations

import os
from pathlib import Path

from openshelf import _files
from openshelf._sizes import format_size
from openshelf.errors import BadInput, NameTaken, NoRoom
from openshelf.space.create import registry

SMALL_PAGE = 4096
_HUGE = Path("/sys/kernel/mm/hugepages")


def backing_path(name: str, backing: str | os.PathLike[str]) -> Path:
    """Without links on the way to it: one that is met later is new."""
    path = _files.given_path(backing, "backing")
    if registry.is_dax(path):
        return path.resolve()
    if path.is_dir():
        path = path / f"openshelf-{os.getuid()}-{name}.data"
    return path.parent.resolve() / path.name


def new_backing(name: str, size: int, backing: str | os.PathLike[str], flash: bool) -> Path:
    """The file or device to keep `size` bytes in: a new file, or a DAX device, and nothing else."""
    path = backing_path(name, backing)
    device = registry.is_dax(path)
    if not device and (path.exists() or path.is_symlink()):
        raise NameTaken(f"the backing {path} exists already; give a directory, a new file, or a /dev/dax device")
    if not path.parent.is_dir():
        raise BadInput(f"the backing {path} cannot be made: there is no directory {path.parent}")
    if flash and page_size_of(path) > SMALL_PAGE:
        raise BadInput(
            f"flash= with the backing {path}: a flash tier moves pieces of {format_size(64 << 10)}, and pages there "
            f"have {format_size(page_size_of(path))}; leave out backing=, or give a directory of a tmpfs"
        )
    check_room(path, size)
    return path


def page_size_of(path: Path) -> int:
    """The page size that a backing is made of."""
    if registry.is_dax(path):
        return _number(registry.DAX_DEVICES / path.name / "align")
    where = path if path.exists() else path.parent
    return os.statvfs(where).f_bsize if _files.mount_of(where)[0] == "hugetlbfs" else SMALL_PAGE


def check_room(path: Path, wanted: int) -> None:
    """NoRoom if the file or device at `path` cannot have so many bytes more."""
    if registry.is_dax(path):
        _check_device(path, wanted)
    elif _files.mount_of(path.parent)[0] == "hugetlbfs":
        _check_huge(path.parent, wanted)
    else:
        registry.check_room(path.parent, wanted)


def _check_device(path: Path, wanted: int) -> None:
    page = page_size_of(path)
    most = (_number(registry.DAX_DEVICES / path.name / "size") // page - 1) * page
    if -(-wanted // page) * page > most:
        raise NoRoom(
            f"the device {path} has room for {format_size(most)} ({most} bytes; its last page says whose it is), the "
            f"space wants {format_size(wanted)}; ask for less dram, or give another backing"
        )


def _check_huge(mount: Path, wanted: int) -> None:
    status = os.statvfs(mount)
    page = status.f_bsize
    # A mount without a limit of its own says nothing of what is free: the kernel's pool is what there is.
    pages = status.f_bavail if status.f_blocks else _number(_HUGE / f"hugepages-{page >> 10}kB" / "free_hugepages")
    if pages * page < wanted:
        raise NoRoom(
            f"{mount} has {pages} huge pages of {format_size(page)} free, the space wants {format_size(wanted)}; ask "
            f"for less dram, or let the machine have more: {_HUGE}/hugepages-{page >> 10}kB/nr_hugepages"
        )


def _number(path: Path) -> int:
    return int(path.read_text())
