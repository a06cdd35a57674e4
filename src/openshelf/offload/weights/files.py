"""Files that storages live in, opened for direct transfers. Those of one run have no name: nothing is left of it.

Direct: past the page cache, which would hold a second copy of what is streamed, and be slower.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from pathlib import Path

from openshelf._core import SECTOR, StreamFile
from openshelf._files import open_own
from openshelf.errors import FlashFailed, NoRoom
from openshelf.offload.cache import private_folder
from openshelf.space import format_size

_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)  # file systems, and kernels, that do not have it


def sectors(nbytes: int) -> int:
    """Rounded up to what direct transfers are made of."""
    return -(-nbytes // SECTOR) * SECTOR


def open_direct(path: Path | str, flags: int) -> int:
    """A descriptor past the page cache, or through it on a file system that cannot.

    NotPermitted for a file that somebody else may have written, or put there.
    """
    opened = os.open if flags & os.O_TMPFILE == os.O_TMPFILE else open_own  # what has no name is nobody else's
    try:
        return opened(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return opened(path, flags | os.O_CLOEXEC, 0o600)


def nameless(folder: Path) -> int:
    """A new file of mode 0600 without a name: it goes with the last descriptor of it, whoever is killed."""
    name = uuid.uuid4().hex
    descriptor = unpublished(folder, name)
    if os.fstat(descriptor).st_nlink:
        _passing(folder, name).unlink()
    return descriptor


def unpublished(folder: Path, name: str) -> int:
    """A new file that publish() will give this name; until then it has none, where the file system can do that."""
    try:
        return open_direct(folder, os.O_RDWR | os.O_TMPFILE)
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise FlashFailed(f"making a file in {folder} failed: {error}") from error
    discard(folder, name)
    return open_direct(_passing(folder, name), os.O_RDWR | os.O_CREAT | os.O_EXCL)


def discard(folder: Path, name: str) -> None:
    """What is left of a file that was not published."""
    _passing(folder, name).unlink(missing_ok=True)


def publish(descriptor: int, folder: Path, name: str) -> None:
    """Gives a file its name, in place of another that had it: whole and on the disk, or not at all."""
    os.fsync(descriptor)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not os.fstat(descriptor).st_nlink:
            discard(folder, name)  # of one that was killed here
            # Only with a folder's descriptor does Python follow the link in /proc.
            os.link(f"/proc/self/fd/{descriptor}", _passing(folder, name).name, dst_dir_fd=directory)
        os.rename(_passing(folder, name).name, name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
    finally:
        os.close(directory)


def _passing(folder: Path, name: str) -> Path:
    return folder / f".{name}.new"


def need_room(folder: Path, nbytes: int, what: str) -> None:
    """NoRoom, before anything is written, if the disk cannot hold so much more."""
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise NoRoom(
            f"{what} needs {format_size(nbytes)} on flash, and {folder} has {format_size(free)} free; "
            "make room there, or name a folder on another disk"
        )


class Scratch:
    """A nameless file that grows by rooms, for what a run changes or makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = private_folder(folder)
        self.file = StreamFile(nameless(folder), f"the scratch file in {folder}")
        self.nbytes = 0

    def room(self, nbytes: int, what: str) -> int:
        """A place for so many bytes, which the disk has from now on."""
        need_room(self.folder, sectors(nbytes), what)
        place, end = self.nbytes, self.nbytes + sectors(nbytes)
        if end > place:
            self.file.allocate(end)
        self.nbytes = end
        return place
