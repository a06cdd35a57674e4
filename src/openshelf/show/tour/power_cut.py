"""A durable space whose machine goes: its processes are killed, its directory in memory is deleted; then it is back."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from openshelf._files import mount_of
from openshelf.errors import NoRoom
from openshelf.show.tour.workers import start
from openshelf.space import Space, format_size, spaces, tiers_of

_DRAM, _FLASH, _BYTES = "64MiB", "256MiB", 48 << 20
_ROOM = 1 << 30  # of a disk, for all that this chapter writes


@contextlib.contextmanager
def disk_directory() -> Iterator[Path]:
    """A directory for flash files: of the user, on a disk if one of the usual folders is on one."""
    folders = [Path(folder) for folder in (tempfile.gettempdir(), Path.home(), "/var/tmp")]
    there = [folder for folder in folders if folder.is_dir() and os.access(folder, os.W_OK)]
    roomy = [folder for folder in there if shutil.disk_usage(folder).free > _ROOM]
    if not roomy:
        raise NoRoom(f"{', '.join(map(str, folders))}: none has {format_size(_ROOM)} free; set TMPDIR to one that has")
    on_disk = [folder for folder in roomy if mount_of(folder)[0] not in ("tmpfs", "ramfs")]
    with tempfile.TemporaryDirectory(prefix="openshelf-tour-", dir=(on_disk or roomy)[0]) as path:
        yield Path(path)


def _content() -> Any:
    return np.random.default_rng(5).integers(0, 256, _BYTES, np.uint8)


def _create(name: str, flash: str) -> Space:
    return Space.create(name, dram=_DRAM, flash=flash, durable=True, exist_ok=True)


def _worker(name: str, flash: str, pipe: Connection) -> None:
    """Puts, flushes, puts more, and waits for its end."""
    space = _create(name, flash)
    space.put("flushed", _content())
    started = time.perf_counter()
    space.flush().wait()
    pipe.send(time.perf_counter() - started)
    space.put("later", np.ones(1 << 20, np.uint8))
    pipe.send(None)
    pipe.recv()


def power_cut(name: str, directory: Path) -> dict[str, Any]:
    """What is there afterwards. The space is gone in the end."""
    flash = f"{directory / 'durable'}:{_FLASH}"
    process, ours = start(_worker, name, flash)
    try:
        flush_s = ours.recv()
        ours.recv()
        process.kill()
        process.join()
        os.kill(int(tiers_of(name)[name]["keeper"]), signal.SIGKILL)
        (path,) = (space["path"] for space in spaces() if space["name"] == name)
        shutil.rmtree(path)
        started = time.perf_counter()
        with _create(name, flash) as space:
            restore_s = time.perf_counter() - started
            equal = bool(np.array_equal(space["flushed"].numpy(), _content()))
            later = "later" in space
    finally:
        process.kill()
        if name in tiers_of():
            Space.remove(name)
    return {"bytes": _BYTES, "flush_s": flush_s, "restore_s": restore_s, "equal": equal, "later_gone": not later}
