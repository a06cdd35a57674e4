"""A fabric's library in the twin: rings take what the law says, best is no slower, presets meet what was measured."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from openshelf.errors import BadInput, UnknownName
from openshelf.fabric import Fabric
from openshelf.twin import Twin, domain, reduces_inside


@cache
def preset(name: str) -> Fabric:
    return Fabric.load(name)


def few(fabric: Fabric, nodes: int) -> Fabric:
    """The same with so many nodes."""
    plain = fabric.topology
    assert plain
    inner = replace(plain.parameters, nodes=nodes, nodes_per_unit=nodes)
    return replace(fabric, topology=replace(plain, rail_optimised=inner))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 18, 1 << 26])
def test_a_ring_of_flows_takes_what_the_law_says(kind: str, nbytes: int) -> None:
    fabric = preset("dgx-a100-ib")
    twin = Twin(fabric)
    flows = twin.collective(kind, nbytes, algorithm="ring", ranks=range(8))
    law = twin.collective(kind, nbytes, algorithm="library", ranks=range(8))
    assert flows.seconds == pytest.approx(law.seconds, rel=1e-6)
    assert flows.regime == law.regime != ""


def test_small_collectives_pay_for_their_launch_and_large_ones_go_at_what_was_reached() -> None:
    fabric = preset("dgx-h100-ib")
    assert fabric.library
    bare, full = Twin(replace(fabric, library=None)), Twin(fabric)
    floor = min(each.launch_s.value for each in fabric.library.regimes)
    for nbytes in (1 << 10, 1 << 18):
        assert full.collective("all_reduce", nbytes, ranks=range(8)).seconds > floor
        assert bare.collective("all_reduce", nbytes, ranks=range(8)).seconds < floor
    large = full.collective("all_reduce", 1 << 29, ranks=range(8))
    assert large.regime == "in switch"
    assert 430e9 < large.bus_bytes_per_s < 490e9  # round a ring of ranks: 340 GB/s


def test_best_is_not_slower_than_the_library() -> None:
    twin = Twin(few(preset("dgx-h100-ib"), 2))
    for nbytes in (1 << 12, 1 << 29):
        library = twin.collective("all_reduce", nbytes, algorithm="library")
        assert twin.collective("all_reduce", nbytes).seconds <= library.seconds
        assert library.flows == 0
        assert "law" in library.how


def test_between_domains_the_slower_of_inside_and_outside_sets_the_pace() -> None:
    fabric = few(preset("dgx-h100-ib"), 2)
    assert domain(fabric).ranks == 8
    assert reduces_inside(fabric)
    twin, size = Twin(fabric), 1 << 32
    inside = twin.collective("all_reduce", size, algorithm="library", ranks=range(8)).seconds
    both = twin.collective("all_reduce", size, algorithm="library").seconds
    assert both > inside
    slow = [replace(each, bandwidth_bytes_per_s=replace(each.bandwidth_bytes_per_s, value=5e9))
            if each.name in ("rail", "up") else each for each in fabric.wires]  # fmt: skip
    narrow = Twin(replace(fabric, wires=tuple(slow))).collective("all_reduce", size, algorithm="library").seconds
    assert narrow > size / 8 / 5e9 > both


def test_switches_reduce_only_as_the_library_does() -> None:
    twin = Twin(preset("dgx-h100-ib"))
    inside = twin.collective("all_reduce", 1 << 29, algorithm="in_switch", ranks=range(8))
    assert inside.regime == "in switch"
    law = twin.collective("all_reduce", 1 << 29, algorithm="library", ranks=range(8))
    assert inside.seconds == pytest.approx(law.seconds, rel=0.01)
    with pytest.raises(BadInput, match=r"does no all_reduce by 'in_switch': .* regime of shape in_switch"):
        Twin(preset("gb200-nvl72")).collective("all_reduce", 1 << 20, algorithm="in_switch")


def test_an_exchange_of_tokens_goes_by_its_phase() -> None:
    twin = Twin(preset("gb200-nvl72"))
    few_tokens, many = (
        [
            twin.exchange(f"NVLink{side}Sided dispatch", tokens, token_bytes=4032, topk=8, experts=256, units=16)
            for side in ("One", "Two")
        ]
        for tokens in (8, 8192)
    )
    assert few_tokens[0] > few_tokens[1]
    assert many[0] < many[1]
    with pytest.raises(UnknownName, match="did you mean 'NVLinkOneSided dispatch'"):
        twin.exchange("OneSided dispatch", 8, token_bytes=4032, topk=8, experts=256)
    with pytest.raises(BadInput, match="not more experts for a token"):
        twin.exchange("NVLinkOneSided dispatch", 8, token_bytes=4032, topk=8, experts=4)


def test_without_a_library_there_is_no_law_to_ask() -> None:
    fabric = replace(preset("dgx-h100-ib"), library=None)
    with pytest.raises(BadInput, match="has no library; write one with `openshelf fabric fit"):
        Twin(fabric).collective("all_reduce", 1 << 20, algorithm="library")
    twin = Twin(preset("dgx-h100-ib"))
    with pytest.raises(BadInput, match="no list of flows"):
        twin.add(twin.tasks(), "all_reduce", 1 << 20, algorithm="library")


def test_an_incomplete_domain_has_only_the_rails_of_its_ranks() -> None:
    fabric, size = few(preset("dgx-h100-ib"), 2), 1 << 30
    assert domain(fabric, np.array([8, *range(8)])).sizes == (1, 8)
    for count in (9, 12, 16):
        made = Twin(fabric).collective("all_reduce", size, algorithm="library", ranks=range(count))
        assert made.seconds >= size / 50e9 / (count - 8)


@pytest.mark.parametrize(
    ("preset", "wire", "kind"),
    [
        ("gb200-nvl72", "nvlink", "reduce_scatter"),
        ("dgx-h100-ib", "nvlink", "all_reduce"),
        ("scalepool", "nvlink", "all_gather"),
        ("dgx-a100-ib", "rail", "all_to_all"),
    ],
)
def test_wires_beyond_what_ports_carry_are_never_slower(preset: str, wire: str, kind: str) -> None:
    """A library's rate is a share of what a link carries, not of what its wire could."""
    fabric = Fabric.load(preset)
    wider = replace(
        fabric,
        wires=tuple(
            replace(each, bandwidth_bytes_per_s=replace(each.bandwidth_bytes_per_s, value=2 * each.total_bytes_per_s))
            if each.name == wire
            else each
            for each in fabric.wires
        ),
    )
    for nbytes in (1 << 16, 1 << 24):
        before, after = (Twin(made).collective(kind, nbytes, ranks=range(16)) for made in (fabric, wider))
        assert after.seconds <= before.seconds * (1 + 1e-9)
