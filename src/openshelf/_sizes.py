"""Arguments as callers give them: flags, texts, whole numbers, and sizes as people write them ("2GiB", 4096)."""

from __future__ import annotations

import operator
import re
from fractions import Fraction
from typing import Any

import numpy as np

from openshelf.errors import BadInput, Mismatch

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _UNITS[_letter + "IB"] = _UNITS[_letter + "I"] = 1024**_power
    _UNITS[_letter + "B"] = _UNITS[_letter] = 1000**_power


def whole(value: Any, what: str) -> int:
    """An integer, or anything that is one; Mismatch names `what` it was to be."""
    try:
        return operator.index(value)
    except (TypeError, BadInput):  # the latter of an Array that is none
        raise Mismatch(f"{what} must be an integer, got {value!r}") from None


def flag(value: Any, what: str) -> bool:
    """True or False, and nothing that only counts as one of them."""
    if not isinstance(value, bool | np.bool_):
        raise BadInput(f"{what} is True or False, got {value!r}")
    return bool(value)


def seconds_of(value: Any, what: str) -> float:
    """A finite number of seconds that is not negative."""
    try:
        number = float("nan") if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not 0 <= number < float("inf"):
        raise BadInput(f"{what} is a number of seconds, got {value!r:.60}")
    return number


def text_of(value: Any, what: str) -> str:
    """Text that others can read: UTF-8."""
    if not isinstance(value, str):
        raise Mismatch(f"{what} is text, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{value!r} is not {what}: it cannot be written as UTF-8 ({error.reason})") from None
    return value


def parse_size(text: str | int) -> int:
    """Bytes in a size given as an integer or as text with a binary (GiB, Gi) or decimal (GB, G) unit."""
    if isinstance(text, str):
        match = re.fullmatch(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*([A-Za-z]*)\s*", text, re.ASCII)
        unit = match[2].upper() if match else ""
        if not match or unit not in _UNITS or (_UNITS[unit] == 1 and "." in match[1]):
            raise BadInput(f"{text!r} is not a size; expected bytes or text such as '2GiB', '512Mi', '1.5GB'")
        exact = Fraction(match[1]) * _UNITS[unit]  # a float would lose bytes of large ones
        if exact.denominator != 1:
            raise BadInput(f"{text!r} is not a size: {float(exact)} bytes are not whole ones")
        size = int(exact)
    else:
        try:
            size = -1 if isinstance(text, bool) else operator.index(text)  # numpy's too; a float may have lost some
        except TypeError:
            size = -1
        if size < 0:
            raise BadInput(f"{text!r} is not a size; expected an integer or text such as '2GiB', '512MiB', '1.5GB'")
    if not 0 < size < 1 << 63:
        raise BadInput(f"a size is positive and less than 2^63 bytes, got {text!r}")
    return size


def format_size(size: float) -> str:
    """The shortest exact-enough form: 2 GiB, 1.5 MiB, 17 B."""
    for letter in ("", "Ki", "Mi", "Gi", "Ti"):
        if abs(size) < 1024 or letter == "Ti":
            return f"{size:.4g} {letter}B"
        size /= 1024
    raise AssertionError("unreachable")
