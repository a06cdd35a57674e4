"""Random valid fabrics for the property tests, and a small one whose costs can be worked out by hand."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

from openshelf.fabric import (
    Compute,
    Fabric,
    Figure,
    Gemm,
    Link,
    LoadedLatency,
    LoadPoint,
    PageFigures,
    Place,
)
from openshelf.fabric.model import Dtype, Protocol, Source, Tier

TIERS: st.SearchStrategy[Tier] = st.sampled_from(get_args(Tier))
SOURCES: st.SearchStrategy[Source] = st.sampled_from(get_args(Source))
PROTOCOLS: st.SearchStrategy[Protocol] = st.sampled_from(get_args(Protocol))
DTYPES: st.SearchStrategy[Dtype] = st.sampled_from(get_args(Dtype))
POSITIVE = st.floats(1e-12, 1e18)


def figure(value: float) -> Figure:
    return Figure(value, "assumed")


def figures(values: st.SearchStrategy[float] = POSITIVE) -> st.SearchStrategy[Figure]:
    return st.builds(Figure, values, SOURCES, st.text(max_size=20))


def maybe(strategy: st.SearchStrategy[Figure]) -> st.SearchStrategy[Figure | None]:
    return st.none() | strategy


@st.composite
def curves(draw: st.DrawFn) -> LoadedLatency:
    loads = sorted(draw(st.sets(st.floats(0, 1e12), min_size=1, max_size=5)))
    points = tuple(LoadPoint(load, draw(POSITIVE)) for load in loads)
    return LoadedLatency(points, draw(SOURCES), draw(st.text(max_size=5)))


@st.composite
def places(draw: st.DrawFn, name: str) -> Place:
    sizes = sorted(draw(st.sets(st.integers(1, 2**30), min_size=1, max_size=2)))
    others = tuple(
        PageFigures(size, draw(figures()), draw(figures()), draw(figures()), draw(maybe(figures())))
        for size in sizes[1:]
    )
    return Place(
        name=name,
        tier=draw(TIERS),
        capacity_bytes=draw(figures()),
        read_bandwidth_bytes_per_s=draw(figures()),
        write_bandwidth_bytes_per_s=draw(figures()),
        latency_s=draw(figures()),
        copy_bandwidth_bytes_per_s=draw(maybe(figures())),
        parallel_loads=draw(maybe(figures())),
        page_bytes=sizes[0],
        line_bytes=draw(st.sampled_from((32, 64, 128, 4096))),
        loaded_latency=draw(st.none() | curves()),
        other_pages=others,
    )


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    names = draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4, unique=True))
    ends = st.sampled_from(names)
    links = []
    for i in range(draw(st.integers(0, 5))):
        start, end = draw(ends), draw(ends)
        protocol = "message" if start == end else draw(PROTOCOLS)
        widths = draw(figures()), draw(maybe(figures()))
        links.append(Link(f"link{i}", start, end, protocol, *widths, draw(maybe(figures()))))
    gemm = tuple(Gemm(dtype, draw(figures())) for dtype in draw(st.sets(DTYPES, max_size=2)))
    return Fabric(
        name=draw(st.text(min_size=1, max_size=8)),
        places=tuple(draw(places(name)) for name in names),
        links=tuple(links),
        compute=(Compute("chip", draw(ends), gemm),),
        note=draw(st.text(max_size=10)),
        left_out=tuple(draw(st.lists(st.text(max_size=5), max_size=2))),
    )


def simple_place(name: str, read: float, write: float, latency: float) -> Place:
    return Place(name, "dram", figure(1e12), figure(read), figure(write), figure(latency))


def chain() -> Fabric:
    """near - far over `wire`, far - deep over `disk`: no link joins near and deep."""
    return Fabric(
        "chain",
        (
            simple_place("near", 100.0, 80.0, 1.0),
            simple_place("far", 60.0, 40.0, 2.0),
            simple_place("deep", 10.0, 5.0, 4.0),
        ),
        (
            Link("wire", "near", "far", "memory", figure(50.0), figure(25.0), figure(0.5)),
            Link("disk", "far", "deep", "message", figure(20.0), latency_s=figure(0.25)),
            Link("loop", "near", "near", "message", figure(30.0), latency_s=figure(3.0)),
        ),
    )
