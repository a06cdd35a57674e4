"""The cost model: worked examples, and laws that hold on every fabric."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openshelf.errors import BadInput, UnknownName
from openshelf.fabric import Cost, Fabric, Figure, Link, LoadedLatency, LoadPoint, PageFigures, Place

from .fabrics import chain, fabrics, figure, simple_place

SIZES = st.integers(0, 10**13)


def test_a_transfer_costs_all_latencies_plus_bytes_over_the_narrowest_step() -> None:
    cost = chain().cost(1000, "near", "far")
    assert [leg.name for leg in cost.legs] == ["near read", "wire link", "far write"]
    assert cost.latency_s == 1.0 + 0.5 + 2.0
    assert cost.bottleneck == "far write"
    assert cost.seconds == cost.latency_s + 1000 / 40.0


def test_the_way_back_uses_the_links_back_bandwidth() -> None:
    cost = chain().cost(1000, "far", "near")
    assert cost.bottleneck == "wire link"
    assert cost.transfer_s == 1000 / 25.0


def test_a_place_in_between_is_written_and_read() -> None:
    cost = chain().cost(1000, "near", "deep")
    assert [leg.name for leg in cost.legs] == [
        "near read",
        "wire link",
        "far write and read",
        "disk link",
        "deep write",
    ]
    assert cost.legs[2].bandwidth_bytes_per_s == pytest.approx(1 / (1 / 60 + 1 / 40))
    assert cost.latency_s == pytest.approx(1 + 0.5 + 2 + 0.25 + 4)


def test_within_a_place_bytes_are_copied_unless_messages_are_asked_for() -> None:
    fabric = chain()
    assert fabric.cost(1000, "near", "near").transfer_s == pytest.approx(1000 * (1 / 100 + 1 / 80))
    near = replace(fabric.places[0], copy_bandwidth_bytes_per_s=figure(20.0))
    copied = replace(fabric, places=(near, *fabric.places[1:])).cost(1000, "near", "near")
    assert (copied.bottleneck, copied.seconds) == ("near copy", 1.0 + 1000 / 20.0)
    message = fabric.cost(1000, "near", "near", protocol="message")
    assert (message.bottleneck, message.transfer_s) == ("loop link", 1000 / 30.0)


def test_a_small_transfer_takes_the_quick_way_and_a_large_one_the_wide_way() -> None:
    fabric = Fabric(
        "two ways",
        (simple_place("a", 1e9, 1e9, 1e-9), simple_place("b", 1e9, 1e9, 1e-9)),
        (
            Link("quick", "a", "b", "memory", figure(10.0), latency_s=figure(0.001)),
            Link("wide", "a", "b", "memory", figure(1000.0), latency_s=figure(1.0)),
        ),
    )
    assert fabric.cost(1, "a", "b").bottleneck == "quick link"
    assert fabric.cost(10_000, "a", "b").bottleneck == "wide link"


def test_a_large_transfer_avoids_a_narrow_place_in_between() -> None:
    fast, slow = figure(1e-9), figure(1.0)
    fabric = Fabric(
        "two stages",
        (
            simple_place("a", 1e9, 1e9, 1e-9),
            simple_place("narrow", 10.0, 10.0, 1e-9),
            simple_place("wide", 1e9, 1e9, 1e-9),
            simple_place("b", 1e9, 1e9, 1e-9),
        ),
        (
            Link("a-narrow", "a", "narrow", "memory", figure(1e9), latency_s=fast),
            Link("narrow-b", "narrow", "b", "memory", figure(1e9), latency_s=fast),
            Link("a-wide", "a", "wide", "memory", figure(1e9), latency_s=slow),
            Link("wide-b", "wide", "b", "memory", figure(1e9), latency_s=slow),
        ),
    )
    assert "narrow-b link" in [leg.name for leg in fabric.cost(1, "a", "b").legs]
    assert "wide-b link" in [leg.name for leg in fabric.cost(1000, "a", "b").legs]


def test_a_cost_is_as_trustworthy_as_its_worst_figure() -> None:
    def of(source: str) -> Place:
        kind = {"measured": Figure(1.0, "measured"), "published": Figure(1.0, "published")}[source]
        return Place(source, "dram", kind, kind, kind, kind)

    link = Link("wire", "measured", "published", "memory", Figure(1.0, "measured"))
    fabric = Fabric("mixed", (of("measured"), of("published")), (link,))
    assert fabric.cost(1, "measured", "measured").source == "measured"
    assert fabric.cost(1, "measured", "published").source == "published"


def test_no_way_between_places_is_an_error_that_lists_the_links() -> None:
    with pytest.raises(BadInput, match=r"no memory way from 'near' to 'deep'.*wire \(near - far\)"):
        chain().cost(1, "near", "deep", protocol="memory")


def test_a_misspelt_place_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match=r"no place 'nera' in fabric 'chain'.*did you mean 'near'"):
        chain().cost(1, "nera", "far")


@pytest.mark.parametrize("nbytes", [-1, 1.5, True, "1"])
def test_a_size_that_is_no_number_of_bytes_is_refused(nbytes: int) -> None:
    with pytest.raises(BadInput, match="whole number of bytes"):
        chain().cost(nbytes, "near", "far")
    with pytest.raises(BadInput, match="whole number of bytes"):
        chain().access(nbytes, "near", 64)


def costs(fabric: Fabric, nbytes: int) -> list[Cost]:
    found = []
    for source in fabric.places:
        for target in fabric.places:
            with contextlib.suppress(BadInput):  # not joined by any links
                found.append(fabric.cost(nbytes, source.name, target.name))
    return found


@given(fabrics(), SIZES, SIZES)
def test_more_bytes_never_cost_less(fabric: Fabric, one: int, other: int) -> None:
    less, more = sorted((one, other))
    for small, large in zip(costs(fabric, less), costs(fabric, more), strict=True):
        assert small.seconds <= large.seconds * (1 + 1e-12)


@given(fabrics(), SIZES)
def test_a_cost_is_the_sum_of_its_steps_latencies_and_its_bytes_over_the_narrowest(fabric: Fabric, nbytes: int) -> None:
    for cost in costs(fabric, nbytes):
        assert cost.seconds == cost.latency_s + cost.transfer_s
        narrowest = min(leg.bandwidth_bytes_per_s for leg in cost.legs)
        assert cost.transfer_s == pytest.approx(nbytes / narrowest)
        assert cost.latency_s == pytest.approx(sum(leg.latency_s for leg in cost.legs) if nbytes else 0.0)
        assert cost.bottleneck in [leg.name for leg in cost.legs]


@given(fabrics(), SIZES)
def test_no_other_way_is_faster_than_the_one_taken(fabric: Fabric, nbytes: int) -> None:
    """Against every simple way through at most one place in between, each priced by one-link fabrics."""
    names = [place.name for place in fabric.places]
    for source, target in permutations(names, 2):
        for link in fabric.links:
            if {link.from_place, link.to_place} == {source, target}:
                alone = replace(fabric, links=(link,)).cost(nbytes, source, target)
                assert fabric.cost(nbytes, source, target).seconds <= alone.seconds * (1 + 1e-12)
        for pair in permutations(fabric.links, 2):
            try:
                limited = replace(fabric, links=pair).cost(nbytes, source, target)
            except BadInput:
                continue
            assert fabric.cost(nbytes, source, target).seconds <= limited.seconds * (1 + 1e-12)


def memory() -> Fabric:
    place = Place(
        "dram",
        "dram",
        figure(1e12),
        figure(64e9),  # a line each nanosecond
        figure(64e9),
        figure(100e-9),
        parallel_loads=figure(10.0),
        loaded_latency=LoadedLatency((LoadPoint(0.0, 100e-9), LoadPoint(10e9, 300e-9)), "measured"),
        other_pages=(PageFigures(2 << 20, figure(64e9), figure(64e9), figure(50e-9)),),
    )
    return Fabric("memory", (place,))


def test_reading_in_order_is_bound_by_bandwidth() -> None:
    for stride in (1, 8, 64):
        cost = memory().access(6400, "dram", stride)
        assert cost.seconds == pytest.approx(100e-9 + 99 * 1e-9)
        assert cost.bottleneck == "dram bandwidth"


def test_a_larger_stride_fetches_one_line_per_load() -> None:
    assert memory().access(12_800, "dram", 128).seconds == pytest.approx(100e-9 + 99 * 1e-9)


def test_random_order_and_page_strides_are_bound_by_latency_over_parallel_loads() -> None:
    random = memory().access(6400, "dram", None)
    assert random.seconds == pytest.approx(100e-9 + 99 * 10e-9)
    assert random.bottleneck == "dram latency"
    assert memory().access(4096 * 100, "dram", 4096).seconds == pytest.approx(random.seconds)


def test_without_measured_parallel_loads_random_order_is_a_chain_of_pointers() -> None:
    huge = memory().access(6400, "dram", None, page_bytes=2 << 20)
    assert huge.seconds == pytest.approx(100 * 50e-9)
    assert memory().access(1, "dram", None).seconds == pytest.approx(100e-9)


def test_load_raises_latency_along_the_curve_and_is_refused_beyond_it() -> None:
    assert memory().access(1, "dram", None, load_bytes_per_s=5e9).seconds == pytest.approx(200e-9)
    assert memory().access(1, "dram", None, load_bytes_per_s=10e9).source == "assumed"
    with pytest.raises(BadInput, match="outside the known range, 0 to 1e\\+10"):
        memory().access(1, "dram", None, load_bytes_per_s=11e9)
    with pytest.raises(BadInput, match="no loaded latency"):
        chain().access(1, "near", None, load_bytes_per_s=1.0)


def test_unknown_page_sizes_and_strides_are_refused() -> None:
    with pytest.raises(BadInput, match=r"pages of 8192 bytes, only for \[4096, 2097152\]"):
        memory().access(1, "dram", 64, page_bytes=8192)
    with pytest.raises(BadInput, match="at least 1 byte"):
        memory().access(1, "dram", 0)


@given(fabrics(), SIZES, SIZES, st.none() | st.integers(1, 10**6))
def test_loading_from_more_bytes_never_costs_less(fabric: Fabric, one: int, other: int, stride: int | None) -> None:
    less, more = sorted((one, other))
    for place in fabric.places:
        small, large = (fabric.access(nbytes, place.name, stride) for nbytes in (less, more))
        assert small.seconds <= large.seconds


@given(fabrics(), SIZES)
def test_random_order_never_costs_less_than_order(fabric: Fabric, nbytes: int) -> None:
    for place in fabric.places:
        ordered, random = (fabric.access(nbytes, place.name, stride) for stride in (64, None))
        if place.line_bytes >= 64:
            assert ordered.seconds <= random.seconds * (1 + 1e-12)


@given(fabrics())
def test_nothing_costs_nothing(fabric: Fabric) -> None:
    for place in fabric.places:
        assert fabric.cost(0, place.name, place.name).seconds == 0.0
        assert fabric.access(0, place.name, None).seconds == 0.0
