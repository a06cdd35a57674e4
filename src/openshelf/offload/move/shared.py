"""Shared: a packed file's bytes once in this host's memory, for any number of processes that run the model.

They are an array of a Space whose name is made of the packed file's key. Who comes first reads the file, and others
wait for it; later ones only open the space. The last to go takes it away. If the last was killed, it stays until the
next that shares anything finds nobody in it.
"""

from __future__ import annotations

import os
import time
import weakref
from contextlib import nullcontext
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from openshelf._core import SECTOR, Streamer
from openshelf._files import alone
from openshelf.errors import BadAddress, BadInput, Closed, UnknownName
from openshelf.offload.weights.format import PackedStorage
from openshelf.offload.weights.packed import Packed
from openshelf.space import Space, spaces

_PREFIX = "offload-"
_ARRAY = "weights"
_LEAST = 1 << 20  # an array of this size begins with a page
_BESIDES = 16 << 20  # room of the space for what is not the array
_DEBRIS_S = 60.0  # a space that nobody has open and that is younger may be just being made


class Shared:
    """Weights in memory, read-only. A view stays valid as long as it is held, after close() too."""

    def __init__(self, packed: Packed) -> None:
        if not packed.named:
            raise BadInput(f"{packed.path} has no name: only a packed file that others can open can be shared")
        self.packed = packed
        self.name = _PREFIX + packed.key.hex()[:24]
        with alone(packed.path):
            _clear_debris(self.name)
            self._space = _open(self.name, packed)
        self._bytes: np.ndarray[Any, np.dtype[np.uint8]] | None = self._space[_ARRAY].numpy().view()
        self._bytes.flags.writeable = False  # who filled it could write
        self._close = weakref.finalize(self, _leave, self._space, packed)

    @property
    def bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The data of the packed file, from its first storage on."""
        if self._bytes is None:
            raise Closed(f"these shared weights of {self.packed.path} were closed")
        return self._bytes

    def address(self, storage: PackedStorage) -> int:
        return int(self.bytes.ctypes.data) + storage.at - self.packed.begins

    def close(self) -> None:
        """Forgets the weights; who is the last takes the memory away, once no view is left."""
        self._bytes = None
        self._close()


def _open(name: str, packed: Packed) -> Space:
    """For reading; made and filled first, if nobody did."""
    try:
        there = Space.open(name, "r")
        if _ARRAY in there:
            return there
        there.close()
        Space.remove(name)  # its maker was killed before it was whole
    except UnknownName:
        pass
    nbytes = max(_LEAST, packed.nbytes - packed.begins)
    space = Space.create(name, nbytes + _BESIDES)
    try:
        with space.new(_ARRAY, nbytes, "uint8") as array:
            memory = array.numpy()
            if memory.ctypes.data % SECTOR:
                raise BadAddress(f"the array of shared weights begins at {memory.ctypes.data:#x}, expected a page")
            streamer = Streamer(memory, memory.ctypes.data, nbytes)
            tickets = [
                streamer.read(packed.file, one.at, one.at - packed.begins, one.nbytes, one.name, one.check)
                for one in packed.storages
                if one.nbytes
            ]
            streamer.close()
            for ticket in tickets:
                ticket.wait()
    except BaseException:
        Space.remove(name)
        raise
    return space


_here: WeakValueDictionary[bytes, Shared] = WeakValueDictionary()  # a process opens a space once


def shared_of(packed: Packed) -> Shared:
    """The shared weights of a packed file, the same for all of this process that want them."""
    found = _here.get(packed.key)
    if found is None:
        found = _here[packed.key] = Shared(packed)
    return found


def _leave(space: Space, packed: Packed) -> None:
    name = space.name
    with alone(packed.path) if os.path.exists(packed.path) else nullcontext():  # without the file nobody else can come
        last = Space.members(name) <= 1
        space.close()
        if last:
            Space.remove(name)


def _clear_debris(own: str) -> None:
    old = time.time_ns() - int(_DEBRIS_S * 1e9)
    for there in spaces():
        name = str(there["name"])
        if name.startswith(_PREFIX) and name != own and there.get("members") == 0 and there["created_ns"] < old:
            Space.remove(name)
