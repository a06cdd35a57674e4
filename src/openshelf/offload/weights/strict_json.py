"""JSON of a file that anybody may have written: an object, or Corrupt, whatever is in it."""

from __future__ import annotations

import json
from typing import Any

from openshelf.errors import Corrupt


def strict_json(text: bytes, what: str) -> dict[str, Any]:
    """Corrupt, which names `what`, for all else: nested too deep, Infinity or NaN, a name twice, not UTF-8."""
    try:
        parsed = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_refuse)
    except RecursionError:
        raise Corrupt(f"{what}: its JSON is nested too deep") from None
    except MemoryError:
        raise Corrupt(f"{what}: its JSON does not fit in memory") from None
    except ValueError as error:
        raise Corrupt(f"{what}: its JSON cannot be read: {error}") from error
    if not isinstance(parsed, dict):
        raise Corrupt(f"{what}: expected a JSON object, got {type(parsed).__name__}")
    return parsed


def is_size(value: Any) -> bool:
    """Whether it is an integer that a size or a place can be: not negative, no float, no bool."""
    return type(value) is int and 0 <= value < 1 << 63


def are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(map(is_size, values))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")
