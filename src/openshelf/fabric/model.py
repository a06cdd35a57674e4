"""The nouns of a Fabric: places that hold bytes, links between them, and what computes.

All values are in base SI units (bytes, seconds, and their quotients), and every unit is in the key's name.
Every figure says where it comes from, so that a cost can say how far to trust it. What joins many machines is
beside: wiring/.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from openshelf.fabric.fields import Checked, Problem, above_zero, not_empty, zero_or_more

Source = Literal["measured", "published", "assumed"]
Tier = Literal["device", "dram", "cxl", "remote", "flash"]
Protocol = Literal["memory", "message"]
Dtype = Literal["float64", "float32", "bfloat16", "float16", "float8", "int8"]

TRUST: tuple[Source, ...] = ("measured", "published", "assumed")
"""From the most to the least trustworthy: a sum is worth as much as its worst part."""


def weakest(sources: Iterable[Source]) -> Source:
    """The least trustworthy of them."""
    return max(sources, key=TRUST.index)


@dataclass(frozen=True)
class Figure(Checked):
    """A number above zero, where it comes from, how it was got, and the year it is of (prices age)."""

    value: float = field(metadata=above_zero)
    source: Source
    note: str = ""
    year: int | None = field(default=None, metadata=above_zero)


@dataclass(frozen=True)
class LoadPoint(Checked):
    """The latency of one load while others move this many bytes per second."""

    load_bytes_per_s: float = field(metadata=zero_or_more)
    latency_s: float = field(metadata=above_zero)


@dataclass(frozen=True)
class LoadedLatency(Checked):
    """How latency grows as a place gets busy: points in rising order of load."""

    points: tuple[LoadPoint, ...] = field(metadata=not_empty)
    source: Source
    note: str = ""

    def problems(self) -> list[Problem]:
        found = super().problems()
        if not found:
            loads = [point.load_bytes_per_s for point in self.points]
            for i in range(1, len(loads)):
                if loads[i] <= loads[i - 1]:
                    message = f"loads must rise from point to point; {loads[i]:g} came after {loads[i - 1]:g}"
                    found.append((("points", i, "load_bytes_per_s"), message))
        return found


@dataclass(frozen=True)
class PageFigures(Checked):
    """What a place does when it is mapped with another page size than its own `page_bytes`."""

    page_bytes: int = field(metadata=above_zero)
    read_bandwidth_bytes_per_s: Figure
    write_bandwidth_bytes_per_s: Figure
    latency_s: Figure
    copy_bandwidth_bytes_per_s: Figure | None = None
    parallel_loads: Figure | None = None


@dataclass(frozen=True)
class Place(Checked):
    """Memory that holds bytes.

    `latency_s` is one dependent load (for flash: one block); `parallel_loads` is how many independent ones
    one thread keeps in flight; `copy_bandwidth_bytes_per_s` counts the bytes copied inside the place, not the
    bytes read plus the bytes written. `line_bytes` is the least that moves: a cache line, or a block of
    flash.
    """

    name: str = field(metadata=not_empty)
    tier: Tier
    capacity_bytes: Figure
    read_bandwidth_bytes_per_s: Figure
    write_bandwidth_bytes_per_s: Figure
    latency_s: Figure
    copy_bandwidth_bytes_per_s: Figure | None = None
    parallel_loads: Figure | None = None
    page_bytes: int = field(default=4096, metadata=above_zero)
    line_bytes: int = field(default=64, metadata=above_zero)
    loaded_latency: LoadedLatency | None = None
    other_pages: tuple[PageFigures, ...] = ()

    def problems(self) -> list[Problem]:
        found = super().problems()
        if not found:
            seen = {self.page_bytes}
            for i, pages in enumerate(self.other_pages):
                if pages.page_bytes in seen:
                    where = ("other_pages", i, "page_bytes")
                    found.append((where, f"page size {pages.page_bytes} is given twice in place {self.name!r}"))
                seen.add(pages.page_bytes)
        return found


@dataclass(frozen=True)
class Link(Checked):
    """A way for bytes from one place to another and back.

    `bandwidth_bytes_per_s` is from `from_place` to `to_place`; the way back is the same unless
    `back_bandwidth_bytes_per_s` is given; both are of one lane if there are several. `protocol` is `memory` or
    `message`, whose costs are in the link's figures, or the name of a protocol, whose own costs come on top. No
    `latency_s` means that medium and length give it, or that the places' own latencies include it. A link from a
    place to itself is a way between two processes there, such as loopback TCP.
    """

    name: str = field(metadata=not_empty)
    from_place: str = field(metadata=not_empty)
    to_place: str = field(metadata=not_empty)
    protocol: str = field(metadata=not_empty)
    bandwidth_bytes_per_s: Figure
    back_bandwidth_bytes_per_s: Figure | None = None
    latency_s: Figure | None = None
    medium: str = ""
    lanes: int = field(default=1, metadata=above_zero)
    length_m: Figure | None = None

    def problems(self) -> list[Problem]:
        found = super().problems()
        if not found and self.from_place == self.to_place and self.protocol == "memory":
            message = f"expected message, memory came: loads within {self.from_place!r} need no link"
            found.append((("protocol",), message))
        return found


@dataclass(frozen=True)
class EfficiencyPoint(Checked):
    """The share of the peak rate that a product of so many operations reaches."""

    work_flop: float = field(metadata=above_zero)
    share: float = field(metadata=above_zero)


@dataclass(frozen=True)
class Efficiency(Checked):
    """How the rate grows with the work: points in rising order of work, drawn straight over its logarithm."""

    points: tuple[EfficiencyPoint, ...] = field(metadata=not_empty)
    source: Source
    note: str = ""

    def problems(self) -> list[Problem]:
        found = super().problems()
        if not found:
            for i, (low, high) in enumerate(pairwise(self.points), 1):
                if high.work_flop <= low.work_flop:
                    message = f"work must rise from point to point; {high.work_flop:g} came after {low.work_flop:g}"
                    found.append((("points", i, "work_flop"), message))
            found += [
                (("points", i, "share"), f"expected at most 1, {point.share:g} came")
                for i, point in enumerate(self.points)
                if point.share > 1
            ]
        return found


@dataclass(frozen=True)
class Gemm(Checked):
    """Dense matrix multiplication, the work that accelerators are sold by: 2 m n k operations.

    `rate_flop_per_s` is the peak where an efficiency curve says what is reached, else what is reached.
    """

    dtype: Dtype
    rate_flop_per_s: Figure
    efficiency: Efficiency | None = None

    def seconds(self, work_flop: float) -> tuple[float, bool]:
        """How long one product takes, and whether that is beyond the known range (then the nearest point is used)."""
        if self.efficiency is None:
            return work_flop / self.rate_flop_per_s.value, False
        points = self.efficiency.points
        beyond = not points[0].work_flop <= work_flop <= points[-1].work_flop
        share = points[0].share if work_flop < points[0].work_flop else points[-1].share
        for low, high in pairwise(points):
            if low.work_flop <= work_flop <= high.work_flop:
                part = math.log(work_flop / low.work_flop) / math.log(high.work_flop / low.work_flop)
                share = low.share + part * (high.share - low.share)
        return work_flop / (self.rate_flop_per_s.value * share), beyond


@dataclass(frozen=True)
class Compute(Checked):
    """Something that computes on the bytes of one place; power and price are of the whole with its memory."""

    name: str = field(metadata=not_empty)
    place: str = field(metadata=not_empty)
    gemm: tuple[Gemm, ...] = ()
    power_w: Figure | None = None
    price_usd: Figure | None = None
    failures_fit: Figure | None = None

    def problems(self) -> list[Problem]:
        found = super().problems()
        if not found:
            dtypes = [gemm.dtype for gemm in self.gemm]
            for i, dtype in enumerate(dtypes):
                if dtype in dtypes[:i]:
                    found.append((("gemm", i, "dtype"), f"{dtype} is given twice in compute {self.name!r}"))
        return found
