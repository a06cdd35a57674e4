"""The schema itself is walked: every field of every class of it is planted in some fabric here, and has an effect.

A field that is added to the model, or a parameter to a generator, is in the schema at once; the last test then fails
until a fabric here gives it. `planted.py` has the fabric of most fields; here are the other generators, and
what only some fabrics have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

from openshelf.errors import OpenshelfError
from openshelf.fabric import Fabric, yaml_reader
from openshelf.fabric.fields import Checked, hints_of, without_none
from openshelf.fabric.schema import schema_of
from openshelf.twin import Twin
from tests.fabric.planted import CIRCUITS, TEXT, WORDS, answers, changed, loaded

Path = tuple[str | int, ...]
GENERATORS = {
    "full_mesh": "{endpoints: 4, link: inside}",
    "ring": "{endpoints: 5, link: inside}",
    "torus": "{sizes: [3, 4], link: inside}",
    "nd_full_mesh": "{sizes: [3, 2], links: [inside, between]}",
    "single_switch": "{endpoints: 4, link: inside, switch: plane, planes: 2}",
    "product": "{dimensions: [{kind: switch, size: 4, link: inside, switch: plane, role: near}, "
    "{kind: ring, size: 3, link: between}]}",
    "leaf_spine": "{endpoints_per_leaf: 2, leaves: 3, spines: 2, host_link: inside, up_link: between, leaf: plane, "
    "spine: wide, uplinks_per_spine: 2, planes: 2}",
    "fat_tree": "{endpoints: 8, host_link: inside, switch: rack, levels: 3, oversubscription: 3, up_link: between, "
    "planes: 2}",
    "rail_optimised": "{nodes: 4, per_node: 2, nodes_per_unit: 2, spines: 2, xlink: inside, xswitch: rack, "
    "rail_link: between, up_link: inside, switch: plane, uplinks_per_spine: 2, xplanes: 2}",
    "rail_only": "{nodes: 8, per_node: 2, xlink: inside, xswitch: rack, rail_link: between, switch: rack, levels: 3, "
    "oversubscription: 3, xplanes: 2}",
    "dragonfly": "{groups: 4, routers_per_group: 2, endpoints_per_router: 2, global_links_per_router: 2, "
    "host_link: inside, local_link: between, global_link: inside, switch: plane, routing: valiant}",
    "scalepool": "{racks: 3, per_rack: 2, memories: 2, memories_per_leaf: 2, shape: [4], xlink: inside, xswitch: rack, "
    "cxl_link: between, cxl_switch: plane, up_link: between, xplanes: 2}",
    "graph": "{endpoints: [a, b, c], switches: [{name: s, switch: plane}], "
    "edges: [{a: a, b: s, wire: inside, count: 2}, {a: s, b: b, wire: between}, {a: s, b: c, wire: inside}]}",
    "sites": "{site: {ring: {endpoints: 3, link: inside}}, count: 2, gateways: 1, long_link: between}",
}
MORE = """
  - {name: wide, ports: 16, port_bandwidth_bytes_per_s: {value: 11e9, source: measured}, reduces: true,
     latency_s: {value: 4e-7, source: measured}, forwarding: cut-through, kind: packet}
"""
LIBRARY = """
library:
  name: calls
  sharing: 0.5
  regimes:
    - name: short
      shape: ring
      launch_s: {value: 5e-6, source: measured}
      own_bytes_per_s: {value: 50e9, source: measured}
      crossings:
        - {wire: inside, step_s: {value: 2e-6, source: measured},
           bandwidth_bytes_per_s: {value: 5e9, source: measured}}
  phases:
    - {name: dispatch, sent_to: units, sides: one, launch_s: {value: 5e-6, source: measured},
       hop_s: {value: 1e-6, source: measured}, token_s: {value: 1e-8, source: measured},
       bandwidth_bytes_per_s: {value: 5e9, source: measured}}
"""
DETAILS = {
    "    power_w: {value: 10, source: measured}\n    price_usd: {value: 500": "    energy_j_per_bit: {value: 1e-11, "
    "source: measured}\n    price_usd: {value: 500",
    "inline_bytes: 220": "inline_bytes: 220\n      efficiency: {value: 0.9, source: measured}",
}
"""Other fields than the fabric of most has, because one excludes the other."""


def text_of(generator: str, parameters: str, more: str = "") -> str:
    made = TEXT[: TEXT.index("topology:")].rstrip() + MORE + f"topology:\n  {generator}: {parameters}\n{more}"
    return made if generator == "scalepool" else made.replace("memory_endpoint: pool\n", "")


def detailed() -> str:
    made = text_of("ring", GENERATORS["ring"])
    for old, new in DETAILS.items():
        assert old in made
        made = made.replace(old, new)
    return made


TEXTS = {
    "pool": TEXT,
    "circuits": CIRCUITS,
    "library": text_of("single_switch", GENERATORS["single_switch"], LIBRARY),
    "details": detailed(),
    **{name: text_of(name, parameters) for name, parameters in GENERATORS.items()},
}
PARTS = {"library": ("library",), "details": ("energy_j_per_bit", "efficiency")}
"""What is planted where not all is: that which the other fabrics have not; of other generators the topology."""
QUIET = {
    "other_pages.0.write_bandwidth_bytes_per_s": "nothing writes by other page sizes yet: the probe measures them",
    "other_pages.0.copy_bandwidth_bytes_per_s": "nothing copies by other page sizes yet",
    "efficiency.source": "products do not say how far they can be trusted",
    "media.0.price_usd": "the wire's own price stands before it",
}


@dataclass(frozen=True)
class Field:
    """A value of a fabric: where it is, and which field of which class that is."""

    cls: str
    name: str
    path: Path
    value: Any
    hint: Any
    names: str


def fields_of(value: Checked, path: Path = ()) -> Iterator[Field]:
    """Every value that is there; of a list, its first."""
    for each in fields(value):
        item, hint = getattr(value, each.name), without_none(hints_of(type(value))[each.name])[0]
        own = (*path, each.name)
        if each.name in WORDS or item is None or item in ("", ()):
            continue
        for i, one in enumerate(item) if isinstance(item, tuple) else [(None, item)]:
            where = own if i is None else (*own, i)
            if isinstance(one, Checked):
                yield Field(type(value).__name__, each.name, where, None, None, "")
                yield from fields_of(one, where)
            elif not i:
                inner = get_args(hint)[0] if isinstance(item, tuple) else hint
                yield Field(type(value).__name__, each.name, where, one, inner, each.metadata.get("names", ""))


def other(field: Field, fabric: Fabric) -> Any:
    """Another value that the field may have, if there is one."""
    if field.names:
        known = [each.name for each in getattr(fabric, field.names)]
        return known[(known.index(field.value) + 1) % len(known)]
    if get_origin(field.hint) is Literal:
        choices = [each for each in get_args(field.hint) if each != field.value]
        return "assumed" if field.name == "source" else choices[0]
    return changed(field.value)


def read(name: str) -> Fabric:
    return yaml_reader.parse(Fabric, yaml.safe_dump(loaded(TEXTS[name])), "pod.yaml")


def parsed(data: Any) -> Fabric:
    return yaml_reader.parse(Fabric, json.dumps(data), "pod.yaml")


def said(fabric: Fabric) -> str:
    """What anybody may ask, and what a library says."""
    found: list[Any] = [answers(fabric)]
    twin, library = Twin(fabric), fabric.library
    if library:
        found.append([twin.collective("all_reduce", size, algorithm="library").plain() for size in (1e3, 1e8)])
        found.append([
            twin.exchange(each.name, tokens, token_bytes=4096, topk=4, experts=16, units=4)
            for each in library.phases for tokens in (4, 4096)
        ])  # fmt: skip
        found.append([(each.name, each.bandwidth_bytes_per_s.source) for each in library.phases])
    return json.dumps(found, default=repr)


def planted_in(name: str) -> set[tuple[str, str]]:
    """The fields that are planted in a fabric."""
    parts = PARTS.get(name, ("topology",) if name in GENERATORS else ())
    found = fields_of(read(name))
    return {(each.cls, each.name) for each in found if not parts or set(each.path) & set(parts)}


def silent(name: str) -> list[str]:
    """The fields that are planted in a fabric and change no answer."""
    fabric, parts = read(name), PARTS.get(name, ("topology",) if name in GENERATORS else ())
    before, plain = said(fabric), fabric.plain()
    quiet: list[str] = []
    for field in fields_of(fabric):
        if parts and not set(field.path) & set(parts):
            continue
        where = ".".join(map(str, field.path))
        new = None if field.hint is None else other(field, fabric)
        if new in (None, field.value) or any(each in where for each in QUIET):
            continue  # it has fields of its own, or there is nothing else to take
        data = json.loads(json.dumps(plain))
        at = data
        for part in field.path[:-1]:
            at = at[part]
        at[field.path[-1]] = new
        try:
            after = said(parsed(data))
        except OpenshelfError:
            continue
        if after == before:
            quiet.append(f"{where} = {field.value!r}")
    return quiet


@pytest.mark.parametrize("name", TEXTS)
def test_another_value_gives_another_answer_or_is_refused(name: str) -> None:
    assert not silent(name)


def test_no_field_of_the_schema_is_forgotten() -> None:
    schema = schema_of(Fabric)
    every = {(cls, name) for cls, part in {"Fabric": schema, **schema["$defs"]}.items() for name in part["properties"]}
    planted = {each for name in TEXTS for each in planted_in(name)}
    # A site has the generators that a topology has, and they are planted there.
    site = {each for each in every if each[0] == "Site"}
    assert {name for _, name in site} <= {name for cls, name in every if cls == "Topology"}
    assert sorted(each for each in every - planted - site if each[1] not in WORDS) == []
