"""Protocols: what loads, stores and messages cost, and that a single transfer has one price."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openshelf.errors import BadInput
from openshelf.fabric import Fabric, Link, LoadedLatency, LoadPoint, Semantics
from openshelf.fabric.wiring.media import Medium, media
from openshelf.fabric.wiring.protocols import Access, MemoryProtocol, MessageProtocol, protocols, semantics
from openshelf.fabric.wiring.wires import switches

from .fabrics import figure, simple_place
from .test_topology_files import POD, load

NAMES = st.sampled_from(sorted(protocols()))
ACCESS: st.SearchStrategy[Access] = st.sampled_from(("load", "store"))


def alone(costs: Semantics, nbytes: int, path_s: float, bandwidth: float) -> float:
    """A single transfer, as the simulator runs it."""
    wire = min(bandwidth, costs.rate_cap_bytes_per_s)
    return float(costs.before_s(nbytes)) + path_s + float(costs.wire_bytes(nbytes)) / wire


def test_every_medium_and_switch_says_where_its_figures_are_from() -> None:
    things: list[Any] = [*media().values(), *switches().values(), *protocols().values()]
    for thing in things:
        for name, value in vars(thing).items():
            if hasattr(value, "source") and name != "latency_s" and value.source == "assumed":
                assert value.note, f"{thing.name}.{name} is assumed and does not say why"


def test_a_medium_with_power_needs_its_rate_and_not_energy_too() -> None:
    with pytest.raises(BadInput, match="rate_bit_per_s is needed"):
        Medium("m", figure(5e-9), power_w=figure(1.0))
    with pytest.raises(BadInput, match="leave one out"):
        Medium("m", figure(5e-9), rate_bit_per_s=1e9, power_w=figure(1.0), energy_j_per_bit=figure(1e-12))


def memory(name: str) -> MemoryProtocol:
    found = protocols()[name]
    assert isinstance(found, MemoryProtocol)
    return found


def test_a_load_waits_for_its_request_and_a_store_does_not() -> None:
    cxl = memory("cxl-2")
    load_, store = cxl.semantics(64, 100e-9, "load"), cxl.semantics(64, 100e-9, "store")
    assert load_.overhead_s - store.overhead_s == pytest.approx(100e-9)
    assert store.overhead_s == cxl.end_s.value


def test_requests_in_flight_bound_the_rate_by_littles_law() -> None:
    cxl = memory("cxl-2")
    costs = cxl.semantics(1 << 20, 300e-9, "load", memory_s=100e-9)
    payload = costs.rate_cap_bytes_per_s * costs.efficiency
    assert payload == pytest.approx(256 * 64 / (165e-9 + 600e-9 + 100e-9))


def test_loads_wait_longer_for_a_memory_that_they_load_themselves() -> None:
    """256 lines of 64 B in flight, 165 ns of controllers, no way: the rate where curve and requests agree."""
    curve = LoadedLatency((LoadPoint(0, 100e-9), LoadPoint(100e9, 500e-9)), "assumed")
    idle = simple_place("a", 1e12, 1e12, 100e-9)
    link = Link("wire", "a", "b", "cxl-2", figure(1e12), latency_s=figure(1e-12))
    rates = []
    for place in (idle, replace(idle, loaded_latency=curve)):
        fabric = Fabric("two", (place, simple_place("b", 1e12, 1e12, 1e-9)), (link,))
        cost = fabric.cost(1 << 30, "a", "b", access="load")
        rates.append(cost.nbytes / cost.transfer_s)
    assert rates[0] == pytest.approx(256 * 64 / 265e-9, rel=1e-3)
    busy_s = 100e-9 + 400e-9 * rates[1] / 100e9
    assert rates[1] == pytest.approx(256 * 64 / (165e-9 + busy_s), rel=1e-3)
    assert rates[1] < 0.8 * rates[0]


def test_what_sharers_hold_is_invalidated_by_a_directory_or_flushed_by_software() -> None:
    cxl, pool = memory("cxl-3"), memory("cxl-pool")
    more = cxl.semantics(64, 50e-9, "store", sharers=3).overhead_s - cxl.semantics(64, 50e-9, "store").overhead_s
    assert more == pytest.approx(cxl.end_s.value + 2 * 50e-9)
    with pytest.raises(BadInput, match="no coherence in hardware"):
        pool.semantics(64, 50e-9, "store", sharers=3)
    stored = alone(pool.semantics(16384, 0.0, "store"), 16384, 0.0, 64e9)
    assert stored - pool.end_s.value == pytest.approx(2.41e-6, rel=1e-3)


def test_a_small_message_goes_along_with_the_doorbell() -> None:
    found = protocols()["infiniband"]
    assert isinstance(found, MessageProtocol)
    assert alone(found.semantics(32, 0.0), 32, 0.0, 12.5e9) == pytest.approx(0.83e-6, rel=0.01)
    assert found.semantics(221, 0.0).overhead_s == pytest.approx(0.83e-6 + 0.75e-6)
    assert found.semantics(32, 1e-6, "load").overhead_s == pytest.approx(0.83e-6 + 0.75e-6 + 1e-6), "an RDMA read"
    tcp = semantics(protocols()["tcp"], 32, 1e-6, "load")
    assert tcp.overhead_s == pytest.approx(10e-6 + 1e-6 + 10e-6), "a request of its own"


def test_a_window_bounds_the_rate_over_a_long_way() -> None:
    tcp = protocols()["tcp"]
    near, far = (semantics(tcp, 1 << 30, path_s) for path_s in (1e-6, 10e-3))
    assert near.rate_cap_bytes_per_s > 1e11
    assert far.rate_cap_bytes_per_s * far.efficiency == pytest.approx(6e6 / 20e-3, rel=0.01)


@given(NAMES, ACCESS, st.integers(1, 1 << 32), st.floats(1e-9, 1e-3), st.floats(1e9, 1e12))
def test_the_cost_of_a_link_is_that_of_a_transfer_alone_on_it(
    name: str, access: Access, nbytes: int, path_s: float, bandwidth: float
) -> None:
    places = (simple_place("a", 1e18, 1e18, 1e-9), simple_place("b", 1e18, 1e18, 1e-9))
    link = Link("wire", "a", "b", name, figure(bandwidth / 4), latency_s=figure(path_s), lanes=4)
    cost = Fabric("two", places, (link,)).cost(nbytes, "a", "b", access=access)
    costs = semantics(protocols()[name], nbytes, path_s, access, 1e-9)
    assert cost.seconds == pytest.approx(2e-9 + alone(costs, nbytes, path_s, bandwidth), rel=1e-12)


@given(st.integers(1, 1 << 32), st.integers(0, 62), ACCESS)
def test_the_cost_on_a_topology_is_that_of_its_semantics_and_its_path(nbytes: int, source: int, access: Access) -> None:
    fabric = POD_FABRIC
    path = fabric.network.path(source, 63)
    costs = fabric.semantics(nbytes, source, 63, access=access)
    path_s, width = fabric.network.latency_s[path].sum(), fabric.network.capacity_bytes_per_s[path].min()
    sent = fabric.send(nbytes, source, 63, access=access)
    assert sent.seconds == pytest.approx(alone(costs, nbytes, path_s, width), rel=1e-12)


POD_FABRIC = load(POD)


def test_a_way_over_two_protocols_pays_both_and_the_request_once() -> None:
    text = POD.replace("up_link: cable", "up_link: cxl").replace(
        "topology:",
        "  - name: cxl\n    protocol: cxl-3\n    bandwidth_bytes_per_s: {value: 128e9, source: assumed}\n"
        "    latency_s: {value: 1e-8, source: assumed}\ntopology:",
    )
    mixed = load(text.replace("protocol: infiniband", "protocol: nvlink"))
    costs = mixed.semantics(1 << 20, 0, 63, access="load")
    path_s = mixed.network.latency_s[mixed.network.path(0, 63)].sum()
    ends = memory("nvlink").end_s.value + memory("cxl-3").end_s.value
    assert costs.overhead_s == pytest.approx(ends + path_s)
    assert costs.efficiency == pytest.approx(240 / 256)
    near = mixed.semantics(1 << 20, 0, 1, access="load")
    assert near.name == "nvlink load"
    assert mixed.send(64, 0, 1).source == "assumed"


def test_a_protocol_of_ones_own_replaces_the_packages() -> None:
    own = replace(memory("cxl-2"), end_s=figure(1e-6))
    fabric = load(POD)
    from openshelf.fabric.wiring.protocols import Protocols

    slower = replace(fabric, protocols=Protocols(memory=(own,)))
    assert slower.known_protocols["cxl-2"] == own
    assert slower.known_protocols["nvlink"] == protocols()["nvlink"]
