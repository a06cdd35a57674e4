"""Fabrics that include one another: files are joined as nodes, so that every mistake still names its own file and line.

What a file defines replaces what it includes, entry by entry and by name; later includes replace earlier ones. Name,
note, format and what a probe left out are not inherited.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from openshelf import _files
from openshelf.errors import BadInput, NotPermitted, UnknownName
from openshelf.fabric import yaml_reader
from openshelf.fabric.fields import Checked
from openshelf.fabric.files import find, local_path

_OWN = ("name", "note", "format", "left_out", "include")


def load(cls: type[Checked], path: Path, above: tuple[Path, ...] = ()) -> yaml.Node:
    """The nodes of a file, with those of what it includes."""
    try:
        # What `local` names is read without anybody having chosen it; any other file was named by the caller.
        text = _files.read_own(path) if path == local_path() else path.read_bytes()
    except NotPermitted:
        raise
    except OSError as error:
        raise BadInput(f"cannot read the fabric {str(path)!r}: {error.strerror}") from error
    node = yaml_reader.compose(cls, text, str(path))
    if not isinstance(node, yaml.MappingNode):
        return node  # the reader says what is wrong with it
    found = [child for key, child in node.value if _key(key) == "include"]
    if len(found) != 1 or not isinstance(found[0], yaml.SequenceNode):
        return node
    inherited: list[tuple[yaml.Node, yaml.Node]] = []
    for entry in found[0].value:
        if isinstance(entry, yaml.ScalarNode):
            part = load(cls, _included(entry, path, (*above, path.resolve())), (*above, path.resolve()))
            if isinstance(part, yaml.MappingNode):
                kept = [pair for pair in part.value if _key(pair[0]) not in _OWN]
                inherited = _joined(inherited, kept)
    # A node that is not a name stays for the reader, which refuses it.
    bad = [entry for entry in found[0].value if not isinstance(entry, yaml.ScalarNode)]
    own = [pair for pair in node.value if pair[1] is not found[0] or bad]
    return yaml.MappingNode(node.tag, _joined(inherited, own), node.start_mark, node.end_mark)


def _included(entry: yaml.ScalarNode, path: Path, above: tuple[Path, ...]) -> Path:
    where = f"{path}, line {entry.start_mark.line + 1}, column {entry.start_mark.column + 1}: include: "
    name = str(entry.value)
    try:
        target = find(path.parent / name if "/" in name or name.endswith((".yaml", ".yml")) else name)
    except UnknownName as error:
        raise UnknownName(where + str(error)) from None
    if target.resolve() in above:
        chain = " includes ".join(each.name for each in (*above, target))
        raise BadInput(f"{where}a fabric cannot include itself: {chain}")
    return target


def _joined(
    below: list[tuple[yaml.Node, yaml.Node]], above: list[tuple[yaml.Node, yaml.Node]]
) -> list[tuple[yaml.Node, yaml.Node]]:
    """The pairs of two mappings; of a key in both, lists are joined by name, else the upper one stays."""
    upper = {_key(key) for key, _ in above}
    lower = {_key(key): value for key, value in below}
    result = [(key, value) for key, value in below if _key(key) not in upper]
    for key, value in above:
        under = lower.get(_key(key))
        if isinstance(value, yaml.SequenceNode) and isinstance(under, yaml.SequenceNode):
            names = {_name(item) for item in value.value}
            items = [item for item in under.value if _name(item) not in names] + value.value
            value = yaml.SequenceNode(value.tag, items, value.start_mark, value.end_mark)
        elif _key(key) == "protocols" and isinstance(value, yaml.MappingNode) and isinstance(under, yaml.MappingNode):
            value = yaml.MappingNode(value.tag, _joined(under.value, value.value), value.start_mark, value.end_mark)
        result.append((key, value))
    return result


def _key(node: yaml.Node) -> object:
    """A key's text; one that is no text is like no other, and left for the reader to refuse."""
    return node.value if isinstance(node, yaml.ScalarNode) else id(node)


def _name(node: yaml.Node) -> object:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((_key(value) for key, value in pairs if _key(key) == "name"), id(node))
