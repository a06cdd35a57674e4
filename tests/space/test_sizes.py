"""Sizes as people write them."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from openshelf.errors import BadInput
from openshelf.space import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30),
        ("1.5GB", 1_500_000_000),
        (4096, 4096),
        ("17 B", 17),
        ("0.5 kib", 512),
        ("1.5GiB", 3 << 29),
        ("9007199254740993", (1 << 53) + 1),
        (np.int64(5), 5),
        ("4096.000TiB", 1 << 52),
        ("2G", 2_000_000_000),
        ("2Gi", 2 << 30),
        ("300M", 300_000_000),
        ("1.5 ki", 1536),
        ("3p", 3 * 10**15),
    ],
)
def test_size_is_read(text: Any, size: int) -> None:
    assert parse_size(text) == size


NO_SIZES = [
    "1.5",
    "x",
    "0",
    "3 parsecs",
    "",
    "GiB",
    "1e9",
    "-2GiB",
    "9e99TiB",
    "8388608TiB",
    "nan",
    "inf",
    "0.3KiB",
    "2i",
    "2GG",
    "2iB",
    "G",
]
NO_SIZES += ["2i", "2GG", "2iB", "G", "1.00000000001GB", "\u0662GiB", "1" * 5000]
NO_NUMBERS: list[Any] = [-1, 1 << 63, 10**30, True, None, b"4096", 1.5, 1e9, 2.0, math.nan, math.inf, np.float64(4096)]
NO_NUMBERS += [Fraction(4096), Decimal(4096)]


@pytest.mark.parametrize("text", [*NO_SIZES, *NO_NUMBERS], ids=lambda text: repr(text)[:20])
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(BadInput, match=r"not a size|positive and less than 2"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"), [(17, "17 B"), (2 << 30, "2 GiB"), (1536, "1.5 KiB"), (1023, "1023 B"), (5 << 50, "5120 TiB")]
)
def test_size_is_written(size: int, text: str) -> None:
    assert format_size(size) == text
