"""Topologies, wires, media and includes in files: what they mean, and every mistake by line and column."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from openshelf.errors import BadInput, UnknownName
from openshelf.fabric import Fabric
from openshelf.fabric.wiring.topology import names_used
from openshelf.fabric.yaml_reader import parse

POD = """\
name: pod
places:
  - name: hbm
    tier: device
    capacity_bytes: {value: 80e9, source: assumed}
    read_bandwidth_bytes_per_s: {value: 3e12, source: assumed}
    write_bandwidth_bytes_per_s: {value: 3e12, source: assumed}
    latency_s: {value: 1e-7, source: assumed}
compute:
  - {name: gpu, place: hbm}
endpoint: gpu
wires:
  - name: cable
    protocol: infiniband
    bandwidth_bytes_per_s: {value: 12.5e9, source: published}
    lanes: 4
    medium: optics-dsp
    length_m: {value: 30, source: assumed}
topology:
  leaf_spine:
    endpoints_per_leaf: 16
    leaves: 4
    spines: 2
    host_link: cable
    up_link: cable
    leaf: quantum-2
"""

GRAPH = """\
  graph:
    endpoints: [a, b, c]
    switches:
      - {name: s, switch: quantum-2}
    edges:
      - {a: a, b: s, wire: cable}
      - {a: b, b: s, wire: cable, count: 2}
      - {a: c, b: s, wire: cable}
"""


def load(text: str) -> Fabric:
    return parse(Fabric, text, "pod.yaml")


def with_topology(text: str) -> str:
    return POD[: POD.index("  leaf_spine")] + text


def test_a_topology_is_compiled_from_wires_and_switches() -> None:
    fabric = load(POD)
    network = fabric.network
    assert network.endpoints == 64
    path = network.path(0, 63)
    assert len(path) == 4
    assert set(network.capacity_bytes_per_s[path]) == {50e9}
    one_way = 30 * 4.9e-9 + 2 * 100e-9
    assert network.latency_s[path].sum() == pytest.approx(4 * one_way + 3 * 240e-9)


def test_a_file_with_a_topology_is_written_and_read_back_equal_and_fits_the_schema() -> None:
    schema = Fabric.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for text in (POD, with_topology(GRAPH)):
        fabric = load(text)
        assert load(fabric.yaml()) == fabric
        jsonschema.validate(json.loads(json.dumps(fabric.plain())), schema)
        jsonschema.validate(yaml.safe_load(fabric.yaml()), schema)


def test_sites_and_products_nest() -> None:
    sites = """\
  sites:
    site: {single_switch: {endpoints: 9, link: cable, switch: quantum-2}}
    count: 2
    gateways: 1
    long_link: cable
"""
    assert load(with_topology(sites)).network.endpoints == 16
    mesh = """\
  product:
    dimensions:
      - {kind: mesh, size: 4, link: cable}
      - {kind: switch, size: 3, link: cable, switch: quantum-2}
"""
    fabric = load(with_topology(mesh))
    assert fabric.network.endpoints == 12
    assert fabric.topology is not None
    assert [name for _, _, name in names_used(fabric.topology)] == ["cable", "cable", "quantum-2"]


MISTAKES = {
    "reach": ("value: 30,", "value: 3000,", "line 18, column 15: .*3000 m is beyond the reach of optics-dsp, 500 m"),
    "no reach": ("optics-dsp", "cpo", "line 17, column 13: .*reach of cpo is not known"),
    "no such medium": ("optics-dsp", "optics-dps", "line 17, column 13: .*no medium is named.*mean 'optics-dsp'"),
    "no length": ("    length_m: {value: 30, source: assumed}\n", "", "line 13, column 5: .*length_m is missing"),
    "negative length": ("value: 30,", "value: -30,", "line 18, column 23: .*above 0, -30.0 came"),
    "no unit": (
        "    length_m:",
        "    length:",
        "line 18, column 5: .*'length'.*mean 'length_m'.*units.*: m",
    ),
    "no lanes": ("lanes: 4", "lanes: 0", "line 16, column 12: .*above 0, 0 came"),
    "no such protocol": (
        "infiniband",
        "infinibnd",
        "line 14, column 15: .*'infinibnd' came.*mean 'infiniband'",
    ),
    "no such wire": ("host_link: cable", "host_link: cabel", "line 24, column 16: .*no such name 'cabel'.*'cable'"),
    "no such switch": ("leaf: quantum-2", "leaf: quantum-3", "line 26, column 11: .*no such name.*'quantum-2'"),
    "no such generator": ("  leaf_spine:", "  leaf_spin:", "line 20, column 3: .*mean 'leaf_spine'"),
    "too few ports": ("endpoints_per_leaf: 16", "endpoints_per_leaf: 99", "line 21, column 5: .*ports"),
    "a missing parameter": ("    spines: 2\n", "", "line 21, column 5: .*'spines' is missing"),
    "a negative parameter": ("spines: 2", "spines: -2", "line 23, column 13: .*at least 0, -2 came"),
    "two generators": (
        "  leaf_spine:",
        "  ring: {endpoints: 3, link: cable}\n  leaf_spine:",
        "line 22, column 5: .*expected exactly one of .*ring and leaf_spine came",
    ),
    "no such endpoint": ("endpoint: gpu", "endpoint: gup", "line 11, column 11: .*no such name 'gup'.*'gpu'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_by_line_and_column(name: str) -> None:
    old, new, expected = MISTAKES[name]
    assert POD.count(old) == 1
    with pytest.raises(BadInput, match=r"^pod\.yaml, " + expected):
        load(POD.replace(old, new))


def test_a_graph_in_two_parts_is_refused_with_line_and_column() -> None:
    text = with_topology(GRAPH.replace("      - {a: c, b: s, wire: cable}\n", ""))
    with pytest.raises(BadInput, match=r"pod\.yaml, line 21, column 5: topology\.graph: .*c"):
        load(text)


def test_a_network_that_does_not_fit_into_memory_is_refused() -> None:
    with pytest.raises(BadInput, match=r"line 20, column 14: topology\.full_mesh: 2499999950000000 resources"):
        load(with_topology("  full_mesh: {endpoints: 50_000_000, link: cable}\n"))


def test_a_link_beyond_its_reach_is_refused_too() -> None:
    link = """\
links:
  - name: pcie
    from_place: hbm
    to_place: hbm
    protocol: roce
    medium: copper-dac
    bandwidth_bytes_per_s: {value: 50e9, source: assumed}
    length_m: {value: 20, source: assumed}
"""
    with pytest.raises(BadInput, match=r"line 8, column 15: .*beyond the reach of copper-dac.*aoc"):
        load(POD.replace("places:", link + "places:", 1).replace("name: pod\n", "", 1) + "name: pod\n")


def test_a_fabric_includes_another_and_replaces_by_name(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "deep").mkdir()
    upper = tmp_path / "deep" / "roce.yaml"
    upper.write_text(
        "name: roce\ninclude: [../pod.yaml]\nwires:\n  - name: cable\n    protocol: roce\n"
        "    bandwidth_bytes_per_s: {value: 50e9, source: assumed}\n    latency_s: {value: 1e-7, source: assumed}\n"
    )
    fabric = Fabric.load(upper)
    assert (fabric.name, fabric.wires[0].protocol, len(fabric.wires)) == ("roce", "roce", 1)
    assert fabric.network.endpoints == 64
    assert Fabric.load(tmp_path / "pod.yaml").wires[0].protocol == "infiniband"
    fabric.save(tmp_path / "flat.yaml")
    assert Fabric.load(tmp_path / "flat.yaml") == fabric


def test_a_mistake_in_an_included_file_names_that_file(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD.replace("lanes: 4", "lanes: 0"))
    (tmp_path / "upper.yaml").write_text("name: upper\ninclude: [pod.yaml]\n")
    with pytest.raises(BadInput, match=r"pod\.yaml, line 16, column 12"):
        Fabric.load(tmp_path / "upper.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a, b]: 1", r"line 3, column 1: expected a key of a fabric.*a list came"),
        ("wires:\n  - name: [x]", r"line 4, column 11: wires\[1\].name: expected some text, a list came"),
        ("wires: 3", r"line 3, column 8: wires: expected a list"),
        ("name: again", r"line 3, column 1: key 'name' is given twice"),
    ],
)
def test_a_file_that_includes_is_refused_like_any_other(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "upper.yaml").write_text(f"name: upper\ninclude: [pod.yaml]\n{text}\n")
    with pytest.raises(BadInput, match=r"upper\.yaml, " + words):
        Fabric.load(tmp_path / "upper.yaml")
    (tmp_path / "upper.yaml").write_text("name: upper\ninclude: [[pod.yaml]]\nplaces: []\n")
    with pytest.raises(BadInput, match=r"line 2, column 11: include\[0\]: expected some text, a list came"):
        Fabric.load(tmp_path / "upper.yaml")


def test_includes_in_a_circle_or_of_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: a\ninclude: [b.yaml]\n")
    (tmp_path / "b.yaml").write_text("name: b\ninclude:\n  - a.yaml\n")
    with pytest.raises(BadInput, match=r"b\.yaml, line 3, column 5: .*itself: a.yaml includes b.yaml includes a.yaml"):
        Fabric.load(tmp_path / "a.yaml")
    (tmp_path / "c.yaml").write_text("name: c\ninclude: [labtop]\n")
    with pytest.raises(UnknownName, match=r"c\.yaml, line 2, column 11: .*mean 'laptop'"):
        Fabric.load(tmp_path / "c.yaml")
    (tmp_path / "d.yaml").write_text("name: d\ninclude: [laptop]\n")
    assert Fabric.load(tmp_path / "d.yaml").place("dram").tier == "dram"
