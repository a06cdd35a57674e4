"""Replica: a copy of an array's bytes on a device, with its own pointer. The array and its address stay what they are.

Whoever changes the replica says so; from then on it is dirty, and `dirty` has it written back before this process
hands out the array's bytes. Nothing is promised the other way: when the array is written, load() again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from openshelf._dtypes import to_numpy
from openshelf.errors import BadInput, Closed, Mismatch, NotPermitted, OpenshelfError
from openshelf.space.devices import dirty
from openshelf.space.devices.block import Block
from openshelf.space.devices.device import Device
from openshelf.space.devices.stream import Stream
from openshelf.space.transfer import Transfer

if TYPE_CHECKING:
    from openshelf.space.array import Array


class Replica:
    """An array's bytes on a device, made by `array.on(device)`; it holds the array and a block.

    Its memory has anything in it until load(). The copies of one replica run in order, whatever streams they are given
    to. Thread-safe; dropping it is release().
    """

    __slots__ = ("__weakref__", "_block", "_changes", "_last", "_lock", "_own", "_stored", "_storing", "array")

    def __init__(self, array: Array, where: Device | Block) -> None:
        self._block: Block | None = None
        if isinstance(where, Block):
            where.check()
            if where.nbytes != array.nbytes:
                raise Mismatch(f"the array has {array.nbytes} bytes, the block {where.nbytes}; take one of its size")
        elif not isinstance(where, Device):
            raise Mismatch(f"an array can be on a Device, or in a Block of one, not on {where!r}")
        self.array = array
        self._own = isinstance(where, Device)
        self._lock = threading.RLock()
        self._changes = self._stored = 0  # marks of change, and how many of them the array has
        self._storing: tuple[Transfer, int] | None = None
        self._last: Transfer | None = None
        self._block = where.take(array.nbytes) if isinstance(where, Device) else where

    @property
    def block(self) -> Block:
        if self._block is None:
            raise Closed(f"this replica of {self.array!r} was released; make another with .on(device)")
        return self._block

    @property
    def device(self) -> Device:
        return self.block.device

    @property
    def pointer(self) -> int:
        """Of its first byte on the device."""
        return self.block.pointer

    @property
    def state(self) -> str:
        """'dirty': it was changed, and the array does not have that yet. Else 'clean'."""
        with self._lock:
            self._settle()
            return "dirty" if self._dirty else "clean"

    @property
    def _dirty(self) -> bool:
        return self._changes != self._stored

    def load(self, stream: Stream | None = None, *, discard: bool = False) -> Transfer:
        """Begins to copy the array to the device. BadInput if the replica is dirty, unless `discard`."""
        with self._lock:
            self._settle()
            if self._dirty and not discard:
                raise BadInput(f"{self!r} has changes that load() would lose; store() first, or load(discard=True)")
            self._forget_changes()
            dirty.write_back(self.array.address, self.array.nbytes)  # of replicas on other devices
            return self._copy(self.block, self.array._bytes(), stream)

    def store(self, stream: Stream | None = None) -> Transfer:
        """Begins to write the changes back to the array; done at once if there are none."""
        with self._lock:
            self._settle()
            if not self._dirty:
                return Transfer("store", 0)
            if self._storing is not None and self._storing[1] == self._changes:
                return self._storing[0]  # all of it is on its way
            transfer = self._copy(self.array._bytes(), self.block, stream)
            self._storing = transfer, self._changes
            return transfer

    def mark_dirty(self) -> None:
        """Says that the device's bytes are newer than the array's. After writing them, not before."""
        with self._lock:
            self.block.check()
            if not self.array._bytes().flags.writeable:
                raise NotPermitted(f"{self.array!r} cannot be written here, so a change could not be stored")
            self._changes += 1
            dirty.add(self, self.array.address, self.array.nbytes)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Any]:
        """The ndarray, or the tensor where there is no ndarray; dirty when the block ends, also if it raises."""
        try:
            view = self.numpy()
        except Mismatch:  # bfloat16 and its like, or memory that only torch sees
            view = self.torch()
        try:
            yield view
        finally:
            self.mark_dirty()

    def numpy(self) -> np.ndarray[Any, np.dtype[Any]]:
        """The device's memory itself, after what is being copied; mark_dirty() what you write into it."""
        element = self.array.element
        return self._quiet().numpy(to_numpy(element.code, element.descr), self.array.shape)

    def torch(self) -> Any:
        """The same as a tensor on the device."""
        return self._quiet().torch(self.array.dtype, self.array.shape)

    def release(self) -> None:
        """Writes changes back, and gives up the block if it was taken for this replica. Waits for the writing only."""
        with self._lock:
            block = self.block
            self.store().wait()
            self._forget_changes()
            self._block = None
            if self._own and not block.released:
                block.release()

    def _quiet(self) -> Block:
        block = self.block
        if self._last is not None:
            self._last.wait()
        return block

    def _copy(self, target: Any, source: Any, stream: Stream | None) -> Transfer:
        using = self.device if stream is None else stream
        if not isinstance(using, Stream):
            raise Mismatch(f"expected a stream of the device, got {stream!r:.60}")
        if using.device is not self.device:
            raise BadInput(f"the stream is of {using.device!r}, the replica on {self.device!r}")
        if self._last is not None and not self._last.done:
            using.wait_for(self._last)
        self._last = using.copy(target, source)
        return self._last

    def _settle(self) -> None:
        """Notices that a store is done; with the lock held."""
        if self._storing is not None and self._storing[0].done:
            transfer, changes = self._storing
            self._storing = None
            transfer.wait(0)
            self._stored = changes
            if not self._dirty:
                dirty.discard(self)

    def _forget_changes(self) -> None:
        self._stored, self._storing = self._changes, None
        dirty.discard(self)

    def __del__(self) -> None:
        if self._block is not None:
            with contextlib.suppress(OpenshelfError):  # its device is closed, or was left to the parent by a fork
                self.release()
            dirty.discard(self)

    def __repr__(self) -> str:
        where = "released" if self._block is None else f"{self.state}, on {self.device!r}"
        return f"Replica({self.array!r}, {where})"
