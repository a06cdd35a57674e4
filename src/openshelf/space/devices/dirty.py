"""Which ranges of arrays have newer bytes on a device, in this process.

Calls that hand out an array's bytes (`numpy()`, `get`, ...) look at `dirty` first. The one that must be fast,
`numpy()`, is told by native code to look, so that it costs nothing as long as no replica is dirty. A load or store
through a view that somebody has already is not seen here; whoever sees it (the machinery of faults) calls `write_back`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING

from openshelf import _core
from openshelf.errors import OpenshelfError

if TYPE_CHECKING:
    from openshelf.space.devices.device import Device
    from openshelf.space.devices.replica import Replica

# By id, in the order in which they became dirty: first address, end, and the replica, which is not kept alive.
dirty: dict[int, tuple[int, int, weakref.ReferenceType[Replica]]] = {}
_at_exit = False
_changing = threading.RLock()  # met again by the same thread when a collection drops a replica


def add(replica: Replica, address: int, nbytes: int) -> None:
    global _at_exit
    with _changing:
        dirty[id(replica)] = (address, address + nbytes, weakref.ref(replica))
        _core.check_views(True)
    if not _at_exit:
        # Not when this is imported: what is registered later runs earlier, and devices end when the program does.
        atexit.register(_write_back_all)
        _at_exit = True


def discard(replica: Replica) -> None:
    with _changing:
        dirty.pop(id(replica), None)
        _core.check_views(bool(dirty))


def write_back(address: int, nbytes: int) -> None:
    """Returns when no replica in this process has newer bytes of the range.

    The hook for faults. It needs the interpreter's lock, which a thread that faults inside numpy holds: who resolves
    that fault must not wait for this, but let that thread go on elsewhere or copy natively.
    """
    end = address + nbytes
    for first, last, reference in list(dirty.values()):
        if first < end and address < last and (replica := reference()) is not None:
            replica.store().wait()


def write_back_of(device: Device) -> None:
    """The same for all replicas on a device."""
    for _, _, reference in list(dirty.values()):
        if (replica := reference()) is not None and replica.device is device:
            replica.store().wait()


def _write_back_all() -> None:
    for _, _, reference in list(dirty.values()):
        with contextlib.suppress(OpenshelfError):  # of a device that was closed
            if (replica := reference()) is not None:
                replica.store().wait()


def _forget_all() -> None:
    global _changing
    _changing = threading.RLock()  # a thread of the parent's may hold the other
    dirty.clear()
    _core.check_views(False)


os.register_at_fork(after_in_child=_forget_all)  # they are the parent's, which will write them back
