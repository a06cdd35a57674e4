"""Temporary spaces: they go with their last user.

A marker in its directory says that a space is temporary. All handles of it in a process share one Stake. When the last
of them is closed or forgotten, or the process ends in order, the space is removed if no other process has it open.
A process that is killed cannot do that: then the next process that makes a space finds nobody in it, and removes it.

Whoever opens such a space, leaves it or sweeps holds the registry's lock: so nobody opens what is just removed.
"""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import weakref
from pathlib import Path

from openshelf import _core
from openshelf.errors import Closed, OpenshelfError, UnknownName
from openshelf.space.create import registry

_AFTER_CHILDREN = -100  # multiprocessing waits for its children before it runs what has a negative priority


class Stake:
    """Of a process, on a temporary space."""

    def __init__(self, core: _core.Core, path: Path) -> None:
        self._core: _core.Core | None = core
        self._path = path

    def end(self) -> None:
        """Removes the space if nobody else has it open; a second call does nothing."""
        core, self._core = self._core, None
        if core is not None and not _leave(core, self._path):
            _left[self._path] = bool(core.stats()["read_only"])

    def __del__(self) -> None:
        self.end()


_stakes: weakref.WeakValueDictionary[tuple[int, int], Stake] = weakref.WeakValueDictionary()
_left: dict[Path, bool] = {}  # to others, perhaps to children of this process, which may be ended with it


def stake_of(core: _core.Core, path: Path) -> Stake | None:
    """What every handle of the space holds; None if the space is not temporary. Under the registry's lock."""
    if not registry.is_temporary(path):
        return None
    status = (path / registry.TEMPORARY).stat()
    key = (status.st_dev, status.st_ino)
    stake = _stakes.get(key)
    if stake is None:
        _arm()
        stake = _stakes[key] = Stake(core, path)
    return stake


def check_used(name: object, path: Path) -> None:
    """UnknownName if the space was temporary and its last user has gone. Under the registry's lock."""
    if registry.is_temporary(path) and _core.live_members(str(path)) == 0:
        raise UnknownName(f"there is no space {name!r} any more: it was temporary, and its last user has gone")


def _leave(core: _core.Core, path: Path) -> bool:
    """Whether the space is gone: removed now, or by somebody before."""
    if not path.exists():
        return True
    with registry.locked(path.parent):
        try:
            core.check_usable()
        except Closed:
            return True
        if _core.live_members(str(path)) > 1:  # one is this process, by `core`
            return False
        registry.dispose(path)
    return True


def _leave_all() -> None:
    """At the end of this process, when its children have ended."""
    for stake in list(_stakes.values()):
        stake.end()
    for path, read_only in _left.items():
        with contextlib.suppress(OpenshelfError):  # it is gone, or another has its name
            if registry.is_temporary(path):
                _leave(_core.Core.open(str(path), read_only, registry.boot_id()), path)


def _arm() -> None:
    """Once for each process, whether multiprocessing began it or not."""
    global _armed
    if _armed != os.getpid():
        _armed = os.getpid()
        multiprocessing.util.Finalize(None, _leave_all, exitpriority=_AFTER_CHILDREN)


def _after_fork(_: object = None) -> None:
    global _armed
    _armed = 0
    if _stakes or _left:
        _arm()


_armed = 0
os.register_at_fork(after_in_child=_after_fork)
multiprocessing.util.register_after_fork(Stake, _after_fork)  # its children forget what was armed before
