"""Plans, and measured rates, on disk, in a folder that only its owner may read: a file each, by a hash of the question.

    {"asked": {"program": key, "budget": bytes, "rates": {...}, "dram": bytes}, "sum": SHA-256 of the next line}
    the plan, as Plan.to_plain gives it

A file that cannot be used, whatever the reason, is a plan that is not there: it is said, and made anew.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from openshelf._files import read_own, write_own
from openshelf.errors import BadInput
from openshelf.offload._files import cache_folder, private_folder

Found = TypeVar("Found")
MOST = 256  # files; the oldest go
LONGEST = 256 << 20  # bytes of one


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
