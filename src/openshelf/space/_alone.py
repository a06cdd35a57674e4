"""One process at a time, by a lock on a file or folder that is there anyway: the kernel drops it with who dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def alone(path: str | os.PathLike[str]) -> Iterator[None]:
    """While no other process is in such a block for this path."""
    # Nothing is read or written, so it may be anybody's; a pipe of that name must not hang us.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
