"""The nouns of a Fabric: places that hold bytes, links between them, and what computes.

All values are in base SI units (bytes, seconds, and their quotients), and every unit is in the key's name.
Every figure says where it comes from, so that a cost can say how far to trust it. Left out until something
needs them: switches, topologies, media, power. Each is a new class here and a new list in `Fabric`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from openshelf.fabric._fields import Checked, Problem, above_zero, not_empty, zero_or_more

Source = Literal["measured", "published", "assumed"]
Tier = Literal["device", "dram", "cxl", "remote", "flash"]
Protocol = Literal["memory", "message"]
Dtype = Literal["float64", "float32", "bfloat16", "float16", "float8", "int8"]

TRUST: tuple[Source, ...] = ("measured", "published", "assumed")
"""From the most to the least trustworthy: a sum is worth as much as its worst part."""


@dataclass(frozen=True)
class Figure(Checked):
    """A number above zero, where it comes from, and how it was got."""

    value: float = field(metadata=above_zero)
    source: Source
    note: str = ""


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
    `back_bandwidth_bytes_per_s` is given. No `latency_s` means that the places' own latencies include it. A
    link from a place to itself is a way between two processes there, such as loopback TCP.
    """

    name: str = field(metadata=not_empty)
    from_place: str = field(metadata=not_empty)
    to_place: str = field(metadata=not_empty)
    protocol: Protocol
    bandwidth_bytes_per_s: Figure
    back_bandwidth_bytes_per_s: Figure | None = None
    latency_s: Figure | None = None

    def problems(self) -> list[Problem]:
        found = super().problems()
        if not found and self.from_place == self.to_place and self.protocol == "memory":
            message = f"expected message, memory came: loads within {self.from_place!r} need no link"
            found.append((("protocol",), message))
        return found


@dataclass(frozen=True)
class Gemm(Checked):
    """Dense matrix multiplication, the work that accelerators are sold by: 2 m n k operations."""

    dtype: Dtype
    rate_flop_per_s: Figure


@dataclass(frozen=True)
class Compute(Checked):
    """Something that computes on the bytes of one place."""

    name: str = field(metadata=not_empty)
    place: str = field(metadata=not_empty)
    gemm: tuple[Gemm, ...] = ()

    def problems(self) -> list[Problem]:
        found = super().problems()
        if not found:
            dtypes = [gemm.dtype for gemm in self.gemm]
            for i, dtype in enumerate(dtypes):
                if dtype in dtypes[:i]:
                    found.append((("gemm", i, "dtype"), f"{dtype} is given twice in compute {self.name!r}"))
        return found
