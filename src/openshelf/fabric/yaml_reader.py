"""Dataclasses from YAML and to it, with every problem of a file named by line and column in one go.

The document is composed to nodes, never constructed to Python objects: nodes know where they are in the file,
and the dataclasses' own types decide what a scalar means. So `1e9` is a number here (YAML 1.1 calls it a
string), a place may be named `no`, and nothing in a file can run code.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

import yaml

from openshelf.errors import BadInput
from openshelf.fabric.fields import BadFields, Checked, Path, brief, hints_of, near, nearest, shown, without_none, wrong

T = TypeVar("T", bound=Checked)
_NUMBER = re.compile(r"[-+]?\d+(?:_\d+)*(\.\d*)?([eE][-+]?\d+)?")
_LONGEST_NUMBER = 300  # characters; longer ones are no quantities, and Python refuses to parse some
_UNIT = re.compile(r"_(bytes|bytes_per_s|flop_per_s|bit_per_s|j_per_bit|s_per_m|s|m|w|usd|fit|flop)$")
_FAILED = object()  # a value with problems, already noted
_MOST_PROBLEMS_SHOWN = 20


def parse(cls: type[T], text: str | bytes, file: str) -> T:
    """A `cls` from YAML; raises BadInput with all problems of the file, each with line and column."""
    return read(cls, compose(cls, text, file))


def compose(cls: type[Checked], text: str | bytes, file: str) -> yaml.Node:
    """The nodes of a YAML text that should hold a `cls`; each knows its file, line and column."""
    try:
        loader = yaml.SafeLoader(text)
        loader.name = file  # what marks say
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BadInput(f"{file}{where}: not YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        raise BadInput(f"{file}{_where_in(text, error.position)}: not YAML: {error.reason}") from None
    except RecursionError:
        raise BadInput(f"{file}: not a {cls.__name__.lower()}: lists or mappings are nested too deeply") from None
    if node is None:
        keys = ", ".join(_required(cls))
        raise BadInput(f"{file}, line 1, column 1: the file is empty; expected a mapping with the keys {keys}")
    return node


def read(cls: type[T], node: yaml.Node) -> T:
    """A `cls` from composed nodes, which may be of several files."""
    reader = _Reader()
    value = reader.value(cls, node, ())
    if reader.problems:
        found = sorted(reader.problems, key=lambda problem: problem[0])
        lines = [f"{file}, line {line}, column {column}: {message}" for (file, line, column), message in found]
        if len(lines) > _MOST_PROBLEMS_SHOWN:
            lines = [*lines[:_MOST_PROBLEMS_SHOWN], f"and {len(lines) - _MOST_PROBLEMS_SHOWN} more"]
        raise BadInput("\n".join(lines))
    return cast(T, value)


def dump(value: Checked) -> str:
    """YAML that `parse` reads back as an equal value."""
    return yaml.dump(_yaml_form(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def plain(value: Any) -> Any:
    """Dicts, lists and scalars, as `json.dumps` takes; what is empty by default is left out."""
    if not isinstance(value, Checked):
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        return [plain(each) for each in value] if isinstance(value, tuple) else value
    made = {}
    for field in dataclasses.fields(value):
        each = getattr(value, field.name)
        if each not in (None, (), "") or field.default is dataclasses.MISSING:
            made[field.name] = plain(each)
    return made


class _Reader:
    """Walks nodes beside the types they should have, and notes problems instead of stopping at the first."""

    def __init__(self) -> None:
        self.problems: list[tuple[tuple[str, int, int], str]] = []

    def note(self, node: yaml.Node, path: Path, message: str) -> object:
        mark = node.start_mark
        where = (str(mark.name), mark.line + 1, mark.column + 1)
        self.problems.append((where, f"{shown(path)}: {message}" if path else message))
        return _FAILED

    def value(self, hint: Any, node: yaml.Node, path: Path) -> Any:
        hint, _ = without_none(hint)
        if dataclasses.is_dataclass(hint):
            return self.mapping(cast(type[Checked], hint), node, path)
        if get_origin(hint) is tuple:
            if not isinstance(node, yaml.SequenceNode):
                return self.note(node, path, f"expected a list, {_came(node)} came")
            items = [self.value(get_args(hint)[0], each, (*path, i)) for i, each in enumerate(node.value)]
            return _FAILED if _FAILED in items else tuple(items)
        return self.scalar(hint, node, path)

    def scalar(self, hint: Any, node: yaml.Node, path: Path) -> Any:
        number = hint in (int, float)
        wanted = "a whole number" if hint is int else "a number" if number else "some text"
        wanted = "true or false" if hint is bool else wanted
        if get_origin(hint) is Literal:
            wanted = f"one of {', '.join(get_args(hint))}"
        if not isinstance(node, yaml.ScalarNode) or (node.tag == "tag:yaml.org,2002:null" and not node.style):
            return self.note(node, path, f"expected {wanted}, {_came(node)} came")
        if hint is bool and (node.style or node.value not in ("true", "false")):
            return self.note(node, path, f"expected {wanted}, {_came(node)} came")
        if not number:
            return node.value == "true" if hint is bool else node.value
        short = not node.style and len(node.value) <= _LONGEST_NUMBER
        match = _NUMBER.fullmatch(node.value) if short else None
        if not match or (hint is int and (match[1] or match[2])):
            return self.note(node, path, f"expected {wanted}, {_came(node)} came")
        return hint(node.value)

    def mapping(self, cls: type[Checked], node: yaml.Node, path: Path) -> Any:
        if not isinstance(node, yaml.MappingNode):
            keys = ", ".join(_required(cls))
            return self.note(node, path, f"expected a mapping with the keys {keys}; {_came(node)} came")
        before = len(self.problems)
        hints = hints_of(cls)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        names = list(fields)
        meant: set[str] = set()  # keys that are not missing but misspelt
        nodes: dict[str, yaml.Node] = {}
        values: dict[str, Any] = {}
        for key, child in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name not in names:
                self.note(key, path, _unknown_key(name, key, names, cls))
                meant.update(near(name, names)[:1] if name else ())
            elif name in nodes:
                first = nodes[name].start_mark.line + 1
                self.note(key, path, f"key {name!r} is given twice, first in line {first}")
            else:
                nodes[name] = child
                values[name] = self.value(hints[name], child, (*path, name))
                # Here and not only when the value is made, which a problem elsewhere in the mapping prevents.
                if values[name] is not _FAILED and (message := wrong(values[name], hints[name], fields[name].metadata)):
                    self.note(child, (*path, name), message)
        for name in _required(cls):
            if name not in nodes and name not in meant:
                self.note(node, path, f"key {name!r} is missing from this {cls.__name__.lower()}")
        if len(self.problems) > before:
            return _FAILED
        try:
            return cls(**values)
        except BadFields as error:
            for inner, message in error.problems:
                self.note(_find(node, inner), (*path, *inner), message)
            return _FAILED


def _unknown_key(name: str | None, key: yaml.Node, names: list[str], cls: type) -> str:
    if name is None:
        return f"expected a key of a {cls.__name__.lower()} ({', '.join(names)}), {_came(key)} came"
    message = f"unknown key {name!r} in a {cls.__name__.lower()}; expected one of {', '.join(names)}"
    close = nearest(name, names)
    units = {match[1] for each in names if (match := _UNIT.search(each)) and f"'{each}'" in close}
    if units and not _UNIT.search(name):
        close += f" Values are in base SI units, named by the key: {' or '.join(sorted(units))}"
    return message + close


def _required(cls: type[Checked]) -> list[str]:
    return [field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING]


def _came(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    quoted = isinstance(node, yaml.ScalarNode) and node.style
    if node.tag == "tag:yaml.org,2002:null" and not quoted:
        return "nothing"
    return f"the text {brief(node.value)}" if quoted else brief(node.value)


def _find(node: yaml.Node, path: Path) -> yaml.Node:
    """The node at a path, or the nearest one above it that is in the file."""
    for part in path:
        if isinstance(part, int) and isinstance(node, yaml.SequenceNode):
            node = node.value[part]
        elif isinstance(node, yaml.MappingNode):
            node = next((child for key, child in node.value if key.value == part), node)
    return node


def _where_in(text: str | bytes, position: int) -> str:
    before = text[:position]
    so_far = before if isinstance(before, str) else before.decode("utf-8", "replace")
    lines = so_far.split("\n")
    return f", line {len(lines)}, column {len(lines[-1]) + 1}"


class _OneLine(dict[str, Any]):
    """A mapping that is written as `{a: 1, b: 2}`."""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)  # list items indented below their key


_Dumper.add_representer(
    _OneLine, lambda dumper, value: dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=True)
)
# A line separator in plain or single-quoted text would be read back as a space.
_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"'
    ),
)


def _yaml_form(value: Any) -> Any:
    """`plain`, with dataclasses that hold only scalars on one line, so that a figure reads as one."""
    if isinstance(value, tuple):
        return [_yaml_form(each) for each in value]
    if not isinstance(value, Checked):
        return plain(value)
    made = {name: _yaml_form(getattr(value, name)) for name in plain(value)}
    flat = not any(isinstance(each, dict | list) for each in made.values())
    return _OneLine(made) if flat else made
