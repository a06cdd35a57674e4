"""Where spaces are on this host: one private directory per user, one directory per space, one range of addresses each.

The ranges are not written down anywhere but in the spaces' own headers; a lock on the directory's `.lock` file
serialises who looks and adds. `OPENSHELF_DIR` names another directory.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import grp
import os
import re
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from openshelf import _core, _files
from openshelf._sizes import format_size
from openshelf.errors import BadInput, Closed, NoRoom, NotPermitted, OpenshelfError, UnknownName
from openshelf.space.create.shard import range_of

FIRST_BASE = 0x2000_0000_0000  # 32 TiB; up to 48 TiB no loader, stack or heap is met
LAST_BASE = 0x3000_0000_0000
GRAIN = 128 << 30
TEMPORARY = "temporary"  # a file that says so
DAX_DEVICES = Path("/sys/bus/dax/devices")  # what the kernel says of them
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_SHARD = re.compile(_NAME.pattern + r"@[^@/\s]+:[0-9]{1,5}")  # one host's part of a space of several
_SHM_ADVICE = "in a container raise --shm-size, use --ipc=host, or an emptyDir with medium: Memory"


class Header(NamedTuple):
    name: str
    base: int
    reserve: int
    created_ns: int
    page_size: int
    boot_id: str
    backing: str
    made: int  # bytes that it had room for when it was made


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def root(create: bool = False) -> Path:
    """The directory of this user's spaces; refused if somebody else could have put it there."""
    path, handle = _open_root(create)
    if handle is not None:
        os.close(handle)
    return path


def _open_root(create: bool, path: Path | None = None) -> tuple[Path, int | None]:
    if path is None:
        chosen = os.environ.get("OPENSHELF_DIR") or f"/dev/shm/openshelf-{os.geteuid()}"
        path = _files.given_path(chosen, "OPENSHELF_DIR")
    if create:
        try:
            path.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            pass
        except OSError as error:
            raise NotPermitted(
                f"the directory for spaces, {path}, cannot be made: {error.strerror}; make it, or set OPENSHELF_DIR to "
                "a directory in memory that is yours and can be written"
            ) from None
    try:
        return path, _files.open_folder(path)
    except FileNotFoundError:
        return path, None
    except NotPermitted as error:
        raise NotPermitted(f"no directory for spaces: {error}; or set OPENSHELF_DIR to one of yours") from None


@contextlib.contextmanager
def locked(root: Path | None = None) -> Iterator[Path]:
    """The root, this user's or a given one, locked against other makers and removers of spaces."""
    path, folder = _open_root(create=True, path=root)
    assert folder is not None
    try:
        handle = _files.open_own(".lock", os.O_RDWR | os.O_CREAT, folder=folder)
    except NotPermitted as error:
        raise NotPermitted(f"in {path}: {error}") from None
    except OSError as error:
        raise NotPermitted(
            f"user {os.geteuid()} may not write {path} ({error.strerror}); set OPENSHELF_DIR to a directory of yours"
        ) from None
    finally:
        os.close(folder)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield path
    finally:
        os.close(handle)


def check_name(name: str) -> str:
    if not _NAME.fullmatch(_text(name)):
        raise BadInput(
            f"{name!r} is not a name for a space; expected 1 to 64 of a-z, A-Z, 0-9, '_', '-', '.', the first a "
            "letter, a digit or '_'"
        )
    return name


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise BadInput(f"the name of a space is text, got {name!r}")
    return name


def names(shards: bool = False) -> list[str]:
    """Directories of spaces; with `shards`, also of this host's parts of spaces of several hosts."""
    path = root()
    if not path.exists():
        return []
    found = (p.name for p in path.iterdir() if p.is_dir())
    return sorted(name for name in found if _NAME.fullmatch(name) or (shards and _SHARD.fullmatch(name)))


def url_of(shard: str) -> str | None:
    """The URL of the space that a directory of this name belongs to; None if it is a space of this host alone."""
    if not _SHARD.fullmatch(shard):
        return None
    space, _, host = shard.partition("@")
    return f"openshelf://{host}/{space}"


def find(name: str | os.PathLike[str]) -> Path:
    """The directory of a space given by name, or by path for one that another user shares."""
    by_path = isinstance(name, os.PathLike) or (isinstance(name, str) and ("/" in name or name.startswith("~")))
    path = _files.given_path(name, "a space") if by_path else Path(_text(name))
    if url := url_of(path.name):
        raise BadInput(f"{name!r} is one host's part of a space of several hosts: use its URL, {url}")
    if not by_path:
        directory = root() / check_name(str(name))
        parts = [shard for shard in names(shards=True) if shard.startswith(f"{name}@")]
        if parts and not directory.exists():
            urls = " or ".join(str(url_of(shard)) for shard in parts)
            raise UnknownName(
                f"there is no space {name!r} of this host alone; of one over several hosts it has a part: {urls}"
            )
        return find_directory(str(path), directory)
    try:
        # Links in a path that a caller gives are the caller's; what they lead to is looked at when it is opened.
        found = find_directory(str(name), path.resolve())
        if not os.path.lexists(found / "control"):
            raise UnknownName(f"there is no space at {found}: that directory has none of the files of one")
        return found
    except (OSError, RuntimeError) as error:
        if isinstance(error, OpenshelfError):
            raise
        raise BadInput(f"{name!r} is no path to a space: {error}") from None


def find_directory(name: str, path: Path) -> Path:
    """The directory, if it is there and may be entered."""
    try:
        os.stat(f"{path}/.")  # the dot needs permission to enter
    except PermissionError as error:
        raise NotPermitted(
            f"user {os.getuid()} may not open the space at {path}; its owner can share it: group="
        ) from error
    except (FileNotFoundError, NotADirectoryError):
        near = difflib.get_close_matches(name, names(), 3)
        hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
        raise UnknownName(
            f"there is no space {name!r} at {path}{hint or ';'} Space.create() makes one; `openshelf ls` lists them"
        ) from None
    return path


def header(path: Path) -> Header:
    return Header(*_core.read_header(str(path)))


def sizes(path: Path, there: Header) -> dict[str, int]:
    """`bytes` that a space has room for, and `memory_bytes` that its files take now."""
    data, device, memory = path / there.backing, is_dax(path / there.backing), 0  # the data may be elsewhere
    for file in {*path.iterdir()} | (set() if device else {data}):
        with contextlib.suppress(FileNotFoundError):  # a keeper has just ended
            memory += file.lstat().st_blocks * 512
    return {"bytes": there.made if device else data.stat().st_size, "memory_bytes": memory}


def free_bases(path: Path, reserve: int) -> Iterator[int]:
    """Bases that no space of this user has, lowest first."""
    taken = taken_ranges(path)
    for base in range(FIRST_BASE, LAST_BASE - reserve + 1, GRAIN):
        if all(base + reserve <= start or base >= end for start, end in taken):
            yield base


def _entries(path: Path) -> list[Path]:
    """What may be of spaces: a name that is no text is none that native code could look at, and not ours."""
    return [entry for entry in path.iterdir() if not any("\ud800" <= letter <= "\udfff" for letter in entry.name)]


def clear_debris(path: Path) -> None:
    """What a killed maker, remover or last user left. Under the registry's lock."""
    for entry in _entries(path):
        if entry.name.startswith(".gone-"):
            _finish(entry)
        elif entry.name.startswith(".new-"):
            _erase(entry)
        elif is_temporary(entry):
            with contextlib.suppress(OpenshelfError):  # a damaged one, or one with a user's file in it, stays
                if _core.live_members(str(entry)) == 0:
                    dispose(entry)
    for link in path.glob(".backing-*"):
        if not (path / link.name.removeprefix(".backing-")).exists():
            drop_backing(link)


_FILES = re.compile(
    "control|members|data|backing|temporary"
    "|shard|units|shadow|escrow|cache-[0-9]+|hosts([.][0-9]+)?"  # of a shard
    "|tiers|keeper[.](lock|sock|log|start)"  # of a flash tier
)


def _erase(directory: Path) -> None:
    """Exactly the files of a space, never a tree: a mistaken path must cost nothing. Nor does one that leads to another
    folder now: it is the folder that is held, not its path."""
    folder = _files.open_folder(directory)
    try:
        inside = os.listdir(folder)
        if "tiers" in inside:
            with contextlib.suppress(OpenshelfError):  # a damaged file names no others
                _core.remove_flash(f"/proc/self/fd/{folder}", directory.name.startswith(".new-"))
        if "backing" in inside:
            # A damaged space, or one whose device or file is gone, frees nothing: its label is found to be old later.
            with contextlib.suppress(OpenshelfError):
                _core.release_device(f"/proc/self/fd/{folder}")
        for name in inside:
            if _FILES.fullmatch(name):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
    finally:
        os.close(folder)
    with contextlib.suppress(OSError):  # something of a user's is in it: that stays
        directory.rmdir()


def is_temporary(directory: Path) -> bool:
    """Whether a space goes with its last user."""
    return (directory / TEMPORARY).exists()


def backing_link(path: Path, name: str) -> Path:
    """Where it is written down which file outside was made for a space: beside it, where only the owner can write."""
    return path / f".backing-{name}"


def drop_backing(link: Path) -> None:
    """Takes the file outside away, unless somebody has put a link on the way to it since: that could lead anywhere."""
    if not link.is_symlink():
        return
    if (owner := link.lstat().st_uid) not in (os.geteuid(), 0):
        raise NotPermitted(
            f"the link {link} belongs to user {owner}, expected {os.geteuid()}: nothing is removed for it"
        )
    path = Path(os.readlink(link))
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if os.readlink(f"/proc/self/fd/{folder}") == str(path.parent):
                os.unlink(path.name, dir_fd=folder)
        finally:
            os.close(folder)
    link.unlink()


def taken_ranges(path: Path, besides: str = "") -> list[tuple[int, int]]:
    """Addresses of this user's spaces, those of their other hosts included; without the parts of one space."""
    taken = []
    for directory in _entries(path):
        with contextlib.suppress(OpenshelfError):  # a damaged space keeps no addresses
            if directory.is_dir() and not (besides and directory.name.startswith(f"{besides}@")):
                there = header(directory)
                taken.append(range_of(directory) or (there.base, there.base + there.reserve))
    return taken


def check_room(path: Path, wanted: int) -> None:
    try:
        status = os.statvfs(path)
    except FileNotFoundError:
        raise Closed(f"there is no {path} any more: the space was removed meanwhile") from None
    free = status.f_bavail * status.f_frsize
    if free < wanted:
        raise NoRoom(
            f"{path} has {format_size(free)} free, the space wants {format_size(wanted)}; ask for less dram, "
            f"give another backing, or {_SHM_ADVICE}"
        )


def check_address_limit(span: int) -> None:
    """NoRoom if a space that found no addresses met this process's own limit, and not another mapping."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if limit != resource.RLIM_INFINITY and used + span > limit:
        raise NoRoom(
            f"this process may have {format_size(limit)} of addresses (ulimit -v) and has {format_size(used)}, and the "
            f"space reserves {format_size(span)}: raise that limit, or make the space with a smaller reserve= "
            f"(at least {format_size(_core.SMALLEST_RESERVE)})"
        )


def is_dax(path: Path) -> bool:
    return path.is_char_device() and (DAX_DEVICES / path.name).exists()


def group_number(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, TypeError, ValueError):
        raise BadInput(f"there is no group {group!r} on this host") from None


def share_with(group: str, directory: Path, files: list[Path]) -> None:
    gid = group_number(group)
    try:
        for path in files:
            handle = _files.open_own(path)
            try:
                os.fchown(handle, -1, gid)
                os.fchmod(handle, 0o640 if path.name == "backing" else 0o660)
            finally:
                os.close(handle)
        folder = _files.open_folder(directory)
        try:
            os.fchown(folder, -1, gid)
            os.fchmod(folder, 0o750)  # members open what is there; only the owner says what that is
        finally:
            os.close(folder)
    except PermissionError as error:
        if isinstance(error, NotPermitted):
            raise
        raise NotPermitted(f"user {os.getuid()} may not share with group {group!r}: not a member of it") from error
    parent = _files.open_folder(directory.parent)
    try:
        os.fchmod(parent, stat.S_IMODE(os.fstat(parent).st_mode) | 0o011)  # others may pass through, not look
    finally:
        os.close(parent)


def check_disposable(path: Path) -> None:
    """Refuses, before anything is changed, what dispose() could not do whole."""
    if (owner := path.lstat().st_uid) != os.geteuid():
        raise NotPermitted(f"the space at {path} belongs to user {owner}: only its owner can remove it")
    if not os.access(path.parent, os.W_OK | os.X_OK, effective_ids=True):
        raise NotPermitted(f"user {os.geteuid()} may not change {path.parent}, where the space is")
    if path.parent.resolve() != root().resolve():
        header(path)  # a path from elsewhere must lead to a space: it raises
    inside = list(os.scandir(path))
    own = {one.name for one in inside if _FILES.fullmatch(one.name) and not one.is_dir(follow_symlinks=False)}
    others = sorted({one.name for one in inside} - own)
    if others:
        raise NotPermitted(f"{path} holds files that are not the space's ({', '.join(others)}); move them away first")


def dispose(path: Path) -> None:
    """Takes a space away: at once for newcomers, from the disk as soon as nobody maps it. Under the registry's lock."""
    check_disposable(path)
    gone = path.parent / f".gone-{os.getpid()}-{path.name}"
    path.rename(gone)  # first: if it fails, nothing has happened
    try:
        _finish(gone)
    finally:
        drop_backing(backing_link(path.parent, path.name))


def _finish(gone: Path) -> None:
    """Who has the space open is told; then its files go."""
    try:
        with contextlib.suppress(UnknownName, NotPermitted):  # it may lack the file that says so, or have another there
            _core.mark_removed(str(gone))
    finally:
        _erase(gone)
