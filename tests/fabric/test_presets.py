"""Presets: they load, have the published counts, and say what they do not know."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from openshelf.errors import BadInput
from openshelf.fabric import (
    Efficiency,
    EfficiencyPoint,
    Fabric,
    bill,
    differences,
    presets,
    summary,
    topologies,
    used_figures,
)
from openshelf.show.fabric import fabric_svg

from .test_topology_files import GRAPH, POD, load, with_topology

JOINED = [name for name in presets() if Fabric.load(name).topology]


def test_the_presets_are_these() -> None:
    assert presets() == [
        "cloudmatrix384", "dgx-a100-ib", "dgx-a100-roce", "dgx-b200-ib", "dgx-h100-ib", "dgx-h100-roce",
        "gb200-nvl72", "gb300-nvl72", "laptop", "mi300x-node", "pseudo-supernode", "scalepool", "scalepool-rdma",
        "tpu-v5p-pod", "ub-mesh-pod",
    ]  # fmt: skip


@pytest.mark.parametrize("name", JOINED)
def test_a_preset_says_where_every_figure_is_from_and_draws(name: str) -> None:
    fabric = Fabric.load(name)
    assert all(
        figure.note or "length_m" in where for where, figure in used_figures(fabric) if figure.source == "assumed"
    )
    root = ElementTree.fromstring(fabric_svg(fabric))
    text = " ".join(each.text or "" for each in root.iter())
    assert fabric.name in text
    assert all(wire in text for wire in {link.name for link in fabric.network.links.values()})
    ways = summary(fabric)["ways"]
    assert all(way["source"] in ("published", "assumed") for way in ways)
    assert ways[0]["seconds"]["8"] <= ways[1]["seconds"]["8"]


def test_published_counts_come_out() -> None:
    matrix = Fabric.load("cloudmatrix384")
    assert matrix.network.endpoints == 384
    up = next(each for each in matrix.wires if each.name == "l2").total_bytes_per_s
    assert up == pytest.approx(8 * 392e9), "not non-blocking"
    rack = Fabric.load("gb200-nvl72")
    assert rack.network.endpoints * rack.place("hbm").capacity_bytes.value == pytest.approx(13.8e12, rel=1e-3)
    assert rack.network.endpoints * rack.place("hbm").read_bandwidth_bytes_per_s.value == pytest.approx(576e12)
    assert Fabric.load("ub-mesh-pod").network.endpoints == 1024
    pool = Fabric.load("scalepool")
    assert (pool.network.ranks, pool.network.memories) == (576, 72)
    assert Fabric.load("scalepool-rdma").network.memories == 0


def test_messages_pay_what_loads_do_not() -> None:
    pool, rdma = Fabric.load("scalepool"), Fabric.load("scalepool-rdma")
    far = pool.network.ranks - 1
    assert pool.semantics(64, 0, far).name == "cxl-3 store"
    assert rdma.semantics(64, 0, far).name == "infiniband"
    assert pool.send(64, 0, far).seconds < rdma.send(64, 0, far).seconds
    assert pool.send(64, 0, 1) == rdma.send(64, 0, 1), "within a rack nothing differs"


def test_what_is_unknown_is_listed_and_not_zero() -> None:
    whole = bill(Fabric.load("gb200-nvl72"))
    assert whole.total("usd") is None
    assert "rack-switch" in whole.unknown("watts")
    cables = whole.items[-1]
    assert cables.watts == pytest.approx(72 * 2 * 0.1 / 800e9 * 7200e9)
    assert whole.total("watts") == pytest.approx(72 * 1200 + (cables.watts or 0))


def test_a_priced_medium_is_priced_by_rate() -> None:
    text = POD.replace("medium: optics-dsp", "medium: copper-aec").replace("value: 30,", "value: 5,")
    whole = bill(load(text))
    hosts = next(item for item in whole.items if item.what == "cable (host-leaf)")
    assert hosts.usd == pytest.approx(64 * 525 * 400 / 800)
    assert hosts.watts is None
    assert hosts.failures_per_year == pytest.approx(64 * 2 * 10e-9 * 8766 / 2)


def test_differences_are_matched_by_name() -> None:
    one, other = Fabric.load("dgx-h100-ib").plain(), Fabric.load("dgx-h100-roce").plain()
    found = {where: (before, after) for where, before, after in differences(one, other)}
    assert found["wires.rail.protocol"] == ("infiniband", "roce")
    assert not any(where.startswith("places") for where in found)
    assert differences(one, one) == []


def test_a_product_takes_longer_than_at_peak_and_sizes_beyond_the_curve_are_flagged() -> None:
    gemm = Fabric.load("dgx-h100-ib").compute[0].gemm[0]
    for work, share, beyond in ((1e8, 0.02, False), (1e11, 0.5, False), (1e12, 0.7, False), (1e15, 0.7, True)):
        seconds, flagged = gemm.seconds(work)
        assert seconds == pytest.approx(work / (989e12 * share))
        assert flagged == beyond
    assert gemm.seconds(1e3)[1]
    assert replace(gemm, efficiency=None).seconds(1e12) == (1e12 / 989e12, False)
    low, high = EfficiencyPoint(1e9, 0.5), EfficiencyPoint(1e10, 1.5)
    with pytest.raises(BadInput, match=r"at most 1, 1\.5 came"):
        Efficiency((low, high), "assumed")
    with pytest.raises(BadInput, match="work must rise"):
        Efficiency((low, low), "assumed")


def test_every_generator_can_be_named_in_a_file() -> None:
    made = {name for name in topologies.__all__ if name[0].islower()} - {"with_memory"}
    assert made == set(Fabric.schema()["$defs"]["Topology"]["properties"])


def test_a_small_graph_is_drawn_whole() -> None:
    text = fabric_svg(load(with_topology(GRAPH)))
    assert all(f">{name}</text>" in text for name in "abcs")
