"""Published figures that follow from others, and memory against message semantics on the same wires."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from openshelf.errors import UnknownName
from openshelf.fabric import SIZES, Fabric, Wires, derived, same_wires
from openshelf.show.same_wires import same_wires_svg

NOT_TO_BE_COMPUTED = {
    "the same with a low-latency controller",  # inputs not published
    "link from NIC to ToR (HPN)",
    "ToR switch (HPN)",
}
MISSED = {
    "CXL load through a switch, TraCT",  # a faster switch than the ratio of 2.8 says: 16 %
    "CXL bandwidth through a switch, TraCT",  # it has fewer lines in flight than we assume
    "UnifiedBus in a node, start",
    "UnifiedBus across nodes, a die",
}


def test_derived_figures_are_met_within_15_percent_and_misses_are_these() -> None:
    found = derived()
    assert {each.what for each in found if each.kind == "derived" and not each.met} == NOT_TO_BE_COMPUTED
    assert {each.what for each in found if each.kind == "measured" and not each.met} == MISSED
    assert len(found) > 40


def test_loads_beat_messages_where_bytes_are_few_and_all_come_near_the_wire_where_they_are_many() -> None:
    rows = {(each.protocol, each.nbytes): each for each in same_wires()}
    assert {nbytes for _, nbytes in rows} == set(SIZES)
    assert (SIZES[0], SIZES[-1]) == (8, 1 << 30)
    for memory in ("cxl-3", "nvlink", "unifiedbus"):
        for message in ("infiniband", "roce", "tcp"):
            assert rows[memory, 64].seconds < rows[message, 64].seconds
    wire = (1 << 30) / 50e9
    for name in ("cxl-3", "nvlink", "unifiedbus", "infiniband", "roce"):
        assert wire < rows[name, 1 << 30].seconds < 1.15 * wire
    assert rows["roce-staged", 1 << 30].seconds > 3 * wire, "staging copies are paid"


def test_an_rdma_read_without_a_way_takes_what_is_published() -> None:
    near = Wires(length_m=1e-3, medium="copper-dac", switches=0)
    read = same_wires(("infiniband",), near, sizes=(64,))[0]
    assert 1.5e-6 <= read.seconds <= 3e-6


def test_a_store_is_posted_and_compared_with_a_send() -> None:
    loads, stores = same_wires(sizes=(8,)), same_wires(access="store", sizes=(8,))
    assert all(store.seconds < load.seconds for load, store in zip(loads, stores, strict=True))


def test_sizes_beyond_what_is_known_are_flagged_everywhere() -> None:
    rows = {(each.protocol, each.nbytes): each.beyond for each in same_wires(("infiniband",))}
    assert not rows["infiniband", 4096]
    assert rows["infiniband", 1 << 30] == "infiniband is known at 32 to 32768 bytes; 1073741824 is extrapolated"
    fabric = Fabric.load("dgx-h100-ib")
    assert fabric.send(4096, 0, 255).beyond == ()
    assert "extrapolated" in fabric.send(1 << 20, 0, 255).beyond[0]
    text = same_wires_svg(same_wires(), "on the same wires")
    assert 'stroke-dasharray="5 4"' in text
    assert ElementTree.fromstring(text).tag.endswith("svg")


def test_scattered_pieces_cost_messages_each_and_loads_whole_lines() -> None:
    chunks = {
        each.protocol: each for each in same_wires(("cxl-3", "infiniband", "rdma-rpc"), sizes=(20_000,), pieces=128)
    }
    one = {each.protocol: each for each in same_wires(("cxl-3", "infiniband", "rdma-rpc"), sizes=(20_000,))}
    wire_s = 20_000 / 50e9
    assert chunks["cxl-3"].seconds - one["cxl-3"].seconds == pytest.approx(127 * wire_s * 256 / 240, rel=0.01)
    assert chunks["infiniband"].seconds - one["infiniband"].seconds == pytest.approx(127 * 0.83e-6)
    assert chunks["rdma-rpc"].seconds - one["rdma-rpc"].seconds == pytest.approx(127 * 8.4e-6)
    words = same_wires(("cxl-3",), sizes=(8,), pieces=1001)[0].seconds - same_wires(("cxl-3",), sizes=(8,))[0].seconds
    assert words == pytest.approx(1000 * 64 / (50e9 * 240 / 256)), "a line moves for every word"


def test_an_unknown_protocol_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="mean 'nvlink'"):
        same_wires(("nvlnk",))
