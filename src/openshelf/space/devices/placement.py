"""Static placement: where in one arena each of many storages goes whose lifetimes are known before.

Finding the smallest arena is NP-hard. The largest first, at the lowest offset that is free all its life, works well
(Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020). Where that is above the lower
bound, the most bytes alive at one time, other orders are tried and the best is kept. No solver: with the lifetimes that
models have, the bound is usually met.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from openshelf._sizes import whole
from openshelf.errors import BadInput, Mismatch

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Lifetime(NamedTuple):
    """A storage of `size` bytes that is used from time `first` to time `last`, both included."""

    size: int
    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class Placement:
    """Offsets of storages, in the order in which they were given; storages whose lifetimes meet do not overlap."""

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    peak: int  # bytes of the arena
    live_peak: int  # the most bytes alive at one time, sizes rounded up to the alignment: no placement has less
    alignment: int

    @property
    def fragmentation(self) -> float:
        """How much larger the arena is than it would have to be: 0.0 is perfect."""
        return self.peak / self.live_peak - 1 if self.live_peak else 0.0


def place(lifetimes: Iterable[tuple[int, int, int]], alignment: int = 512) -> Placement:
    """Offsets for storages with lifetimes (size, first, last), times being any integers; `last` is included.

    A thousand take some hundredths of a second, ten thousand seconds.
    """
    alignment = whole(alignment, "an alignment")
    if not 1 <= alignment < 1 << 62:
        raise BadInput(f"an alignment is 1 or more bytes, got {alignment}")
    if not isinstance(lifetimes, Iterable):
        raise Mismatch(f"expected a list of (size, first, last), got {lifetimes!r:.60}")
    given = [_checked(number, one) for number, one in enumerate(lifetimes)]
    columns = np.array(given, np.int64).reshape(-1, 3).T
    sizes, first, last = -(-columns[0] // alignment) * alignment, columns[1], columns[2]
    bound = _live_peak(sizes, first, last)
    best, peak = np.zeros(len(given), np.int64), 0
    for number, (order, snug) in enumerate(_tries(sizes, first, last)):
        limit = peak if number else None
        offsets = _place_in_order(order, sizes, first, last, snug, limit)
        if offsets is not None:
            best, peak = offsets, int((offsets + sizes).max(initial=0))
        if peak == bound:
            break
    return Placement(tuple(one.size for one in given), tuple(best.tolist()), peak, bound, alignment)


def _checked(number: int, one: tuple[int, int, int]) -> Lifetime:
    try:
        found = Lifetime(*(whole(value, "size, first and last") for value in one))
    except TypeError as error:
        raise BadInput(f"lifetime {number} is (size, first, last), three integers, got {one!r}: {error}") from None
    if found.size < 0 or found.last < found.first:
        raise BadInput(f"lifetime {number} has size >= 0 and first <= last, got {tuple(found)}")
    if found.size >= 1 << 56 or max(abs(found.first), abs(found.last)) >= 1 << 62:
        raise BadInput(f"lifetime {number} is beyond 64 bits: {tuple(found)}")
    return found


def _live_peak(sizes: Numbers, first: Numbers, last: Numbers) -> int:
    """The most bytes alive at one time: a sweep over all beginnings and ends."""
    times = np.concatenate([first, last + 1])
    changes = np.concatenate([sizes, -sizes])
    order = np.lexsort((changes, times))  # at one time ends come first: they are one later than the last use
    return int(np.cumsum(changes[order]).max(initial=0))


def _tries(sizes: Numbers, first: Numbers, last: Numbers) -> Iterator[tuple[Numbers, bool]]:
    """Orders to place in, and whether to prefer the smallest gap that fits to the lowest. The first is usually best."""
    lengths = (last - first + 1).astype(np.float64)
    by_size, by_length = np.lexsort((-lengths, -sizes)), np.lexsort((-sizes, -lengths))
    by_area, by_time = np.lexsort((-sizes, -(sizes * lengths))), np.lexsort((-sizes, first))
    yield from ((by_size, False), (by_area, False), (by_length, False), (by_area, True), (by_time, True))


def _place_in_order(
    order: Numbers, sizes: Numbers, first: Numbers, last: Numbers, snug: bool, limit: int | None
) -> Numbers | None:
    """Greedy; None as soon as something would end at `limit` or above."""
    offsets = np.zeros(len(order), np.int64)
    # What is placed, sorted by offset: offset, end, first, last. Room for all, moved up as the next come in between.
    placed = np.empty((4, len(order)), np.int64)
    wanted = np.stack([order, sizes[order], first[order], last[order]], axis=1)
    for count, (at, size, begin, end) in enumerate(wanted[wanted[:, 1] > 0].tolist()):
        now = placed[:, :count]
        alive = ((now[2] <= end) & (now[3] >= begin)).nonzero()[0]
        offset = _gap(now[0].take(alive), now[1].take(alive), size, snug)
        if limit is not None and offset + size >= limit:
            return None
        offsets[at] = offset
        row = int(now[0].searchsorted(offset))
        placed[:, row + 1 : count + 1] = now[:, row:]
        placed[:, row] = offset, offset + size, begin, end
    return offsets


def _gap(starts: Numbers, ends: Numbers, size: int, snug: bool) -> int:
    """The lowest offset, or that of the smallest gap, where `size` bytes meet none of these, sorted by start."""
    if not len(starts):
        return 0
    reached = np.maximum.accumulate(ends)  # they may overlap: they are alive with the new one, not with each other
    gaps = starts.copy()
    gaps[1:] -= reached[:-1]
    fits = (gaps >= size).nonzero()[0]
    if not len(fits):
        return int(reached[-1])
    gap = int(fits[gaps.take(fits).argmin()] if snug else fits[0])
    return int(reached[gap - 1]) if gap else 0
