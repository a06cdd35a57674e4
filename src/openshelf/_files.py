"""Opening files by name, where somebody else may have been first.

Whoever can write a folder can put a link, a pipe or a file of theirs where ours is expected. So every file that
Openshelf keeps is opened here (native code: native/base/trusted.cpp). It is looked at after it was opened, not
before: it must be a regular file of this user or of root, with one name, that nobody else can write. What is wrong
with it is said, and nothing of it was read or changed. Files that a caller names as input or output are the caller's
to judge.

A file or folder also serves as a lock (`alone`). The kernel releases it when its holder dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from openshelf.errors import BadInput, NotPermitted

_REMEDY = "remove it if you did not put it there, or use another path"
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"), (stat.S_ISBLK, "a device"), (stat.S_ISCHR, "a device"),
)  # fmt: skip


def given_path(path: str | os.PathLike[str], what: str) -> Path:
    """A path as a caller gives it, absolute; `~` is the user's home. BadInput says what was to be a path."""
    try:
        text = os.fsdecode(path)
        if not text.encode() or "\0" in text:
            raise ValueError
        found = Path(text).expanduser().absolute()
    except (TypeError, ValueError):
        raise BadInput(f"{what} is a path, got {path!r}") from None
    except RuntimeError as error:
        raise BadInput(f"{what}={text!r}: {error}") from None
    if any(len(part.encode()) > 255 for part in found.parts):
        raise BadInput(f"{what}={text[:80]!r}... is too long: a name in a path has at most 255 bytes")
    return found


def open_own(
    path: str | os.PathLike[str],
    flags: int = os.O_RDONLY,
    mode: int = 0o600,
    *,
    secret: bool = False,
    folder: int | None = None,
) -> int:
    """A descriptor of a file that only this user can have written; NotPermitted says what is wrong with any other.

    `secret`: nobody else may read it either. `folder`: a descriptor that a relative path begins at. Other errors are
    the system's: FileNotFoundError, FileExistsError for O_EXCL.
    """
    # Truncated below, when it is known whose it is. Not blocking: a pipe would hang us before we see that it is one.
    safe = flags & ~os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        handle = _past_streams(os.open(path, safe, mode, dir_fd=folder))
    except OSError as error:
        # A link, a directory, a socket or a pipe without a reader: each has an error of its own, none of which says so.
        found = ""
        with contextlib.suppress(OSError):
            found = _kind(os.stat(path, dir_fd=folder, follow_symlinks=False))
        if found and not isinstance(error, FileExistsError):
            raise NotPermitted(f"{os.fspath(path)!r} is {found}, expected a regular file; {_REMEDY}") from None
        raise
    try:
        check_own(handle, path, secret=secret)
        os.set_blocking(handle, True)  # io_uring would not wait for the disk otherwise
        if flags & os.O_TRUNC:
            os.ftruncate(handle, 0)
    except BaseException:
        os.close(handle)
        raise
    return handle


def check_own(handle: int, path: str | os.PathLike[str], *, secret: bool = False) -> None:
    """That an open file is this user's and nobody else's; `path` for the message."""
    status = os.fstat(handle)
    wrong = _kind(status)
    wrong = f"is {wrong}, expected a regular file" if wrong else _wrong(status, 0o077 if secret else 0o022)
    if not wrong and status.st_nlink > 1:
        wrong = f"has {status.st_nlink} names, expected one"
    if wrong:
        raise NotPermitted(f"{os.fspath(path)!r} {wrong}; {_REMEDY}")


def open_folder(path: str | os.PathLike[str]) -> int:
    """A descriptor of a folder that only this user can change; NotPermitted, or the system's error."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except NotADirectoryError:
        found = "is a symbolic link" if os.path.islink(path) else "is not a directory"
        raise NotPermitted(f"{os.fspath(path)!r} {found}, expected a directory of this user; {_REMEDY}") from None
    except PermissionError:
        raise NotPermitted(f"{os.fspath(path)!r} cannot be read by user {os.geteuid()}; {_REMEDY}") from None
    if wrong := _wrong(os.fstat(handle), 0o022):
        os.close(handle)
        raise NotPermitted(f"{os.fspath(path)!r} {wrong}; {_REMEDY}")
    return handle


def read_own(path: str | os.PathLike[str], most: int = -1, *, secret: bool = False) -> bytes:
    """The bytes of a file of this user, at most so many."""
    with os.fdopen(open_own(path, secret=secret), "rb") as file:
        return file.read(most)


def write_own(path: str | os.PathLike[str], data: bytes, mode: int = 0o600) -> None:
    """Makes a file, whole or not at all, in place of one of that name: never through a link that is there."""
    where = Path(path)
    unfinished = where.with_name(f".{where.name}.{secrets.token_hex(8)}")  # a name that nobody can be waiting at
    handle = open_own(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(unfinished, where)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


@contextlib.contextmanager
def alone(path: str | os.PathLike[str]) -> Iterator[None]:
    """Runs the block while no other process is in such a block for this path; the file or folder must exist."""
    # Nothing is read or written, so it may be anybody's; a pipe of that name must not hang us.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def mount_of(path: Path) -> tuple[str, str]:
    """File system type and options of where a path is."""
    best, kind, options = "", "unknown", ""
    resolved = str(path.resolve())
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, fs, flags = line.split()[:4]
        inside = resolved == point or resolved.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind, options = point, fs, flags
    return kind, options


def _past_streams(handle: int) -> int:
    """A process whose standard streams are closed would get their numbers, and print into the file."""
    if handle > 2:
        return handle
    try:
        return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(handle)


def _kind(status: os.stat_result) -> str:
    """What it is, if it is no regular file."""
    return next((name for test, name in _KINDS if test(status.st_mode)), "")


def _wrong(status: os.stat_result, forbidden: int) -> str:
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {status.st_uid}, expected {os.geteuid()}"
    if status.st_mode & forbidden:
        verb = "written" if status.st_mode & forbidden & 0o022 else "read"
        return f"can be {verb} by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""
