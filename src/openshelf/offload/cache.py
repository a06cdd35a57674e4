"""The cache: a folder of this user for packed files and scratch, and in it the plans and rates that were found.

A plan, or the rates of a day, is a file that only its owner may read, by a hash of the question:

    {"asked": {"program": key, "budget": bytes, "rates": {...}, "dram": bytes}, "sum": SHA-256 of the next line}
    the plan, as Plan.to_plain gives it

A file that cannot be used, whatever the reason, is a plan that is not there: it is said, and made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from openshelf._files import open_folder, read_own, write_own
from openshelf.errors import BadInput, FlashFailed, NotPermitted

Found = TypeVar("Found")
MOST = 256  # files; the oldest go
LONGEST = 256 << 20  # bytes of one


def cache_folder() -> Path:
    """Where packed files and scratch go if nobody says otherwise: OPENSHELF_CACHE, or openshelf in the user's cache."""
    chosen = os.environ.get("OPENSHELF_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openshelf"


def private_folder(folder: Path) -> Path:
    """Made if it is not there. The cache, and what is in it, must be ours: NotPermitted."""
    cache = cache_folder()
    if folder != cache and folder.is_relative_to(cache):
        private_folder(folder.parent)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise FlashFailed(
            f"making the folder {folder} failed: {error}; give another one as folder=, or for all as OPENSHELF_CACHE"
        ) from error
    if folder.is_relative_to(cache):
        _need_own(folder)
    return folder


def _need_own(folder: Path) -> None:
    """NotPermitted if somebody else can put files into our cache. A link to a folder of ours is ours, too."""
    status = folder.lstat()
    if status.st_uid not in (os.geteuid(), 0):
        raise NotPermitted(
            f"the cache {str(folder)!r} belongs to user {status.st_uid}, expected {os.geteuid()}: what is in it cannot "
            "be trusted; set OPENSHELF_CACHE to a folder of your own"
        )
    os.close(open_folder(os.path.realpath(folder)))


def folder() -> Path:
    return cache_folder() / "plans"


def load_plain(asked: dict[str, Any], read: Callable[[dict[str, Any]], Found]) -> Found | None:
    """What `read` makes of the plan that was kept for this; None if there is none, or none that can be used."""
    path = _path(asked)
    try:
        path.lstat()  # FileNotFoundError: nothing is made for a question that was never asked
        private_folder(path.parent)
        head, _, text = read_own(path, LONGEST).partition(b"\n")
        if json.loads(head) != {"asked": asked, "sum": hashlib.sha256(text).hexdigest()}:
            raise BadInput("its checksum is wrong, or it answers another question")
        return read(json.loads(text))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:  # BadInput and JSON's errors are ValueErrors
        warnings.warn(f"the kept plan {str(path)!r} cannot be used and is made anew: {error}", stacklevel=3)
        return None


def save_plain(asked: dict[str, Any], plain: dict[str, Any]) -> None:
    """Keep a plan, whole or not at all. A disk that is full or read-only costs the next caller time, nothing else."""
    path = _path(asked)
    try:
        private_folder(path.parent)
        text = json.dumps(plain, separators=(",", ":")).encode()
        head = json.dumps({"asked": asked, "sum": hashlib.sha256(text).hexdigest()}).encode()
        write_own(path, head + b"\n" + text)
        for old in sorted(path.parent.glob("*.json"), key=lambda one: one.lstat().st_mtime)[:-MOST]:
            old.unlink()
    except OSError as error:
        warnings.warn(f"the plan could not be kept as {str(path)!r}: {error}", stacklevel=3)


def _path(asked: dict[str, Any]) -> Path:
    return folder() / f"{hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]}.json"
