"""A topology in a file: one generator and its parameters, or an explicit graph.

What a file may say is derived from the generators' own signatures, where a class of links is the name of a wire and
a class of switches the name of a switch. So a new generator needs no second description, and the JSON schema
knows it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass
from types import GenericAlias
from typing import Any, Literal, cast, get_args, get_origin

from openshelf.fabric.fields import Checked, Path, Problem, above_zero, hints_of, not_empty, without_none, zero_or_more
from openshelf.fabric.topologies import (
    MEANINGS,
    Edge,
    dragonfly,
    fat_tree,
    full_mesh,
    graph,
    leaf_spine,
    nd_full_mesh,
    product,
    rail_only,
    rail_optimised,
    ring,
    scalepool,
    single_switch,
    sites,
    torus,
)
from openshelf.fabric.wiring.network import LinkClass, Network, SwitchClass

_GENERATORS: tuple[Callable[..., Network], ...] = (
    full_mesh, ring, torus, nd_full_mesh, single_switch, product, leaf_spine, fat_tree, rail_optimised, rail_only,
    dragonfly, scalepool,
)  # fmt: skip
_NAMES = {LinkClass: "wires", SwitchClass: "switches"}
"""What stands for a class in a file: a name from this list of the fabric."""


@dataclass(frozen=True)
class GraphSwitch(Checked):
    """A switch of a graph: its own name, and its kind."""

    name: str = field(metadata=not_empty)
    switch: str = field(metadata={**not_empty, "names": "switches"})


@dataclass(frozen=True)
class GraphEdge(Checked):
    """`count` wires between two nodes of a graph."""

    a: str = field(metadata=not_empty)
    b: str = field(metadata=not_empty)
    wire: str = field(metadata={**not_empty, "names": "wires"})
    count: int = field(default=1, metadata=above_zero)


@dataclass(frozen=True)
class Graph(Checked):
    """Every endpoint, switch and wire by name."""

    endpoints: tuple[str, ...] = field(metadata=not_empty)
    edges: tuple[GraphEdge, ...] = field(metadata=not_empty)
    switches: tuple[GraphSwitch, ...] = ()


class _OneOf(Checked):
    """Exactly one of the fields is given."""

    def problems(self) -> list[Problem]:
        found = super().problems()
        given = [each.name for each in fields(self) if getattr(self, each.name) is not None]
        if not found and len(given) != 1:
            names = ", ".join(each.name for each in fields(self))
            came = " and ".join(given) or "none"
            found.append(((given[1],) if given else (), f"expected exactly one of {names}; {came} came"))
        return found

    @property
    def generator(self) -> str:
        """The name of the one that is given."""
        return next(each.name for each in fields(self) if getattr(self, each.name) is not None)

    @property
    def parameters(self) -> Checked:
        return cast(Checked, getattr(self, self.generator))


def _field(name: str, hint: Any, default: Any) -> tuple[str, Any, Any]:
    """A field of a file for a parameter of a generator."""
    hint, optional = without_none(hint)
    rules: dict[str, Any] = {}
    if hint in _NAMES:
        hint, rules = str, {"names": _NAMES[hint], **({} if optional else not_empty)}
        default = "" if optional else default
    elif get_origin(hint) in (Sequence, tuple):
        item = _field(name, get_args(hint)[0], MISSING)
        hint = GenericAlias(tuple, (item[1], ...))
        rules = {**({} if default == () else not_empty), **item[2].metadata}
    elif is_dataclass(hint):
        hint = _parameters(cast(type, hint).__name__, cast(type, hint), cast(type, hint).__doc__)
    elif hint in (int, float):
        rules = zero_or_more  # what is too little the generator says
    return name, hint, field(default=default, metadata=rules)


def _parameters(name: str, of: Any, doc: str | None) -> type[Checked]:
    """A dataclass with a field for each parameter of a generator, or of a dataclass that it takes."""
    hints = hints_of(of)
    made = [
        _field(each.name, hints[each.name], MISSING if each.default is inspect.Parameter.empty else each.default)
        for each in inspect.signature(of).parameters.values()
        if each.name != "name"
    ]
    cls = make_dataclass(name, made, bases=(Checked,), frozen=True)
    cls.__doc__ = doc
    return cast(type[Checked], cls)


def _choice(name: str, choices: Mapping[str, type[Checked]]) -> Any:
    made = [(each, cls | None, field(default=None)) for each, cls in choices.items()]
    return make_dataclass(name, made, bases=(_OneOf,), frozen=True)


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


_choices = {each.__name__: _parameters(_camel(each.__name__), each, each.__doc__) for each in _GENERATORS}
_choices["graph"] = Graph
_Site = _choice("Site", _choices)
_Site.__doc__ = "A generator, or a graph, for each site."
_Sites = make_dataclass(
    "Sites",
    [
        ("site", _Site),
        *(_field(name, hint, MISSING) for name, hint in hints_of(sites).items() if name not in ("site", "return")),
    ],
    bases=(Checked,),
    frozen=True,
)
_Sites.__doc__ = sites.__doc__
_Topology = _choice("Topology", {**_choices, "sites": _Sites})


class Topology(_Topology):  # type: ignore[misc, valid-type] # it is made from signatures, which mypy does not follow
    """How endpoints are joined: exactly one generator with its parameters, or a graph."""


def generators() -> dict[str, dict[str, tuple[str, str]]]:
    """Of every generator, its parameters: (what is expected, what it means)."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for generator in (*_GENERATORS, sites):
        rows = {}
        for name, each in inspect.signature(generator).parameters.items():
            if name == "name":
                continue
            hint, optional = without_none(hints_of(generator)[name])
            what = {LinkClass: "a wire", SwitchClass: "a switch", int: "a whole number", float: "a number"}.get(
                hint, ""
            )
            if get_origin(hint) is Literal:
                what = " or ".join(get_args(hint))
            elif get_origin(hint) in (Sequence, tuple):
                inner = {LinkClass: "wires", int: "whole numbers"}.get(get_args(hint)[0], "mappings")
                what = f"a list of {inner}"
            given = optional or each.default is not inspect.Parameter.empty
            rows[name] = (f"{what or 'a generator'}{', optional' if given else ''}", MEANINGS[name])
        found[generator.__name__] = rows
    return found


def names_used(data: Checked, path: Path = ()) -> list[tuple[Path, str, str]]:
    """Every name of a wire or a switch in a topology: where it is, the list it is from, and the name."""
    found: list[tuple[Path, str, str]] = []
    for each in fields(data):
        value, where = getattr(data, each.name), (*path, each.name)
        items = enumerate(value) if isinstance(value, tuple) else [(None, value)]
        for i, item in items:
            at = where if i is None else (*where, i)
            if isinstance(item, Checked):
                found += names_used(item, at)
            elif item and "names" in each.metadata:
                found.append((at, each.metadata["names"], str(item)))
    return found


def compile(topology: Topology, wires: Mapping[str, LinkClass], switches: Mapping[str, SwitchClass]) -> Network:
    """The network of a topology; raises BadInput if its parameters do not fit together."""
    classes: dict[str, Mapping[str, Any]] = {"wires": wires, "switches": switches}
    data: Any = topology.parameters
    if topology.generator == "graph":
        edges = [Edge(each.a, each.b, wires[each.wire], each.count) for each in data.edges]
        return graph(data.endpoints, {each.name: switches[each.switch] for each in data.switches}, edges)
    if topology.generator == "sites":
        rest = _arguments(data, classes, sites)
        return sites(compile(data.site, wires, switches), **{key: rest[key] for key in rest if key != "site"})
    generator = next(each for each in _GENERATORS if each.__name__ == topology.generator)
    return generator(**_arguments(data, classes, generator))


def _arguments(data: Any, classes: Mapping[str, Mapping[str, Any]], of: Any) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for each in fields(data):
        value = getattr(data, each.name)
        if value in ("", None):
            continue  # the generator's own default
        names = each.metadata.get("names")
        if isinstance(value, tuple):
            inner = get_args(hints_of(of)[each.name])
            made[each.name] = tuple(
                classes[names][item] if names
                else inner[0](**_arguments(item, classes, inner[0])) if isinstance(item, Checked)
                else item
                for item in value
            )  # fmt: skip
        else:
            made[each.name] = classes[names][value] if names else value
    return made
