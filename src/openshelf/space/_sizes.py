"""Sizes as people write them: "2GiB", "512 MiB", 4096."""

from __future__ import annotations

import re

from openshelf.errors import BadInput

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _UNITS[_letter + "IB"] = 1024**_power
    _UNITS[_letter + "B"] = 1000**_power


def parse_size(text: str | int) -> int:
    """Bytes in a size given as an integer or as text with a binary (GiB) or decimal (GB) unit."""
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    else:
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(text))
        unit = match[2].upper() if match else ""
        if not match or unit not in _UNITS or (_UNITS[unit] == 1 and "." in match[1]):
            raise BadInput(f"{text!r} is not a size; expected bytes or text such as '2GiB', '512MiB', '1.5GB'")
        size = int(float(match[1]) * _UNITS[unit])
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
