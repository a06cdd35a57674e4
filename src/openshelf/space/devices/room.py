"""Which ranges of an arena are free: best fit, neighbours joined at once. Some hundred runs at most, so plain lists."""

from __future__ import annotations

import bisect

ALIGNMENT = 512  # bytes; of offsets and sizes: what devices' own allocators promise, and any dtype needs


def aligned(nbytes: int, to: int = ALIGNMENT) -> int:
    return -(-nbytes // to) * to


class Room:
    """Free runs in order of their offsets. Not thread-safe."""

    def __init__(self, nbytes: int) -> None:
        self._runs = [(0, nbytes)]  # (offset, length); no two touch

    @property
    def free(self) -> int:
        return sum(length for _, length in self._runs)

    @property
    def largest(self) -> int:
        return max((length for _, length in self._runs), default=0)

    def take(self, nbytes: int, alignment: int = ALIGNMENT) -> int | None:
        """The offset of `nbytes` that were free, in the shortest run that has them; None if none has."""
        fitting = [
            (length, offset) for offset, length in self._runs if aligned(offset, alignment) + nbytes <= offset + length
        ]
        if not fitting:
            return None
        length, offset = min(fitting)
        first = aligned(offset, alignment)
        rest = [(offset, first - offset), (first + nbytes, offset + length - first - nbytes)]
        at = bisect.bisect_left(self._runs, (offset,))
        self._runs[at : at + 1] = [run for run in rest if run[1]]
        return first

    def give(self, offset: int, nbytes: int) -> None:
        """Takes a range back."""
        at = bisect.bisect_left(self._runs, (offset,))
        if at < len(self._runs) and self._runs[at][0] == offset + nbytes:
            nbytes += self._runs.pop(at)[1]
        if at and sum(self._runs[at - 1]) == offset:
            before, length = self._runs.pop(at - 1)
            offset, nbytes, at = before, length + nbytes, at - 1
        self._runs.insert(at, (offset, nbytes))
