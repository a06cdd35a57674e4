"""A JSON schema (draft 2020-12) derived from the dataclasses, so that the two cannot differ.

It says what a schema can: keys, types, bounds and choices. Rules that join several fields (names that exist,
loads that rise) are checked by the reader only.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Literal, get_args, get_origin

from openshelf.fabric.fields import hints_of, without_none


def schema_of(cls: type) -> dict[str, Any]:
    """The schema of a dataclass, each dataclass inside it as one definition."""
    definitions: dict[str, Any] = {}
    _define(cls, definitions)
    top = definitions.pop(cls.__name__)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": cls.__name__,
        **top,
        "$defs": definitions,
    }


def _define(cls: type, definitions: dict[str, Any]) -> None:
    if cls.__name__ in definitions:
        return
    definitions[cls.__name__] = {}  # holds the name while the fields are visited
    properties, required = {}, []
    for field in dataclasses.fields(cls):
        properties[field.name] = _field(hints_of(cls)[field.name], field.metadata, definitions)
        if field.default is dataclasses.MISSING:
            required.append(field.name)
        elif isinstance(field.default, int | str) and field.default != "":
            properties[field.name]["default"] = field.default
    definitions[cls.__name__] = {
        "description": (inspect.getdoc(cls) or "").split("\n\n")[0],
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _field(hint: Any, rules: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hint, _ = without_none(hint)  # an absent key, never null: one way to say nothing
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        _define(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if get_origin(hint) is tuple:
        made: dict[str, Any] = {"type": "array", "items": _field(get_args(hint)[0], {}, definitions)}
        return made | ({"minItems": 1} if rules.get("not_empty") else {})
    if hint is str:
        return {"type": "string"} | ({"minLength": 1} if rules.get("not_empty") else {})
    made = {"type": {int: "integer", float: "number", bool: "boolean"}[hint]}
    if "above" in rules:
        made["exclusiveMinimum"] = rules["above"]
    if "at_least" in rules:
        made["minimum"] = rules["at_least"]
    return made
