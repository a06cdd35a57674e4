"""The free parts of an arena, in order: where something fits, and what would have to go so that it does."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable


class FreeList:
    """Free ranges, sorted, never touching each other."""

    def __init__(self, budget: int) -> None:
        self.starts: list[int] = [0] if budget else []
        self.ends: list[int] = [budget] if budget else []

    def take(self, size: int, *, high: bool) -> int | None:
        """An offset in the lowest or the highest hole that is large enough; None if there is none."""
        if not size:
            return 0
        starts, ends = self.starts, self.ends
        for at in range(len(starts) - 1, -1, -1) if high else range(len(starts)):
            if ends[at] - starts[at] >= size:
                offset = ends[at] - size if high else starts[at]
                if ends[at] - starts[at] == size:
                    del starts[at], ends[at]
                elif high:
                    ends[at] = offset
                else:
                    starts[at] = offset + size
                return offset
        return None

    def give(self, offset: int, size: int) -> None:
        if not size:
            return
        starts, ends = self.starts, self.ends
        end = offset + size
        at = bisect_left(starts, offset)
        joins_below = at > 0 and ends[at - 1] == offset
        joins_above = at < len(starts) and starts[at] == end
        if joins_below and joins_above:
            ends[at - 1] = ends[at]
            del starts[at], ends[at]
        elif joins_below:
            ends[at - 1] = end
        elif joins_above:
            starts[at] = offset
        else:
            starts.insert(at, offset)
            ends.insert(at, end)


def cheapest_room(budget: int, size: int, blocks: Iterable[tuple[int, int, float, int]]) -> list[int] | None:
    """Which blocks to remove so that `size` bytes in a row are free, at the least cost; None if no choice does it.

    Blocks are (offset, size, cost, name); one of infinite cost cannot go.
    """
    ordered = sorted(block for block in blocks if block[1])
    starts = [0, *(offset + length for offset, length, _, _ in ordered)]  # of the range before or after each block
    ends = [*(offset for offset, _, _, _ in ordered), budget]
    best: tuple[int, int] | None = None
    best_cost = float("inf")
    last, cost, fixed = 0, 0.0, 0  # of the blocks from the first to before `last`; how many of them cannot go
    for first, start in enumerate(starts):
        while last < len(ordered) and ends[last] - start < size:
            price = ordered[last][2]
            fixed += price == float("inf")
            cost += 0.0 if price == float("inf") else price
            last += 1
        if ends[last] - start >= size and not fixed and cost < best_cost:
            best, best_cost = (first, last), cost
        if last == first:
            last += 1  # nothing had to go: the next range begins behind the next block
        elif first < len(ordered):
            price = ordered[first][2]
            fixed -= price == float("inf")
            cost -= 0.0 if price == float("inf") else price
    return None if best is None else [name for _, _, _, name in ordered[best[0] : best[1]]]
