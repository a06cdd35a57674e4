"""Rules of single fields, written once beside each dataclass field and used three times.

A dataclass that derives from `Checked` refuses wrong values when it is made, `yaml_reader` adds file, line and
column to the same refusals, and `schema` turns the same declarations into a JSON schema. So a figure from
Python, from a file and from another tool's validator obeys one rule.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from openshelf.errors import BadInput

Path = tuple[str | int, ...]
"""Where a value is inside a document: `("places", 0, "latency_s")`."""

Problem = tuple[Path, str]

above_zero = {"above": 0}
zero_or_more = {"at_least": 0}
not_empty = {"not_empty": True}


class BadFields(BadInput):
    """Values that break their fields' rules; `problems` says where, so that a reader can name the line."""

    def __init__(self, problems: Sequence[Problem], what: str = "value") -> None:
        self.problems = list(problems)
        lines = "".join(f"\n  {shown(path)}: {message}" if path else f"\n  {message}" for path, message in problems)
        super().__init__(f"not a valid {what}:{lines}")


@dataclasses.dataclass(frozen=True)
class Checked:
    """A frozen dataclass whose fields are checked when it is made."""

    def __post_init__(self) -> None:
        problems = self.problems()
        if problems:
            raise BadFields(problems, type(self).__name__.lower())

    def problems(self) -> list[Problem]:
        """Everything wrong with this value; subclasses add rules that join several fields."""
        hints = hints_of(type(self))
        found: list[Problem] = []
        for field in dataclasses.fields(self):
            message = wrong(getattr(self, field.name), hints[field.name], field.metadata)
            if message:
                found.append(((field.name,), message))
        return found


_hints: dict[Any, dict[str, Any]] = {}


def hints_of(cls: Any) -> dict[str, Any]:
    """The types of a class's fields or a function's parameters; kept, since every value made asks for them."""
    if cls not in _hints:
        later = cls.later_types() if hasattr(cls, "later_types") else None
        _hints[cls] = get_type_hints(cls, localns=later)
    return _hints[cls]


def without_none(hint: Any) -> tuple[Any, bool]:
    """A hint with `| None` taken off, and whether it was there."""
    if get_origin(hint) in (Union, types.UnionType):
        others = [arg for arg in get_args(hint) if arg is not types.NoneType]
        assert len(others) == 1, f"only `X | None` unions are used in the model, not {hint}"
        return others[0], True
    return hint, False


def shown(path: Path) -> str:
    """`places[0].latency_s`, as a reader of the file would write it."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def near(word: str, names: Sequence[str]) -> list[str]:
    """The names that a misspelt word may have meant, the likeliest first."""
    parts = {part for part in re.split(r"[-_. ]", word.lower()) if len(part) > 2}
    within = [name for name in names if parts & set(re.split(r"[-_. ]", name.lower()))]
    within.sort(key=lambda name: -SequenceMatcher(None, word, name).ratio())
    return list(dict.fromkeys([*get_close_matches(word, names, n=3, cutoff=0.8), *within,
                               *get_close_matches(word, names, n=3, cutoff=0.5)]))[:3]  # fmt: skip


def nearest(word: str, names: Sequence[str]) -> str:
    """`; did you mean ...?`, or nothing if no name is near."""
    close = near(word, names)
    return f"; did you mean {' or '.join(repr(name) for name in close)}?" if close else ""


def wrong(value: object, hint: Any, rules: Any) -> str | None:
    """What is wrong with a field's value by its type and rules, or None."""
    hint, optional = without_none(hint)
    if value is None:
        return None if optional else "a value is needed, None came"
    if get_origin(hint) is Literal:
        choices = [str(choice) for choice in get_args(hint)]
        if value not in choices:
            return f"expected one of {', '.join(choices)}; {value!r} came{nearest(str(value), choices)}"
    elif hint in (int, float):
        return _wrong_number(value, hint, rules)
    elif get_origin(hint) is tuple:
        item = get_args(hint)[0]
        if not isinstance(value, tuple) or not all(isinstance(each, item) for each in value):
            return f"expected a tuple of {item.__name__}, {value!r} came"
        if rules.get("not_empty") and not value:
            return "at least one is needed, none came"
    elif not isinstance(value, hint):
        return f"expected {hint.__name__}, {value!r} came"
    elif rules.get("not_empty") and not value:
        return "expected some text, an empty one came"
    return None


def _wrong_number(value: object, hint: type, rules: Any) -> str | None:
    kinds = int if hint is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        return f"expected {'a whole number' if hint is int else 'a number'}, {value!r} came"
    if value != value or value in (math.inf, -math.inf):
        return f"expected a finite number, {value!r} came"
    if "above" in rules and not value > rules["above"]:
        return f"expected a number above {rules['above']}, {value!r} came"
    if "at_least" in rules and not value >= rules["at_least"]:
        return f"expected a number of at least {rules['at_least']}, {value!r} came"
    return None
