"""A device in the host's own memory: for machines without an accelerator, for tests, and as a staging arena.

Its memory is private to the process, its queues are native threads (native/stream/device.hpp).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from openshelf import _core
from openshelf._dtypes import torch_module
from openshelf.errors import BadInput, NoRoom
from openshelf.space.copies import Bytes
from openshelf.space.transfer import Part


class HostArena:
    """An Arena whose memory is the process's own."""

    def __init__(self, which: str, nbytes: int) -> None:
        if which:
            raise BadInput(f"'host:{which}': the host is one device; expected 'host'")
        free = _available()
        if free is not None and nbytes > free:  # touching it would have the kernel kill somebody
            raise NoRoom(f"an arena of {nbytes} bytes: this machine has {free} available; give a smaller budget")
        self._arena = _core.DeviceArena(nbytes)
        self.nbytes, self.pointer = nbytes, self._arena.address

    def queue(self) -> HostQueue:
        return HostQueue(self._arena)

    def numpy(self, offset: int, nbytes: int, taken: Any) -> Bytes:
        memory: Any = self._arena.range(offset, nbytes, taken)
        return np.ndarray(nbytes, np.uint8, memory)

    def torch(self, offset: int, nbytes: int, taken: Any) -> Any:
        torch = torch_module()
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(self._arena.range(offset, nbytes, taken), dtype=torch.uint8)


class HostQueue:
    """One native thread."""

    def __init__(self, arena: _core.DeviceArena) -> None:
        self._arena, self._queue = arena, _core.CopyQueue()
        self.mark, self.close = self._queue.mark, self._queue.close

    def copy_in(self, offset: int, source: Bytes) -> Part:
        return self._queue.copy(self._arena.address + offset, _core.address_of(source), source.nbytes)

    def copy_out(self, target: Bytes, offset: int) -> Part:
        return self._queue.copy(_core.address_of(target), self._arena.address + offset, target.nbytes)

    def copy_within(self, target: int, source: int, nbytes: int) -> Part:
        return self._queue.copy(self._arena.address + target, self._arena.address + source, nbytes)

    def after(self, part: Part) -> None:
        assert isinstance(part, _core.Ticket)
        self._queue.after(part)


def _available() -> int | None:
    """Bytes that the system could give without swapping; None where it does not say."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
