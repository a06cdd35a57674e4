"""What every device promises: memory of a fixed size, and copies into, out of and within it that run by themselves.

- All memory is taken, and touched, when the arena is made. Nothing is allocated later, so nothing fails or faults.
- Copies of one queue run in order; those of several may overlap. A copy that was begun is finished, whoever forgets it.
- A part (a copy's handle, or a mark) is done when everything that was given to its queue up to it is. Another queue can
  wait for it. Parts only look back, so queues never wait for one another in a circle.
- Nobody holds the interpreter's lock while bytes move.
- A view of the memory holds `taken`: while it lives, the range is nobody else's.
- A forked child has no device: calls there raise Closed.

Offsets and lengths come from `stream.py`, which has checked them; `flights.py` keeps a copy's host memory until it is
done. An implementation is a file beside this one and an entry in `device.py`; tests/conformance/test_devices.py
runs over all of them.
"""

from __future__ import annotations

from typing import Any, Protocol

from openshelf.space.copies import Bytes
from openshelf.space.transfer import Part


class Queue(Protocol):
    """Copies that run one after the other. Several threads may give to one queue."""

    def copy_in(self, offset: int, source: Bytes) -> Part:
        """From the host's memory. `source` must stay as it is until the copy is done."""

    def copy_out(self, target: Bytes, offset: int) -> Part:
        """To the host's memory."""

    def copy_within(self, target: int, source: int, nbytes: int) -> Part:
        """From one offset to another; BadInput if the ranges overlap."""

    def mark(self) -> Part:
        """Done when everything that was given before is."""

    def after(self, part: Part) -> None:
        """What is given from now on waits for a part of another queue of this arena."""

    def close(self) -> None:
        """Returns when everything is done; what is given later raises Closed. Again, or in a forked child: nothing."""


class Arena(Protocol):
    """A device's memory."""

    @property
    def nbytes(self) -> int: ...

    @property
    def pointer(self) -> int:
        """Of its first byte, as the device's own code sees it; a multiple of 512."""

    def queue(self) -> Queue: ...

    def numpy(self, offset: int, nbytes: int, taken: Any) -> Bytes:
        """The memory itself; Mismatch if the host's processor cannot load from it."""

    def torch(self, offset: int, nbytes: int, taken: Any) -> Any:
        """The memory itself as a tensor of bytes."""
