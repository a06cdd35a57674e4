"""JSON and CSV of files that anybody may have written: BadInput, which names the file, whatever is in them."""

from __future__ import annotations

import contextlib
import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from openshelf.errors import BadInput


def json_of(text: str, what: str) -> Any:
    """What a text says. Numbers that are none, or too large to be one, are refused with all else that is no JSON."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise BadInput(f"{what}: its JSON is nested too deep") from None
    except ValueError as error:
        raise BadInput(f"{what}: not JSON: {error}") from None


@contextlib.contextmanager
def opened_text(path: Path) -> Iterator[TextIO]:
    """A file to be read by lines or as CSV, inside this context."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise BadInput(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadInput(f"{str(path)!r} cannot be read as text, or as CSV: {error}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _finite(text: str) -> float:
    if not math.isfinite(found := float(text)):
        raise ValueError(f"{text[:20]} is too large for a number")
    return found
