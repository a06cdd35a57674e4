"""Numbers, shapes and names that callers give, checked before native code sees them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from openshelf._sizes import text_of, whole
from openshelf.errors import BadAddress, BadInput, Mismatch

KEPT = "\x04"  # how the names of copies begin, in a space with replicas: this, what no other copy has, "/", the name


def an_address(value: Any) -> int:
    """64 bits without a sign."""
    address = whole(value, "an address")
    if not 0 <= address < 1 << 64:
        raise BadAddress(f"{address} is no address: expected 64 bits without a sign")
    return address


def seconds(timeout: float | None) -> float:
    """A timeout for native code: negative means for ever, which only None asks for."""
    if timeout is None:
        return -1.0
    try:
        value = float(timeout)
    except (TypeError, ValueError):
        value = math.nan
    if math.isnan(value):
        raise Mismatch(f"a timeout must be seconds or None, got {timeout!r}")
    return max(0.0, value)


def sizes_of(shape: Any) -> tuple[int, ...]:
    """A shape as numpy takes it: one integer, or several."""
    if isinstance(shape, str | bytes) or not (isinstance(shape, Iterable) or hasattr(shape, "__index__")):
        raise Mismatch(f"a shape is an integer or a tuple of integers, got {shape!r}")
    sizes = tuple(whole(size, "a size") for size in shape) if isinstance(shape, Iterable) else (whole(shape, "a size"),)
    if len(sizes) > 64:
        raise Mismatch(f"an array has at most 64 dimensions, got {len(sizes)}")
    if any(size < 0 for size in sizes):
        raise Mismatch(f"a shape has no negative sizes, got {sizes}")
    if any(size >= 1 << 62 for size in sizes):
        raise Mismatch(f"shape {sizes} has more elements than there are addresses")
    return sizes


def array_name(prefix: str, name: str) -> str:
    """The full name of what is called `name` in a folder."""
    if not text_of(name, "a name") or name[0] < " ":
        raise BadInput(f"{name!r} is not a name; expected text that does not begin with a control character")
    return prefix + name
